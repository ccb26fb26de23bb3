//! Mounting.
//!
//! Who may mount, mounts; anybody else has `fusermount3` do it, which hands the connection over.

use std::ffi::CString;
use std::fs::{File, Metadata};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType};

use super::{Layout, postgres};

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
const BUSY_PAUSE: Duration = Duration::from_millis(50);
const BUSY_TRIES: u32 = 100;

/// A mount, by its connection.
pub(crate) struct Mount {
    data: PathBuf,
    connection: OwnedFd,
}

impl Mount {
    /// Mounts the data directory of the compute at `layout`. Its files belong to the owner of `upper`.
    pub(crate) fn new(layout: &Layout) -> io::Result<Self> {
        let data = layout.data().canonicalize()?;
        let owner = std::fs::metadata(layout.upper())?;
        let connection = match mount_directly(&data, &owner) {
            Err(Errno::PERM | Errno::ACCESS) => mount_with_helper(&data)?,
            Err(error) => return Err(explained(error)),
            Ok(connection) => connection,
        };
        Ok(Self { data, connection })
    }

    /// The connection, for a daemon.
    pub(crate) fn connection(&self) -> io::Result<OwnedFd> {
        self.connection.try_clone()
    }

    /// Whether the kernel still serves the mount by this connection.
    pub(crate) fn is_connected(&self) -> bool {
        let mut poll = [PollFd::new(&self.connection, PollFlags::empty())];
        let polled = rustix::event::poll(&mut poll, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }));
        polled.is_ok() && !poll[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL)
    }

    /// Ends the connection: whatever waits for an answer gets an error. The mount stays, dead.
    pub(crate) fn abort(&self) {
        if self.is_connected() {
            // The kernel says that it is busy when it has done it.
            let _ = rustix::mount::unmount(&self.data, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
        }
    }
}

fn mount_directly(data: &Path, owner: &Metadata) -> Result<OwnedFd, Errno> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // Only root may let others in than the one who mounts; and only root has to.
    let others = if rustix::process::geteuid().is_root() { ",allow_other" } else { "" };
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions{others}",
        device.as_raw_fd(),
        owner.uid(),
        owner.gid()
    );
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    rustix::mount::mount("compute", data, "fuse.compute", flags, Some(options.as_c_str()))?;
    Ok(device)
}

/// Has the helper mount, which sends the connection over a socket.
fn mount_with_helper(data: &Path) -> io::Result<OwnedFd> {
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
    let done = Command::new(HELPER)
        .args(["-o", "fsname=compute,subtype=compute,default_permissions,nosuid,nodev,noatime", "--"])
        .arg(data)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .output()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => refused("is not there: install the package fuse3"),
            _ => error,
        })?;
    drop(theirs);
    if !done.status.success() {
        return Err(refused(&format!("says: {}", String::from_utf8_lossy(&done.stderr).trim())));
    }
    receive(&ours)
}

fn receive(socket: &impl AsFd) -> io::Result<OwnedFd> {
    let mut byte = [0_u8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut messages = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut messages, RecvFlags::CMSG_CLOEXEC)?;
    let received = messages.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut connections) => connections.next(),
        _ => None,
    });
    received.ok_or_else(|| io::Error::other(format!("{HELPER} sent no connection")))
}

/// What is missing.
fn explained(error: Errno) -> io::Error {
    let text = match error {
        Errno::NOENT | Errno::NXIO | Errno::NODEV => format!(
            "{DEVICE} is not there: load the kernel module `fuse`, or start the container with `--device {DEVICE}`"
        ),
        other => format!("mounting: {other}"),
    };
    io::Error::new(io::Error::from(error).kind(), text)
}

/// What is missing where we may not mount, nor the helper can.
fn refused(helper: &str) -> io::Error {
    let text = format!(
        "may not mount, and {HELPER} {helper}. One of them is needed: CAP_SYS_ADMIN (root, a user namespace, or a \
         container with `--cap-add SYS_ADMIN --device {DEVICE}`), or {HELPER} with read and write permission on \
         {DEVICE}"
    );
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Unmounts what a former supervisor left at `data`, after killing the server that works on it.
pub(crate) fn clear(data: &Path) -> io::Result<()> {
    let killed = postgres::kill(data)?;
    if !killed.is_empty() {
        tracing::warn!(?killed, "killed Postgres, whose file system is to be mounted anew");
    }
    if is_mounted(data)? {
        tracing::warn!("{} is still mounted", data.display());
        if postgres::await_end(data).is_err() {
            let _ = rustix::mount::unmount(data, UnmountFlags::FORCE);
        }
    }
    postgres::await_end(data)?;
    unmount(data)
}

/// Unmounts `data`, as often as something is mounted there. What the kernel keeps back is written first, if there is a
/// daemon that takes it.
pub(crate) fn unmount(data: &Path) -> io::Result<()> {
    let mut tries = 0;
    while is_mounted(data)? {
        tries += 1;
        // In the end it is detached, and goes when the last who uses it is gone.
        let flags = if tries > BUSY_TRIES { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        match rustix::mount::unmount(data, flags | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::PERM | Errno::ACCESS) => {
                let status = Command::new(HELPER).args(["-u", "-q"]).arg(data).status()?;
                if !status.success() && tries > BUSY_TRIES {
                    return Err(io::Error::other(format!("{HELPER} cannot unmount {}", data.display())));
                }
            }
            Err(Errno::BUSY) => std::thread::sleep(BUSY_PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

pub(crate) fn is_mounted(data: &Path) -> io::Result<bool> {
    // The directory's own name is not looked at: a dead mount answers nothing.
    let (Some(parent), Some(name)) = (data.parent(), data.file_name()) else { return Ok(false) };
    let path = parent.canonicalize()?.join(name);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let escaped = path.to_string_lossy().replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011");
    Ok(mounts.lines().any(|line| line.split(' ').nth(4) == Some(escaped.as_str())))
}

/// Sets the kernel's read-ahead of a mount; only root may.
pub(crate) fn set_read_ahead(mounted: &Metadata, kib: &str) {
    let device = mounted.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) =
        File::options().write(true).open(&path).and_then(|mut file| io::Write::write_all(&mut file, kib.as_bytes()))
    {
        tracing::debug!("{path}: {error}");
    }
}
