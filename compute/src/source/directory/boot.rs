//! Creates a compute's directory from a plain data directory.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown, lchown, symlink};
use std::path::Path;

use super::{is_segment, relation_files};
use crate::layout::Layout;
use crate::manifest;

/// Creates the compute at `layout` from the data directory `root`, whose server must be shut down. Everything but
/// relations is copied. Tablespaces become directories in `pg_tblspc`.
pub fn boot(root: &Path, layout: &Layout) -> io::Result<()> {
    let owner = root.metadata()?;
    for dir in [layout.root().to_owned(), layout.data(), layout.wal()] {
        make_dir(&dir, &owner)?;
    }
    copy_dir(root, &layout.upper(), Place::Root, &owner)?;
    copy_dir(&root.join("pg_wal"), &layout.wal(), Place::Other, &owner)?;
    let link = layout.upper().join("pg_wal");
    symlink("../pg_wal", &link)?;
    lchown(&link, Some(owner.uid()), Some(owner.gid()))?;
    manifest::write(&layout.manifest(), &relation_files(root)?)?;
    chown(layout.manifest(), Some(owner.uid()), Some(owner.gid()))
}

/// The kind of a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    /// Contains directories of databases, some levels below.
    Tablespace,
    Other,
}

fn copy_dir(from: &Path, to: &Path, place: Place, owner: &std::fs::Metadata) -> io::Result<()> {
    make_dir(to, owner)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let (path, copy) = (entry.path(), to.join(&name));
        // Follows links: those of tablespaces.
        let metadata = std::fs::metadata(&path)?;
        if metadata.is_dir() {
            let inside = match (place, name.as_str()) {
                (Place::Root, "pg_wal") => continue,
                (Place::Root, "base" | "global" | "pg_tblspc") => Place::Tablespace,
                (Place::Root, _) => Place::Other,
                (place, _) => place,
            };
            copy_dir(&path, &copy, inside, owner)?;
        } else if metadata.is_file() && !(place == Place::Tablespace && is_segment(&name)) && name != "postmaster.pid" {
            std::fs::copy(&path, &copy)?;
            chown(&copy, Some(owner.uid()), Some(owner.gid()))?;
        }
    }
    Ok(())
}

fn make_dir(path: &Path, owner: &std::fs::Metadata) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    chown(path, Some(owner.uid()), Some(owner.gid()))
}
