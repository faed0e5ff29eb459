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
/// control group leaves. `None` where the system does not tell.
pub(super) fn available_bytes() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let spare = available_in(&read("/proc/meminfo")?)?;
    let group = read("/sys/fs/cgroup/memory.max").zip(read("/sys/fs/cgroup/memory.current"));
    let left = group.and_then(|(most, current)| left_in_group(&most, &current));
    Some(left.map_or(spare, |left| left.min(spare)))
}

/// `MemAvailable:   12345 kB`.
fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// Files of a control group; `max` for one without a limit.
fn left_in_group(most: &str, current: &str) -> Option<u64> {
    let [most, current] = [most, current].map(|bytes| bytes.trim().parse::<u64>().ok());
    Some(most?.saturating_sub(current?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_what_the_system_or_the_group_says() {
        let meminfo = "MemTotal:       16000000 kB\nMemFree:  1 kB\nMemAvailable:    8000 kB\n";
        assert_eq!(available_in(meminfo), Some(8000 << 10));
        assert_eq!(available_in("MemTotal: 1 kB\n"), None);
        assert_eq!(left_in_group("1000\n", "400\n"), Some(600));
        assert_eq!(left_in_group("1000\n", "1400\n"), Some(0));
        assert_eq!(left_in_group("max\n", "400\n"), None);
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
