//! The memory that this process holds, and how much more it may take.

use std::{fs, path::Path};

/// Resident bytes of this process, as the system counts them: pages of mapped files included. `None` where the system
/// does not report them.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    // `VmRSS:     12345 kB`; Linux alone has this file.
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// Bytes that this process can still take: the lesser of what the system has available and what its control groups
/// leave. Cached pages of files count as free. `None` where the system does not report it.
pub(crate) fn available_bytes() -> Option<u64> {
    let spare = available_in(&read(Path::new("/proc/meminfo"))?)?;
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let left = left_in_groups(Path::new("/sys/fs/cgroup"), &groups);
    Some(left.map_or(spare, |left| left.min(spare)))
}

fn read(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok()
}

/// `MemAvailable:   12345 kB`.
fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// Names of the files of a control group.
struct Names {
    limit: &'static str,
    used: &'static str,
    /// Kinds of memory in `memory.stat` that the kernel can reclaim: cached pages of files.
    of_files: [&'static str; 2],
}

const V2: Names =
    Names { limit: "memory.max", used: "memory.current", of_files: ["active_file", "inactive_file"] };
/// The kinds with `total_` include the groups below, as limit and use do.
const V1: Names = Names {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    of_files: ["total_active_file", "total_inactive_file"],
};

/// The least number of bytes left in any of the control groups that `groups`, the text of `/proc/self/cgroup`, names,
/// and in those around them; `root` is where they are mounted. `None` where none has a limit.
fn left_in_groups(root: &Path, groups: &str) -> Option<u64> {
    groups.lines().filter_map(|line| left_around(root, line)).min()
}

/// The same for one line, `0::/path` (v2) or `4:memory:/path` (v1). In a container the path may be the host's; of that
/// path only the container's own group is mounted, as if it were the outermost.
fn left_around(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let (mount, names) = match controllers {
        "" => (root.to_owned(), V2),
        _ if controllers.split(',').any(|controller| controller == "memory") => (root.join("memory"), V1),
        _ => return None,
    };
    let group = mount.join(path.trim_start_matches('/'));
    let around = group.ancestors().take_while(|group| group.starts_with(&mount));
    around.filter_map(|group| left_in_group(group, &names)).min()
}

fn left_in_group(group: &Path, names: &Names) -> Option<u64> {
    let stat = read(&group.join("memory.stat")).unwrap_or_default();
    left_of(&read(&group.join(names.limit))?, &read(&group.join(names.used))?, &stat, &names.of_files)
}

/// Bytes left according to the texts of a control group's files. `limit` is `max` for a v2 group without a limit;
/// `stat` has a line like `active_file 12345` for each kind of memory in `used`.
fn left_of(limit: &str, used: &str, stat: &str, of_files: &[&str]) -> Option<u64> {
    let bytes = |text: &str| text.trim().parse::<u64>().ok();
    let of_file = |line: &str| match line.split_once(' ')? {
        (kind, of_file) if of_files.contains(&kind) => bytes(of_file),
        _ => None,
    };
    let of_files: u64 = stat.lines().filter_map(of_file).sum();
    Some(bytes(limit)?.saturating_sub(bytes(used)?.saturating_sub(of_files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_what_the_system_or_the_group_says() {
        let meminfo = "MemTotal:       16000000 kB\nMemFree:  1 kB\nMemAvailable:    8000 kB\n";
        assert_eq!(available_in(meminfo), Some(8000 << 10));
        assert_eq!(available_in("MemTotal: 1 kB\n"), None);
        let stat =
            "anon 150\nfile 300\nshmem 50\ninactive_file 190\nactive_file 60\nworkingset_activate_file 7\n";
        for (limit, used, stat, left) in [
            ("1000\n", "400\n", "", Some(600)),
            ("1000\n", "1400\n", "", Some(0)),
            ("1000\n", "400\n", stat, Some(850)),
            ("1000\n", "1400\n", stat, Some(0)),
            ("1000\n", "100\n", stat, Some(1000)),
            ("max\n", "400\n", stat, None),
            ("", "", "", None),
        ] {
            assert_eq!(left_of(limit, used, stat, &V2.of_files), left, "{limit:?} {used:?} {stat:?}");
        }
    }

    #[test]
    fn the_narrowest_control_group_counts_wherever_it_is() {
        const V1_STAT: &str = "inactive_file 1\ntotal_inactive_file 30\ntotal_active_file 20\n";
        let in_v1 = "9:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n";
        for (groups, files, left) in [
            ("0::/a/b\n", vec![("a/b", &V2, "1000", "400", "inactive_file 50\n")], Some(650)),
            ("0::/a/b\n", vec![("a/b", &V2, "1000", "400", ""), ("a", &V2, "900", "700", "")], Some(200)),
            ("0::/a/b\n", vec![("a/b", &V2, "max", "400", ""), ("a", &V2, "900", "700", "")], Some(200)),
            ("0::/a/b\n", vec![("", &V2, "1000", "400", "")], Some(600)),
            ("0::/\n", vec![("", &V2, "1000", "400", ""), ("a", &V2, "1", "1", "")], Some(600)),
            ("0::/../a\n", vec![("", &V2, "1000", "400", "")], Some(600)),
            (in_v1, vec![("memory/a/b", &V1, "1000", "400", V1_STAT)], Some(650)),
            (in_v1, vec![("memory", &V1, "1000", "900", ""), ("memory/a", &V1, "500", "0", "")], Some(100)),
            (in_v1, vec![("memory/c", &V1, "1000", "400", "")], None),
            ("0::/a\n", vec![("memory/a", &V1, "1000", "400", "")], None),
            ("", vec![("", &V2, "1000", "400", "")], None),
            ("0::/a\n", vec![], None),
        ] {
            let root = tempfile::tempdir().unwrap();
            for (group, names, limit, used, stat) in files {
                let group = root.path().join(group);
                fs::create_dir_all(&group).unwrap();
                for (name, text) in [(names.limit, limit), (names.used, used), ("memory.stat", stat)] {
                    fs::write(group.join(name), text).unwrap();
                }
            }
            assert_eq!(left_in_groups(root.path(), groups), left, "{groups:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn something_is_left() {
        assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_was_written_to_is_resident() {
        let before = resident_bytes().unwrap();
        let written = std::hint::black_box(vec![1_u8; 256 << 20]);
        let grown = resident_bytes().unwrap().saturating_sub(before);
        assert!(grown > 200 << 20, "{grown} bytes more after {} were written", written.len());
    }
}
