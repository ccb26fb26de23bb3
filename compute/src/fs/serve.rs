//! Dispatch of requests.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use crate::fetch::Volume;
use crate::fs::device::Device;
use crate::fs::init::{self, TRANSFER_MAX};
use crate::fs::wire::{Body, Out, Request, attr_out, entry_out, opcode, push_dirent};
use crate::overlay::Make;
use crate::overlay::attr::Time;
use crate::source::PageSource;

/// The outcome of a request: an answer now, or none yet.
type Answered = Result<Option<Out>, Errno>;

const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const O_EXCL: u32 = 0o200;
const RENAME_NOREPLACE: u32 = 1;
const FALLOCATE_KEEP_SIZE: u32 = 1;
const KEEP_CACHE: u32 = 1 << 1;

/// Number of entries read from the tree at once.
const LISTED_MAX: usize = 1024;

/// Cookies of `.` and `..`; any other entry's cookie is its node number, and the lowest node numbers are unused.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// Handles requests until the connection ends.
pub(crate) fn requests<S: PageSource>(volume: &Arc<Volume<S>>, device: &Arc<Device>) -> io::Result<()> {
    // Not zeros, which would have no memory until they are written to: if this process is killed while the kernel waits
    // for memory to copy a request into, it ends that request with EIO instead of sending it again.
    let mut buffer = vec![1; TRANSFER_MAX + 4096];
    loop {
        let length = device.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        let Some(request) = Request::parse(&buffer[..length]) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a request without a header"));
        };
        let unique = request.unique;
        match one(volume, device, request) {
            Ok(None) => {}
            Ok(Some(out)) => device.answer(unique, &Ok(out.0)),
            Err(error) => device.answer(unique, &Err(error)),
        }
    }
}

fn one<S: PageSource>(volume: &Arc<Volume<S>>, device: &Arc<Device>, mut request: Request<'_>) -> Answered {
    let node = request.node;
    let resent = request.is_resent();
    let overlay = &volume.overlay;
    let body = &mut request.body;
    match request.opcode {
        opcode::INIT => init::answer(body).map(Some),
        opcode::LOOKUP => {
            let attr = overlay.lookup(node, body.name()?).map_err(errno)?;
            Ok(Some(entry_out(attr.as_ref())))
        }
        opcode::FORGET => {
            overlay.forget(node);
            Ok(None)
        }
        opcode::BATCH_FORGET => {
            let count = body.u32()?;
            body.skip(4)?;
            for _ in 0..count {
                overlay.forget(body.u64()?);
                body.skip(8)?;
            }
            Ok(None)
        }
        opcode::GETATTR => Ok(Some(attr_out(&overlay.attr(node).map_err(errno)?))),
        opcode::SETATTR => set_attr(volume, device, request),
        opcode::READ => read(volume, device, request),
        opcode::WRITE => write(volume, device, request),
        opcode::FSYNC => done(overlay.file(node).and_then(|file| overlay.sync(&file))),
        opcode::FSYNCDIR => done(overlay.sync_dir(node)),
        opcode::FALLOCATE => allocate(volume, node, body),
        opcode::READDIR => list(volume, node, body),
        opcode::OPENDIR => Ok(Some(Out::default().zeros(16))),
        opcode::RELEASE | opcode::RELEASEDIR => Ok(Some(Out::default())),
        opcode::STATFS => stat_fs(volume),
        opcode::READLINK => {
            let target = overlay.readlink(node).map_err(errno)?;
            Ok(Some(Out(target.into_encoded_bytes())))
        }
        opcode::UNLINK => done(overlay.unlink(node, body.name()?, resent)),
        opcode::RMDIR => done(overlay.rmdir(node, body.name()?, resent)),
        opcode::RENAME => {
            let directory = body.u64()?;
            done(overlay.rename((node, body.name()?), (directory, body.name()?), false, resent))
        }
        opcode::RENAME2 => {
            let (directory, flags) = (body.u64()?, body.u32()?);
            body.skip(4)?;
            if flags & !RENAME_NOREPLACE != 0 {
                return Err(Errno::INVAL);
            }
            done(overlay.rename((node, body.name()?), (directory, body.name()?), flags != 0, resent))
        }
        opcode::CREATE | opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK => make(volume, request),
        opcode::LINK => Err(Errno::PERM),
        opcode::INTERRUPT => Ok(None),
        opcode::DESTROY => Ok(Some(Out::default())),
        // These include OPEN, FLUSH and extended attributes: after this error the kernel does not ask again.
        _ => Err(Errno::NOSYS),
    }
}

