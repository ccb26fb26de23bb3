//! Operations on paths.

use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use io_uring::{opcode, squeue, types};

use super::file::StatxBuf;
use crate::op::Operation;

/// Options for opening a file; like `std::fs::OpenOptions`, whose fields cannot be read.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    custom_flags: i32,
    mode: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// No options set; files are created with mode 0666 minus the umask.
    pub fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            custom_flags: 0,
            mode: 0o666,
        }
    }

    /// Open for reading.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.read = read;
        self
    }

    /// Open for writing.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.write = write;
        self
    }

    /// Every write goes to the end of the file, whatever its offset.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.append = append;
        self
    }

    /// Empty the file.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// Create the file if it does not exist.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// Create the file, and fail if it exists.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// Further flags of `open(2)`, such as `O_DIRECT`. Bits of the access mode are ignored.
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.custom_flags = flags;
        self
    }

    /// Permissions of a created file, minus the umask.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    fn flags(&self) -> io::Result<i32> {
        let access = match (self.read, self.write || self.append) {
            (true, false) => libc::O_RDONLY,
            (false, true) => libc::O_WRONLY,
            (true, true) => libc::O_RDWR,
            (false, false) => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
        };
        let chosen = [
            (self.append, libc::O_APPEND),
            (self.truncate, libc::O_TRUNC),
            (self.create, libc::O_CREAT),
            (self.create_new, libc::O_CREAT | libc::O_EXCL),
        ];
        let chosen = chosen.iter().filter(|(on, _)| *on).fold(0, |flags, (_, flag)| flags | flag);
        Ok(access | chosen | libc::O_CLOEXEC | (self.custom_flags & !libc::O_ACCMODE))
    }
}

/// A path in the kernel's form; an error if it contains a zero byte.
fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// The path, or the error to return. The error is returned once, as there is no retry after it.
type CheckedPath = Result<CString, Option<io::Error>>;

fn checked(path: &mut CheckedPath) -> io::Result<&CString> {
    match path {
        Ok(path) => Ok(path),
        Err(error) => Err(error.take().unwrap_or_else(|| io::ErrorKind::InvalidInput.into())),
    }
}

/// See [`SystemHandle::open`](crate::SystemHandle::open).
pub struct Open {
    path: CheckedPath,
    options: OpenOptions,
}

impl Open {
    pub(crate) fn new(path: &Path, options: &OpenOptions) -> Self {
        Self { path: c_path(path).map_err(Some), options: options.clone() }
    }
}

// SAFETY: the path is the heap block of an owned CString.
unsafe impl Operation for Open {
    type Output = io::Result<OwnedFd>;

    fn entry(&mut self) -> io::Result<squeue::Entry> {
        let flags = self.options.flags()?;
        let path = checked(&mut self.path)?;
        let entry = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr());
        Ok(entry.flags(flags).mode(self.options.mode).build())
    }

    fn complete(self, result: io::Result<u32>) -> Self::Output {
        // SAFETY: the kernel has just opened it, and returned it to nobody else.
        result.map(|fd| unsafe { OwnedFd::from_raw_fd(fd.cast_signed()) })
    }
}

/// See [`SystemHandle::statx_path`](crate::SystemHandle::statx_path).
pub struct StatxPath {
    path: CheckedPath,
    answer: StatxBuf,
}

impl StatxPath {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: c_path(path).map_err(Some), answer: StatxBuf::new() }
    }
}

// SAFETY: the path is the heap block of an owned CString, the answer goes to that of an owned Vec.
unsafe impl Operation for StatxPath {
    type Output = io::Result<libc::statx>;

    fn entry(&mut self) -> io::Result<squeue::Entry> {
        let path = checked(&mut self.path)?;
        Ok(self.answer.entry(types::Fd(libc::AT_FDCWD), path, 0))
    }

    fn complete(self, result: io::Result<u32>) -> Self::Output {
        // SAFETY: it succeeded.
        result.map(|_| unsafe { self.answer.into_answer() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_flags() {
        let flags = |choose: fn(&mut OpenOptions) -> &mut OpenOptions| choose(&mut OpenOptions::new()).flags().ok();
        let cloexec = libc::O_CLOEXEC;
        assert_eq!(flags(|o| o), None);
        assert_eq!(flags(|o| o.read(true)), Some(libc::O_RDONLY | cloexec));
        assert_eq!(flags(|o| o.read(true).write(true)), Some(libc::O_RDWR | cloexec));
        assert_eq!(flags(|o| o.append(true)), Some(libc::O_WRONLY | libc::O_APPEND | cloexec));
        let created = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | cloexec;
        assert_eq!(flags(|o| o.write(true).create_new(true).truncate(true)), Some(created));
        assert_eq!(
            flags(|o| o.read(true).custom_flags(libc::O_DIRECT | libc::O_RDWR)),
            Some(libc::O_RDONLY | libc::O_DIRECT | cloexec)
        );
    }
}
