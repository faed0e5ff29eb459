//! Properties of a processor, beyond its instructions, that kernels need.

#[cfg(target_arch = "x86_64")]
use std::{
    arch::x86_64::{__cpuid, CpuidResult},
    sync::LazyLock,
};

/// Whether Intel made it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_intel() -> bool {
    // asking the processor takes long where a hypervisor answers
    static INTEL: LazyLock<bool> = LazyLock::new(|| vendor() == *b"GenuineIntel");
    *INTEL
}

/// Whether Intel made it.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn is_intel() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
fn vendor() -> [u8; 12] {
    let CpuidResult { ebx, ecx, edx, .. } = __cpuid(0);
    let mut name = [0; 12];
    name.chunks_exact_mut(4)
        .zip([ebx, edx, ecx])
        .for_each(|(to, part)| to.copy_from_slice(&part.to_le_bytes()));
    name
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_vendor_has_a_name() {
        assert!(vendor().is_ascii() && !vendor().contains(&0), "{:?}", vendor());
    }

    /// Products are cut by it, and nothing else would reveal that it is read wrongly.
    #[cfg(target_os = "linux")]
    #[test]
    fn it_is_who_the_system_says() {
        let Ok(text) = std::fs::read_to_string("/proc/cpuinfo") else {
            println!("skipped: the system does not tell");
            return;
        };
        let line = text.lines().find(|line| line.starts_with("vendor_id")).unwrap_or_default();
        assert_eq!(line.ends_with("GenuineIntel"), is_intel(), "{line}");
    }
}