fn make<S: PageSource>(volume: &Arc<Volume<S>>, mut request: Request<'_>) -> Answered {
    let resent = request.is_resent();
    let (node, opcode) = (request.node, request.opcode);
    let body = &mut request.body;
    let make = |name: &OsStr, mode, what: &Make<'_>, may_exist: bool| {
        volume.overlay.make(node, name, mode, what, may_exist || resent).map_err(errno)
    };
    let attr = match opcode {
        opcode::CREATE => {
            let (flags, mode) = (body.u32()?, body.u32()?);
            body.skip(8)?;
            let attr = make(body.name()?, mode, &Make::File, flags & O_EXCL == 0)?;
            return Ok(Some(entry_out(Some(&attr)).u64(0).u32(KEEP_CACHE).u32(0)));
        }
        opcode::MKNOD => {
            let mode = body.u32()?;
            body.skip(12)?;
            let what = if mode & S_IFMT == S_IFREG { Make::File } else { Make::Special(mode & S_IFMT) };
            make(body.name()?, mode, &what, false)?
        }
        opcode::MKDIR => {
            let mode = body.u32()?;
            body.skip(4)?;
            make(body.name()?, mode, &Make::Dir, false)?
        }
        _ => {
            let name = body.name()?;
            make(name, 0o777, &Make::Symlink(body.name()?), false)?
        }
    };
    Ok(Some(entry_out(Some(&attr))))
}

fn read<S: PageSource>(volume: &Arc<Volume<S>>, device: &Arc<Device>, mut request: Request<'_>) -> Answered {
    request.body.skip(8)?;
    let (offset, size) = (request.body.u64()?, request.body.u32()? as usize);
    let file = volume.overlay.file(request.node).map_err(errno)?;
    let pending = match volume.begin_read(&file, offset, size.min(TRANSFER_MAX)).map_err(errno)? {
        Ok(data) => return Ok(Some(Out(data))),
        Err(pending) => pending,
    };
    let (volume, device) = (Arc::clone(volume), Arc::clone(device));
    env::spawn::vital("read", async move {
        let answer = volume.finish_read(&file, pending).await;
        device.answer(request.unique, &answer.map_err(errno));
    });
    Ok(None)
}

fn write<S: PageSource>(volume: &Arc<Volume<S>>, device: &Arc<Device>, mut request: Request<'_>) -> Answered {
    let body = &mut request.body;
    body.skip(8)?;
    let (offset, size) = (body.u64()?, body.u32()?);
    body.skip(20)?;
    let data = body.bytes(size as usize)?;
    let file = volume.overlay.file(request.node).map_err(errno)?;
    let answer = move || Out::default().u32(size).u32(0);
    if let Ok(crate::overlay::Change::Done) = volume.overlay.write(&file, offset, data) {
        return Ok(Some(answer()));
    }
    // Rare: part of a block that is not here, or a full disk. This may take long, so the task owns a copy of the
    // bytes.
    let (volume, device, data) = (Arc::clone(volume), Arc::clone(device), data.to_vec());
    env::spawn::vital("write", async move {
        let written = volume.write(&file, offset, &data).await;
        device.answer(request.unique, &written.map(|()| answer().0).map_err(errno));
    });
    Ok(None)
}

/// Fields of a SETATTR request.
struct SetAttr {
    valid: u32,
    size: u64,
    times: [Time; 2],
    mode: u32,
}

impl SetAttr {
    const MODE: u32 = 1;
    const SIZE: u32 = 1 << 3;
    const ATIME: u32 = 1 << 4;
    const MTIME: u32 = 1 << 5;

    fn parse(body: &mut Body<'_>) -> Result<Self, Errno> {
        let valid = body.u32()?;
        body.skip(12)?;
        let size = body.u64()?;
        body.skip(8)?;
        let [atime, mtime] = [body.u64()?, body.u64()?].map(u64::cast_signed);
        body.skip(8)?;
        let times = [(atime, body.u32()?), (mtime, body.u32()?)];
        body.skip(4)?;
        Ok(Self { valid, size, times, mode: body.u32()? })
    }

