//! What host memory there is for pages: the machine's and the control group's.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Version 1 writes "no limit" as a number near the end of 64 bits.
const UNLIMITED: u64 = 1 << 60;

/// Bytes that the host could give.
#[derive(Debug, PartialEq, Eq)]
pub struct Host {
    /// `MemTotal` of the machine.
    pub total: u64,
    /// `MemAvailable` of the machine.
    pub available: u64,
    /// What the tightest control group above this process has left, if one has a limit.
    pub group: Option<u64>,
}

impl Host {
    /// What could be pinned now.
    pub fn room(&self) -> u64 {
        self.group.map_or(self.available, |group| group.min(self.available))
    }
}

/// Reads both.
pub fn host() -> Result<Host, String> {
    let text = read_to_string("/proc/meminfo").map_err(|error| format!("/proc/meminfo: {error}"))?;
    let field = |name: &str| meminfo(&text, name).ok_or(format!("/proc/meminfo names no {name}"));
    let group = read_to_string("/proc/self/cgroup").ok();
    Ok(Host {
        total: field("MemTotal")?,
        available: field("MemAvailable")?,
        group: group.and_then(|text| group_room(&text, Path::new("/sys/fs/cgroup"))),
    })
}

fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The least that any group on the way to the root has left; version 2 and version 1.
fn group_room(groups: &str, root: &Path) -> Option<u64> {
    let mut least = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (base, limit, used) = if number == "0" && controllers.is_empty() {
            (root.to_path_buf(), "memory.max", "memory.current")
        } else if controllers.split(',').any(|name| name == "memory") {
            (root.join("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes")
        } else {
            continue;
        };
        for folder in upwards(&base, path) {
            let number = |file: &str| read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
            let limit = number(limit).filter(|limit| *limit < UNLIMITED);
            if let (Some(limit), Some(used)) = (limit, number(used)) {
                let left = limit.saturating_sub(used);
                least = Some(least.map_or(left, |least: u64| least.min(left)));
            }
        }
    }
    least
}

/// The folder of a group and all above it, down to `base` itself.
fn upwards(base: &Path, path: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let mut relative = Path::new(path.trim_start_matches('/'));
    loop {
        folders.push(base.join(relative));
        match relative.parent() {
            Some(parent) if !relative.as_os_str().is_empty() => relative = parent,
            _ => return folders,
        }
    }
}

/// Bytes in words.
pub fn size(bytes: u64) -> String {
    let units = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let tenths = |unit: u64| (u128::from(bytes) * 10 + u128::from(unit) / 2) / u128::from(unit);
    match units.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{}.{} {name}", tenths(unit) / 10, tenths(unit) % 10),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_by_whole_names() {
        let text = "MemTotal:       1000 kB\nMemTotalX:  7 kB\nMemAvailable:  20 kB\n";
        assert_eq!(meminfo(text, "MemTotal"), Some(1_024_000));
        assert_eq!(meminfo(text, "MemAvailable"), Some(20_480));
        assert_eq!(meminfo(text, "MemFree"), None);
    }

    #[test]
    fn the_tightest_group_above_counts() {
        let root = std::env::temp_dir().join(format!("vgmem-cli-{}-cgroup", std::process::id()));
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        let put = |name: &str, value: &str| std::fs::write(root.join(name), value).unwrap();
        put("a/memory.max", "1000\n");
        put("a/memory.current", "400\n");
        put("a/b/memory.max", "max\n");
        put("a/b/memory.current", "300\n");
        assert_eq!(group_room("0::/a/b\n", &root), Some(600));
        assert_eq!(group_room("0::/\n", &root), None);
        put("a/b/memory.max", "350\n");
        assert_eq!(group_room("0::/a/b\n", &root), Some(50));
        std::fs::create_dir_all(root.join("memory/c")).unwrap();
        put("memory/c/memory.limit_in_bytes", "9223372036854771712\n");
        put("memory/c/memory.usage_in_bytes", "100\n");
        assert_eq!(group_room("4:cpu,memory:/c\n", &root), None);
        put("memory/c/memory.limit_in_bytes", "90\n");
        assert_eq!(group_room("4:cpu,memory:/c\n", &root), Some(0));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_group_lowers_the_room() {
        let host = Host { total: 100, available: 50, group: Some(20) };
        assert_eq!(host.room(), 20);
        assert_eq!(Host { group: None, ..host }.room(), 50);
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(size(12), "12 bytes");
        assert_eq!(size(1 << 30), "1.0 GiB");
        assert_eq!(size((3 << 29) + 1), "1.5 GiB");
        assert_eq!(size(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn this_machine_has_memory() {
        let host = host().unwrap();
        assert!(host.available > 0 && host.available <= host.total);
    }
}
