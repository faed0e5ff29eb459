//! Memory that this process holds, and that it may still take.

/// Bytes of this process that lie in memory, as the system counts them: pages of files that it has mapped included.
/// `None` where the system does not tell.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    // `VmRSS:     12345 kB`; Linux alone has this file.
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// Bytes that this process can still take without anybody having to go for it: what the system has to spare, and what its
/// control group leaves; pages of files are given back for the asking. `None` where the system does not tell.
pub(crate) fn available_bytes() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let spare = available_in(&read("/proc/meminfo")?)?;
    let of_group = |file: &str| read(&format!("/sys/fs/cgroup/memory.{file}")).unwrap_or_default();
    let left = left_in_group(&of_group("max"), &of_group("current"), &of_group("stat"));
    Some(left.map_or(spare, |left| left.min(spare)))
}

/// `MemAvailable:   12345 kB`.
fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// Files of a control group; `most` is `max` for one without a limit, and `stat` has a line like `active_file 12345` for each
/// kind of memory that `current` is made of.
fn left_in_group(most: &str, current: &str, stat: &str) -> Option<u64> {
    let bytes = |text: &str| text.trim().parse::<u64>().ok();
    let of_file = |line: &str| match line.split_once(' ')? {
        ("active_file" | "inactive_file", of_file) => bytes(of_file),
        _ => None,
    };
    let of_files: u64 = stat.lines().filter_map(of_file).sum();
    Some(bytes(most)?.saturating_sub(bytes(current)?.saturating_sub(of_files)))
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
        for (most, current, stat, left) in [
            ("1000\n", "400\n", "", Some(600)),
            ("1000\n", "1400\n", "", Some(0)),
            ("1000\n", "400\n", stat, Some(850)),
            ("1000\n", "1400\n", stat, Some(0)),
            ("1000\n", "100\n", stat, Some(1000)),
            ("max\n", "400\n", stat, None),
            ("", "", "", None),
        ] {
            assert_eq!(left_in_group(most, current, stat), left, "{most:?} {current:?} {stat:?}");
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
