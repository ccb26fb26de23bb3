//! What the machine has for this process.

use std::fs;
use std::path::Path;

/// Memory that this process may use, in bytes: that of the machine, or what its control group (cgroup v2), or one above
/// that, permits. `u64::MAX` if the system does not say.
pub(super) fn memory() -> u64 {
    let total = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_of(&text)).unwrap_or(u64::MAX);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    total.min(permitted(&groups, Path::new("/sys/fs/cgroup")))
}

/// The machine's memory by `/proc/meminfo`.
fn total_of(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// What the control group that `/proc/self/cgroup` names, below `root`, and those above it permit.
fn permitted(groups: &str, root: &Path) -> u64 {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let Some(own) = own else { return u64::MAX };
    let limits = Path::new(own).ancestors().filter_map(|group| {
        // "max" where there is none.
        fs::read_to_string(root.join(group).join("memory.max")).ok()?.trim().parse().ok()
    });
    limits.min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_as_much_as_it_says() {
        assert_eq!(total_of("MemTotal:       24689132 kB\nMemFree: 1 kB\n"), Some(24_689_132 << 10));
        assert_eq!(total_of("MemFree: 1 kB\n"), None);
        assert!((64 << 20..u64::MAX).contains(&memory()), "{}", memory());
    }

    #[test]
    fn the_least_of_all_groups_above_counts() {
        let root = camino_tempfile::tempdir().unwrap();
        let group = |path: &str, max: &str| {
            let dir = root.path().join(path);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("memory.max"), max).unwrap();
        };
        let found = |own: &str| permitted(own, root.path().as_std_path());
        group("a/b/c", "max\n");
        group("a/b", "5000\n");
        group("a", "7000\n");
        assert_eq!(found("0::/a/b/c\n"), 5000);
        assert_eq!(found("0::/a\n"), 7000);
        group("", "3000");
        assert_eq!(found("12:cpu:/x\n0::/a/b/c\n"), 3000);
        assert_eq!(found("0::/\n"), 3000);
        assert_eq!(found("4:memory:/a\n"), u64::MAX, "an older kind of groups");
    }
}