    fn has(&self, field: u32) -> bool {
        self.valid & field != 0
    }
}

/// Ownership never changes: all files belong to the user that runs Postgres.
fn set_attr<S: PageSource>(volume: &Arc<Volume<S>>, device: &Arc<Device>, mut request: Request<'_>) -> Answered {
    let wanted = SetAttr::parse(&mut request.body)?;
    let node = request.node;
    let (with_size, size) = (wanted.has(SetAttr::SIZE), wanted.size);
    let finish = move |volume: &Volume<S>| {
        let overlay = &volume.overlay;
        if wanted.has(SetAttr::MODE) {
            overlay.set_mode(node, wanted.mode)?;
        }
        if wanted.has(SetAttr::ATIME | SetAttr::MTIME) {
            let [atime, mtime] = wanted.times;
            let atime = wanted.has(SetAttr::ATIME).then_some(atime);
            overlay.set_times(node, atime, wanted.has(SetAttr::MTIME).then_some(mtime))?;
        }
        Ok(attr_out(&overlay.attr(node)?))
    };
    if !with_size {
        return finish(volume).map(Some).map_err(errno);
    }
    let file = volume.overlay.file(node).map_err(errno)?;
    let (volume, device) = (Arc::clone(volume), Arc::clone(device));
    env::spawn::vital("truncate", async move {
        let outcome = volume.truncate(&file, size).await.and_then(|()| finish(&volume));
        device.answer(request.unique, &outcome.map(|out| out.0).map_err(errno));
    });
    Ok(None)
}

fn allocate<S: PageSource>(volume: &Arc<Volume<S>>, node: u64, body: &mut Body<'_>) -> Answered {
    body.skip(8)?;
    let (offset, length, mode) = (body.u64()?, body.u64()?, body.u32()?);
    if mode & !FALLOCATE_KEEP_SIZE != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let file = volume.overlay.file(node).map_err(errno)?;
    done(volume.overlay.allocate(&file, mode & FALLOCATE_KEEP_SIZE != 0, offset, length))
}

/// Lists by node number, so that a position stays valid across concurrent removals and restarts.
fn list<S: PageSource>(volume: &Arc<Volume<S>>, dir: u64, body: &mut Body<'_>) -> Answered {
    body.skip(8)?;
    let (cookie, room) = (body.u64()?, body.u32()? as usize);
    let overlay = &volume.overlay;
    let mut out = Vec::with_capacity(room.min(TRANSFER_MAX));
    let parent = overlay.parent(dir).unwrap_or(dir);
    for (own, id, name) in [(DOT, dir, "."), (DOT_DOT, parent, "..")] {
        if cookie < own && !push_dirent(&mut out, room, id, own, 4, OsStr::new(name)) {
            return Ok(Some(Out(out)));
        }
    }
    for entry in overlay.list(dir, cookie.max(DOT_DOT), LISTED_MAX).map_err(errno)? {
        if !push_dirent(&mut out, room, entry.id, entry.id, entry.kind, &entry.name) {
            break;
        }
    }
    Ok(Some(Out(out)))
}

fn stat_fs<S: PageSource>(volume: &Arc<Volume<S>>) -> Answered {
    let stat = volume.overlay.stat_fs()?;
    let out =
        Out::default().u64(stat.f_blocks).u64(stat.f_bfree).u64(stat.f_bavail).u64(stat.f_files).u64(stat.f_ffree);
    Ok(Some(out.u32(stat.f_bsize as u32).u32(255).u32(stat.f_frsize as u32).zeros(28)))
}

fn done(outcome: io::Result<()>) -> Answered {
    outcome.map(|()| Some(Out::default())).map_err(errno)
}

/// The error as reported to the kernel: never one that means "try again".
fn errno(error: io::Error) -> Errno {
    match Errno::from_io_error(&error) {
        Some(Errno::INTR | Errno::AGAIN) | None => {
            tracing::error!("a request fails: {error}");
            Errno::IO
        }
        Some(errno) => {
            if errno == Errno::IO {
                tracing::error!("a request fails: {error}");
            }
            errno
        }
    }
}
