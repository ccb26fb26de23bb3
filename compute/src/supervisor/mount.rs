//! Mounting.
//!
//! A process that may mount does; any other uses `fusermount3`, which hands the connection over.

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

use crate::layout::Layout;
use crate::private::Trust;

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
/// Directories searched besides `PATH`.
const HELPER_DIRS: [&str; 4] = ["/usr/bin", "/bin", "/usr/local/bin", "/run/wrappers/bin"];
const BUSY_PAUSE: Duration = Duration::from_millis(50);
const BUSY_TRIES: u32 = 100;

/// A mount, represented by its connection. The connection ends when all its holders, this and the daemon, are gone.
pub(crate) struct Mount {
    connection: OwnedFd,
}

impl Mount {
    /// Mounts the data directory of the compute at `layout`. Its files belong to the owner of `upper`.
    pub(crate) fn new(layout: &Layout) -> io::Result<Self> {
        let (trust, upper) = (Trust::of(layout.root())?, layout.upper());
        let owner = std::fs::symlink_metadata(&upper)?;
        trust.check_owner(&upper, &owner)?;
        let place = open_place(&layout.data(), trust)?;
        let connection = match mount_directly(&place, &owner) {
            Err((what, Errno::PERM | Errno::ACCESS)) => mount_with_helper(&layout.data().canonicalize()?, what)?,
            Err((_, error)) => return Err(explained(error)),
            Ok(connection) => connection,
        };
        Ok(Self { connection })
    }

    /// The connection, to give to a daemon.
    pub(crate) fn connection(&self) -> io::Result<OwnedFd> {
        self.connection.try_clone()
    }

    /// Whether the connection is still alive.
    pub(crate) fn is_connected(&self) -> bool {
        let mut poll = [PollFd::new(&self.connection, PollFlags::empty())];
        let polled = rustix::event::poll(&mut poll, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }));
        polled.is_ok() && !poll[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL)
    }
}

/// Opens the mount point itself, and not the target of a link in its place: root may mount anywhere.
fn open_place(data: &Path, trust: Trust) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = File::from(rustix::fs::open(data, flags, Mode::empty())?);
    trust.check_owner(data, &place.metadata()?)?;
    Ok(place)
}

/// Mounts without the helper; the error says which step was not permitted.
fn mount_directly(place: &File, owner: &Metadata) -> Result<OwnedFd, (&'static str, Errno)> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let device = device.map_err(|error| ("open /dev/fuse", error))?;
    // Only root may admit users other than the one who mounts; and only root needs to.
    let others = if rustix::process::geteuid().is_root() { ",allow_other" } else { "" };
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions{others}",
        device.as_raw_fd(),
        owner.uid(),
        owner.gid()
    );
    let options = CString::new(options).map_err(|_| ("mount", Errno::INVAL))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    let place = format!("/proc/self/fd/{}", place.as_raw_fd());
    rustix::mount::mount("compute", place, "fuse.compute", flags, Some(options.as_c_str()))
        .map_err(|error| ("mount", error))?;
    Ok(device)
}

/// Mounts through the helper, which sends the connection over a socket. `what` is the step that we may not do
/// ourselves.
fn mount_with_helper(data: &Path, what: &str) -> io::Result<OwnedFd> {
    let refused = |helper: &str| refused(what, helper);
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
    let done = helper()
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

/// The helper, found even if `PATH` does not contain its directory.
fn helper() -> Command {
    let named = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&named).chain(HELPER_DIRS.map(PathBuf::from));
    let found = dirs.map(|dir| dir.join(HELPER)).find(|program| program.is_file());
    Command::new(found.unwrap_or_else(|| HELPER.into()))
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

/// An error message that says what is missing.
fn explained(error: Errno) -> io::Error {
    let text = match error {
        Errno::NOENT | Errno::NXIO | Errno::NODEV => format!(
            "{DEVICE} is not there: load the kernel module `fuse`, or start the container with `--device {DEVICE}`"
        ),
        other => format!("mounting: {other}"),
    };
    io::Error::new(io::Error::from(error).kind(), text)
}

/// An error message for the case that neither we may do `what` nor the helper can.
fn refused(what: &str, helper: &str) -> io::Error {
    // With no_new_privs the helper stays as unprivileged as we are, whoever owns it.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bound = if status.contains("NoNewPrivs:\t1") { " (no_new_privs keeps it from being set-uid)" } else { "" };
    let text = format!(
        "may not {what}, and {HELPER} {helper}{bound}. One of them is needed: CAP_SYS_ADMIN (root, a user \
         namespace, or a container with `--cap-add SYS_ADMIN --device {DEVICE}`), or a set-uid {HELPER}; and with \
         either of them read and write permission on {DEVICE}"
    );
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Aborts the connection of the mount at `data`, if permitted: pending requests get an error. Root may, and so may
/// whoever mounted it if the kernel's control files are accessible. In any case it ends when its last holder is gone.
pub(crate) fn abort(data: &Path) {
    let Ok(Some(connection)) = mounted(data) else { return };
    // The kernel reports EBUSY even though the abort succeeded.
    let refused = rustix::mount::unmount(data, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
    if let Err(Errno::PERM | Errno::ACCESS) = refused {
        let _ = std::fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1");
    }
}

/// Unmounts `data`, repeatedly if mounts are stacked. The kernel first writes back its cached data if a daemon is
/// there to receive it: while the daemon hangs, this blocks.
pub(crate) fn unmount(data: &Path) -> io::Result<()> {
    let mut tries = 0;
    while is_mounted(data)? {
        tries += 1;
        // As a last resort it is detached, and disappears with its last user.
        let lazily = tries > BUSY_TRIES;
        let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        match rustix::mount::unmount(data, flags | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::PERM | Errno::ACCESS) => unmount_with_helper(data, lazily)?,
            Err(Errno::BUSY) => env::clock::pause(BUSY_PAUSE),
            // Somebody else has just unmounted it.
            Err(Errno::INVAL) if !is_mounted(data)? => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Only the user who mounted it may do this, through the helper.
fn unmount_with_helper(data: &Path, lazily: bool) -> io::Result<()> {
    let done = helper().args(if lazily { &["-u", "-z"][..] } else { &["-u"] }).arg("--").arg(data).output()?;
    if done.status.success() || !is_mounted(data)? {
        return Ok(());
    }
    if lazily {
        let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        return Err(io::Error::other(format!("{HELPER} cannot unmount {}: {said}", data.display())));
    }
    env::clock::pause(BUSY_PAUSE);
    Ok(())
}

/// Whether something is mounted at `data` in this process's mount namespace.
pub(crate) fn is_mounted(data: &Path) -> io::Result<bool> {
    mounted(data).map(|device| device.is_some())
}

/// The minor number of the device that is mounted at `data`, which is the number of the connection.
fn mounted(data: &Path) -> io::Result<Option<String>> {
    // The directory itself is not accessed: a dead mount does not answer.
    let (Some(parent), Some(name)) = (data.parent(), data.file_name()) else { return Ok(None) };
    let path = parent.canonicalize()?.join(name);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let escaped = path.to_string_lossy().replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011");
    let at = |line: &&str| line.split(' ').nth(4) == Some(escaped.as_str());
    let device = mounts.lines().rfind(at).and_then(|line| line.split(' ').nth(2));
    Ok(device.map(|device| device.split_once(':').map_or(device, |(_, minor)| minor).to_owned()))
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
