//! Lists the files of a directory by name from one on, as object stores do: whoever asks for a few of very many waits
//! for reading their names, and not for looking at each file.

use std::io;

use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectMeta, Result};

use super::root::{blocking, failed};

/// So many files are looked at at once.
const CHUNK: usize = 256;
/// Begins the part of a name that only unfinished uploads have.
const STAGED: char = '#';

/// The objects below `prefix` whose names sort after `offset`, in their order.
pub(super) fn sorted_after(
    files: LocalFileSystem,
    prefix: Path,
    offset: Path,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let lister = files.clone();
    let names = stream::once(blocking(move || {
        let mut names = Vec::new();
        add_below(&lister, &prefix, &offset, &mut names)?;
        names.sort_unstable();
        Ok(names)
    }));
    let chunks = names.map_ok(|names| stream::iter(names).chunks(CHUNK).map(Ok));
    let looked_at = chunks.try_flatten().and_then(move |chunk| {
        let files = files.clone();
        blocking(move || {
            let found = chunk.into_iter().filter_map(|path| look(&files, path).transpose());
            found.collect::<Result<Vec<ObjectMeta>>>()
        })
    });
    looked_at.map_ok(|found| stream::iter(found).map(Ok)).try_flatten().boxed()
}

/// Adds the objects below a directory, which may be gone.
fn add_below(files: &LocalFileSystem, dir: &Path, offset: &Path, names: &mut Vec<Path>) -> Result<()> {
    let place = files.path_to_filesystem(dir)?;
    let entries = match std::fs::read_dir(&place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.contains(STAGED)) else { continue };
        let path = dir.clone().join(name);
        let kind = entry.file_type().map_err(failed)?;
        let is_dir = || std::fs::metadata(entry.path()).is_ok_and(|found| found.is_dir());
        match kind.is_dir() || kind.is_symlink() && is_dir() {
            true if may_hold_after(&path, offset) => add_below(files, &path, offset, names)?,
            false if path > *offset => names.push(path),
            _ => {}
        }
    }
    Ok(())
}

/// Whether the path of a file in a directory can sort after `offset`. Paths are compared as text, in which `a-b` comes
/// before `a/b`.
fn may_hold_after(dir: &Path, offset: &Path) -> bool {
    let within = format!("{dir}/");
    within.as_str() > offset.as_ref() || offset.as_ref().starts_with(&within)
}

/// An object; `None` if it is gone since its name was read.
fn look(files: &LocalFileSystem, location: Path) -> Result<Option<ObjectMeta>> {
    let found = match std::fs::metadata(files.path_to_filesystem(&location)?) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found.map_err(failed)?,
    };
    let last_modified = found.modified().map_err(failed)?.into();
    let is_file = found.is_file();
    Ok(is_file.then_some(ObjectMeta { location, last_modified, size: found.len(), e_tag: None, version: None }))
}

#[cfg(test)]
mod tests {
    use object_store::{ObjectStore, ObjectStoreExt, PutPayload};

    use super::*;

    fn after(files: &LocalFileSystem, prefix: &str, offset: &str) -> BoxStream<'static, Result<ObjectMeta>> {
        sorted_after(files.clone(), Path::from(prefix), Path::from(offset))
    }

    #[tokio::test]
    async fn what_sorts_after_a_name_comes_in_order_with_its_size() {
        let root = camino_tempfile::tempdir().unwrap();
        let files = LocalFileSystem::new_with_prefix(root.path()).unwrap();
        let names =
            (0..600).map(|number| format!("t/a/{number:04}")).chain(["t/a/b/c", "t/a-b/c", "t/z", "u"].map(Into::into));
        for (at, name) in names.enumerate() {
            files.put(&Path::from(name), PutPayload::from(vec![1; at % 7])).await.unwrap();
        }
        // An upload that did not end.
        std::fs::write(root.path().join("t/a/0599#1"), "unfinished").unwrap();
        let offsets = ["t/a/", "t/a/0000", "t/a/0300x", "t/a/0599", "t/a/b", "t/a/b/c", "t/a-b", "t/z", "s", "u"];
        for (prefix, offset) in
            ["t", "t/a", "t/a/b", "nothing"].iter().flat_map(|it| offsets.map(|offset| (*it, offset)))
        {
            let found: Vec<ObjectMeta> = after(&files, prefix, offset).try_collect().await.unwrap();
            let all: Vec<ObjectMeta> = files.list(Some(&Path::from(prefix))).try_collect().await.unwrap();
            let mut expected: Vec<ObjectMeta> =
                all.into_iter().filter(|object| object.location > Path::from(offset)).collect();
            expected.sort_unstable_by(|one, other| one.location.cmp(&other.location));
            let told = |object: &ObjectMeta| (object.location.clone(), object.size, object.last_modified);
            let of = |objects: &[ObjectMeta]| objects.iter().map(told).collect::<Vec<_>>();
            assert_eq!(of(&found), of(&expected), "{prefix} after {offset}");
        }
    }

    #[tokio::test]
    async fn a_file_that_goes_meanwhile_is_left_out() {
        let root = camino_tempfile::tempdir().unwrap();
        let files = LocalFileSystem::new_with_prefix(root.path()).unwrap();
        for number in 0..=CHUNK {
            files.put(&Path::from(format!("t/{number:04}")), PutPayload::from_static(b"1")).await.unwrap();
        }
        let mut listed = after(&files, "t", "t/");
        assert!(listed.try_next().await.unwrap().is_some());
        std::fs::remove_file(root.path().join(format!("t/{CHUNK:04}"))).unwrap();
        assert_eq!(listed.try_collect::<Vec<_>>().await.unwrap().len(), CHUNK - 1);
    }
}
