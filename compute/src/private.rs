//! Private files: created so that others can neither read nor change them, and trusted only if nobody else can have
//! created or changed them.
//!
//! If root manages computes, their directories belong to the user that runs Postgres, and a superuser of that
//! Postgres can do there whatever this user can. So root checks what it opens there, and what root acts upon
//! (`compute.json`) belongs to root.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Permissions of directories that we create.
pub(crate) const DIR_MODE: u32 = 0o700;
/// Permissions of files that we create.
pub(crate) const FILE_MODE: u32 = 0o600;

/// Mode bits that let others change it.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Users whose files are trusted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trust {
    me: u32,
    owner: u32,
}

impl Trust {
    /// Root and the current user.
    pub(crate) fn me() -> Self {
        let me = rustix::process::geteuid().as_raw();
        Self { me, owner: me }
    }

    /// Also the owner of a compute's directory, which must not be open to others.
    pub(crate) fn of(root: &Path) -> io::Result<Self> {
        let Self { me, .. } = Self::me();
        let dir = std::fs::symlink_metadata(root)?;
        let owner = if me == 0 { dir.uid() } else { me };
        let trust = Self { me, owner };
        if !dir.is_dir() {
            return Err(suspect(root, "it is no directory"));
        }
        trust.check_owner(root, &dir)?;
        Ok(trust)
    }

    /// Whether `uid` is trusted.
    pub(crate) fn has(self, uid: u32) -> bool {
        [0, self.me, self.owner].contains(&uid)
    }

    /// Opens a file; one that `options` create is private to its owner. Links are not followed.
    pub(crate) fn open(self, path: &Path, options: &mut OpenOptions) -> io::Result<File> {
        // Opening a pipe must not block until somebody opens its other end.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let opened = options.mode(FILE_MODE).custom_flags(flags.bits().cast_signed()).open(path);
        let file = opened.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::LOOP) => suspect(path, "it is a symbolic link"),
            Some(Errno::ACCESS) => self.denied(path),
            _ => error,
        })?;
        self.check(path, &file.metadata()?)?;
        Ok(file)
    }

    /// Why an existing file cannot be opened.
    fn denied(self, path: &Path) -> io::Error {
        let known = std::fs::symlink_metadata(path).and_then(|found| self.check_owner(path, &found));
        known.err().unwrap_or_else(|| suspect(path, "its permissions keep even its owner out"))
    }

    /// The whole contents of a file.
    pub(crate) fn read(self, path: &Path) -> io::Result<Vec<u8>> {
        let mut contents = Vec::new();
        io::Read::read_to_end(&mut self.open(path, File::options().read(true))?, &mut contents)?;
        Ok(contents)
    }

    /// Opens a log for appending.
    pub(crate) fn append(self, path: &Path) -> io::Result<File> {
        self.open(path, File::options().create(true).append(true))
    }

    /// Replaces a file durably with `contents`. `give` may change its owner before it gets its name.
    pub(crate) fn replace(
        self,
        path: &Path,
        contents: &[u8],
        give: impl FnOnce(&File) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let aside = Path::new(&name);
        match std::fs::remove_file(aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = self.open(aside, File::options().write(true).create_new(true))?;
        io::Write::write_all(&mut file, contents)?;
        give(&file)?;
        file.sync_all()?;
        std::fs::rename(aside, path)?;
        path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    }

    /// Whether a file with these attributes may be trusted.
    fn check(self, path: &Path, metadata: &Metadata) -> io::Result<()> {
        if !metadata.is_file() {
            return Err(suspect(path, "it is no plain file"));
        }
        if metadata.nlink() > 1 {
            return Err(suspect(path, "it has another name besides"));
        }
        self.check_owner(path, metadata)
    }

    /// Checks that nobody else can have put it there or changed it.
    pub(crate) fn check_owner(self, path: &Path, metadata: &Metadata) -> io::Result<()> {
        let (uid, mode) = (metadata.uid(), metadata.mode());
        if !self.has(uid) {
            return Err(suspect(path, &format!("it belongs to user {uid}, not to user {}", self.owner)));
        }
        if mode & WRITABLE_BY_OTHERS != 0 {
            return Err(suspect(path, &format!("others may write to it (its mode is {:04o})", mode & 0o7777)));
        }
        Ok(())
    }
}

