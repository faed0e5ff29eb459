//! Memory that this process holds.

/// Bytes of this process that lie in memory, as the system counts them: pages of files that it has mapped included.
/// `None` where the system does not tell.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    // `VmRSS:     12345 kB`; Linux alone has this file.
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn what_was_written_to_is_resident() {
        let before = resident_bytes().unwrap();
        let written = std::hint::black_box(vec![1_u8; 256 << 20]);
        let grown = resident_bytes().unwrap().saturating_sub(before);
        assert!(grown > 200 << 20, "{grown} bytes more after {} were written", written.len());
    }
}
