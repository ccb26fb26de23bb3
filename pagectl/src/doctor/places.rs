//! The working directory, its settings, and the bucket that they name.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use pageserver::settings::FILE_NAME;
use remote_storage::{RemotePath, RemoteStorage, RemoteUrl, RequestClass, StoreSettings};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::checkup::Finding;
use crate::store::settings;

/// Free space below which a server soon stops taking WAL in.
const FREE: u64 = 1 << 30;
/// How long the bucket may take.
const ANSWER: Duration = Duration::from_secs(15);
/// Above this a read of what is only in the bucket is slow.
const SLOW: Duration = Duration::from_millis(300);

pub(super) fn look(workdir: &Utf8Path) -> anyhow::Result<Vec<Finding>> {
    let workdir = camino::absolute_utf8(workdir)?;
    let dir = existing(&workdir);
    let mut findings = vec![writes(&workdir, dir), space(dir)];
    let store = match settings(&workdir) {
        Ok(Some(settings)) => settings.store(&workdir),
        Ok(None) => {
            let found = format!("no {FILE_NAME} in {workdir}: `pageserver init` writes one with the defaults");
            findings.push(Finding::good("settings", found));
            return Ok(findings);
        }
        Err(error) => Err(format!("{error:#}")),
    };
    match store {
        Ok(store) => {
            findings.push(Finding::good("settings", format!("{}", workdir.join(FILE_NAME))));
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            findings.push(runtime.block_on(bucket(&store)));
        }
        Err(error) => findings.push(Finding::failed("settings", error, "mend it: a pageserver does not start with it")),
    }
    Ok(findings)
}

/// The directory, or the nearest one above it that there is.
fn existing(dir: &Utf8Path) -> &Utf8Path {
    dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Utf8Path::new("/"))
}

/// Whether files can be made there that bypass the page cache. Makes one that has no name and leaves nothing.
fn writes(workdir: &Utf8PathBuf, dir: &Utf8Path) -> Finding {
    const CHECK: &str = "working directory";
    let open = |flags| rustix::fs::open(dir.as_std_path(), OFlags::TMPFILE | OFlags::RDWR | flags, Mode::RUSR);
    match (open(OFlags::DIRECT), open(OFlags::empty())) {
        (Ok(_), _) => Finding::good(CHECK, format!("{workdir}: can be written to, past the page cache as well")),
        (Err(Errno::INVAL), Ok(_)) => Finding::warning(
            CHECK,
            format!("{workdir}: its file system knows no direct I/O"),
            "use another one (ext4, xfs), or io_mode = \"buffered\"; a tmpfs loses everything with the machine's power",
        ),
        (Err(_), Err(Errno::OPNOTSUPP)) => {
            Finding::good(CHECK, format!("{workdir}: whether files bypass the page cache was not tried"))
        }
        (Err(error), _) => Finding::failed(
            CHECK,
            format!("{workdir}: {error}"),
            "give it to the user that runs the pageserver, with mode 0700, or name another with --workdir",
        ),
    }
}

fn space(dir: &Utf8Path) -> Finding {
    const CHECK: &str = "disk";
    let found = match rustix::fs::statvfs(dir.as_std_path()) {
        Ok(found) => found,
        Err(error) => return Finding::failed(CHECK, format!("{dir}: {error}"), "mount it"),
    };
    let (free, total) = (found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize);
    let told = format!("{} of {} free", indicatif::HumanBytes(free), indicatif::HumanBytes(total));
    match free < FREE {
        true => Finding::failed(CHECK, told, "make room: a pageserver takes in no WAL without any"),
        false => Finding::good(CHECK, told),
    }
}

async fn bucket(store: &StoreSettings) -> Finding {
    const CHECK: &str = "bucket";
    // To open it would make it.
    if let RemoteUrl::Directory(dir) = &store.url
        && !dir.is_dir()
    {
        let advice = "if it is on another file system, mount that first: a pageserver makes it where it is not";
        return Finding::warning(CHECK, format!("{}: the directory is not there", store.name), advice);
    }
    // What a second server adds to a live one's bucket does not matter here, and its directory would be made.
    let store = &StoreSettings { scratch: None, ..store.clone() };
    let opened = match RemoteStorage::open(store).await {
        Ok(Some(opened)) => opened,
        Ok(None) => {
            let advice = "set remote_storage: without a bucket, what is stored is lost with this disk";
            return Finding::warning(CHECK, "none (remote_storage = \"none\")", advice);
        }
        Err(error) => return Finding::failed(CHECK, format!("{error}"), "mend remote_storage"),
    };
    let began = env::clock::now();
    let asked = env::clock::timeout(ANSWER, opened.list_dirs(RequestClass::Control, &RemotePath::tenants())).await;
    let took = env::clock::now().saturating_duration_since(began);
    match asked {
        Ok(Ok(tenants)) => {
            let found = format!("{}: {} tenants, listed in {} ms", store.name, tenants.len(), took.as_millis());
            let advice = "put the server near the bucket: a read of what is only there waits for several requests";
            if took > SLOW { Finding::warning(CHECK, found, advice) } else { Finding::good(CHECK, found) }
        }
        Ok(Err(error)) => Finding::failed(CHECK, format!("{error}"), "see that it is reachable, and the credentials"),
        Err(_) => Finding::failed(CHECK, format!("{} does not answer within {ANSWER:?}", store.name), "see why"),
    }
}