fn suspect(path: &Path, reason: &str) -> io::Error {
    let text = format!("{}: {reason}: nothing there is believed", path.display());
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Creates a directory that only its owner may enter.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIR_MODE).create(path)
}

/// As [`make_dir`], with missing parents.
pub(crate) fn make_dirs(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIR_MODE).create(path)
}

/// Closes a compute's directory and its direct children to others, as far as they belong to users in `trust`. With
/// `enter`, users who are admitted over the socket may enter the directory, and can access only the socket.
pub(crate) fn close(root: &Path, trust: Trust, enter: bool) -> io::Result<()> {
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let mode = match (kind.is_file(), kind.is_dir()) {
            (true, _) => FILE_MODE,
            (_, true) => DIR_MODE,
            // A link has no permissions, and Postgres sets those of the socket.
            _ => continue,
        };
        // Not the mount point: the file system may not answer.
        if entry.file_name() != "data" {
            set_mode(&entry.path(), trust, mode)?;
        }
    }
    set_mode(root, trust, if enter { 0o711 } else { DIR_MODE })
}

fn set_mode(path: &Path, trust: Trust, mode: u32) -> io::Result<()> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path) {
        // It belongs to somebody else: reading it will be refused.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        opened => opened?,
    };
    let metadata = file.metadata()?;
    if metadata.mode() & 0o7777 == mode || !trust.has(metadata.uid()) {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &Path) -> String {
        Trust::me().read(path).unwrap_err().to_string()
    }

    #[test]
    fn what_others_may_change_is_not_believed() {
        let dir = camino_tempfile::tempdir().unwrap();
        let path = dir.path().join("f").into_std_path_buf();
        Trust::me().replace(&path, b"mine", |_| Ok(())).unwrap();
        assert_eq!(Trust::me().read(&path).unwrap(), b"mine");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        for mode in [0o606, 0o620] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert!(refused(&path).contains("others may write to it"), "{mode:o}");
        }
        close(dir.path().as_std_path(), Trust::me(), false).unwrap();
        assert_eq!(Trust::me().read(&path).unwrap(), b"mine");
        assert_eq!(std::fs::metadata(dir.path()).unwrap().mode() & 0o7777, 0o700);
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(Trust::of(dir.path().as_std_path()).is_err());
    }

    #[test]
    fn links_and_pipes_are_not_followed() {
        let dir = camino_tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).into_std_path_buf();
        Trust::me().replace(&path("f"), b"mine", |_| Ok(())).unwrap();
        std::os::unix::fs::symlink("f", path("link")).unwrap();
        assert!(refused(&path("link")).contains("symbolic link"));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(refused(&path("pipe")).contains("no plain file"));
        std::fs::hard_link(path("f"), path("second")).unwrap();
        assert!(refused(&path("f")).contains("another name"));
    }

    #[test]
    fn what_belongs_to_others_is_not_believed() {
        assert!(Trust::me().has(0) && !Trust::me().has(u32::MAX - 2));
        // Only root can give a file away.
        test_needs::need!(test_needs::root());
        let dir = camino_tempfile::tempdir().unwrap();
        let path = dir.path().join("f").into_std_path_buf();
        Trust::me().replace(&path, b"theirs", |file| std::os::unix::fs::fchown(file, Some(65_534), None)).unwrap();
        assert!(refused(&path).contains("belongs to user 65534"));
        std::os::unix::fs::chown(dir.path(), Some(65_534), None).unwrap();
        assert_eq!(Trust::of(dir.path().as_std_path()).unwrap().read(&path).unwrap(), b"theirs");
    }
}
