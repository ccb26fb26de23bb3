//! The kernel and its limits, the clock, FUSE, and the Postgres programs that computes run.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pageserver_api::models::virtual_file::IoEngineKind;
use postgres_formats::version::PgVersion;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, getrlimit};

use crate::checkup::Finding;

/// Before this kernel, rings of io_uring count as locked memory (`LimitMEMLOCK`).
const RINGS_ARE_FREE: (u32, u32) = (5, 12);
/// Twice the default of `max_file_descriptors`: there are connections, too.
const FILES: u64 = 8_192;
/// 2026-01-01: a clock before that is not set.
const NOT_SET: Duration = Duration::from_secs(1_767_225_600);

pub(super) fn look() -> Vec<Finding> {
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy().into_owned();
    let kernel = Finding::good("kernel", format!("{release}, {}", system.machine().to_string_lossy()));
    vec![kernel, io_uring(), locked_memory(version_of(&release)), open_files(), clock(), fuse(), postgres()]
}

/// `6.1.0-18-amd64` is 6.1.
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|text| text.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

fn io_uring() -> Finding {
    if virtual_file::io_engine_for_bench() == IoEngineKind::TokioEpollUring {
        return Finding::good("io_uring", "works");
    }
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let advice = match disabled.trim() {
        "" | "0" => {
            "in a container, permit the system calls io_uring_setup, io_uring_enter and io_uring_register; otherwise \
             use Linux 5.10 or later"
        }
        _ => "permit it: sysctl kernel.io_uring_disabled=0",
    };
    Finding::warning("io_uring", "does not work: files are read and written by threads, which takes more CPU", advice)
}

fn locked_memory(kernel: Option<(u32, u32)>) -> Finding {
    let limit = getrlimit(Resource::Memlock).current;
    let told = limit.map_or("unlimited".to_owned(), |bytes| indicatif::HumanBytes(bytes).to_string());
    match kernel {
        Some(kernel) if kernel < RINGS_ARE_FREE && limit.is_some() => Finding::warning(
            "locked memory",
            format!("{told}, and this kernel counts rings of io_uring as such"),
            "LimitMEMLOCK=infinity in the service, or ulimit -l unlimited",
        ),
        _ => Finding::good("locked memory", told),
    }
}

fn open_files() -> Finding {
    match getrlimit(Resource::Nofile).current {
        Some(files) if files < FILES => Finding::warning(
            "open files",
            format!("{files} at most"),
            format!("LimitNOFILE=65536 in the service, or ulimit -n {FILES}: a server keeps layers open"),
        ),
        files => Finding::good("open files", files.map_or("unlimited".to_owned(), |files| format!("{files} at most"))),
    }
}

fn clock() -> Finding {
    let now = env::clock::system_now();
    let told = humantime::format_rfc3339_seconds(now.max(UNIX_EPOCH)).to_string();
    if now < SystemTime::UNIX_EPOCH + NOT_SET {
        let advice = "set it, and keep it set (systemd-timesyncd, chrony): what is kept by age depends on it, and so \
                      do certificates and tokens";
        return Finding::failed("clock", format!("shows {told}"), advice);
    }
    let is_kept = ["/run/systemd/timesync/synchronized", "/run/chrony", "/run/chronyd.pid", "/run/ntpd.pid"];
    match is_kept.iter().any(|path| std::path::Path::new(path).exists()) {
        true => Finding::good("clock", format!("{told}, kept by a time service")),
        false => Finding::good("clock", format!("{told}; no time service was found that keeps it right")),
    }
}

/// Computes have their files by FUSE, unless they are made with `--copy`.
fn fuse() -> Finding {
    let copy = "; computes made with --copy do without";
    match rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => Finding::warning(
            "FUSE",
            "/dev/fuse is not there",
            format!("load the module (modprobe fuse), or give the container the device (--device /dev/fuse){copy}"),
        ),
        Err(error) => Finding::warning(
            "FUSE",
            format!("/dev/fuse cannot be opened: {error}"),
            format!("chmod 0666 /dev/fuse, as udev does{copy}"),
        ),
        Ok(_) if !rustix::process::geteuid().is_root() && in_path("fusermount3").is_none() => Finding::warning(
            "FUSE",
            "/dev/fuse is there, but fusermount3 is not, which mounts for users other than root",
            format!("install the package fuse3{copy}"),
        ),
        Ok(_) => Finding::good("FUSE", "/dev/fuse can be opened"),
    }
}

fn in_path(program: &str) -> Option<std::path::PathBuf> {
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&dirs).map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// The programs are needed where computes run; a pageserver needs none.
fn postgres() -> Finding {
    let found: Vec<String> = PgVersion::ALL
        .map(PgVersion::major)
        .into_iter()
        .filter_map(|major| Some(format!("{major} ({})", compute::lifecycle::find_server(major, None).ok()?.display())))
        .collect();
    if found.is_empty() {
        return Finding::warning(
            "Postgres",
            "none of 14 to 18",
            "install the version of your databases where computes are to run (Debian: postgresql-15); the pageserver \
             itself needs none",
        );
    }
    Finding::good("Postgres", found.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkup::State;

    #[test]
    fn kernels_have_versions() {
        assert_eq!(version_of("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version_of("5.10"), Some((5, 10)));
        assert_eq!(version_of("unknown"), None);
    }

    #[test]
    fn every_finding_that_is_not_good_says_what_to_do() {
        for finding in look() {
            assert_eq!(finding.state == State::Good, finding.advice.is_empty(), "{finding:?}");
        }
    }
}
