//! What a cache of packed weights knows a model by.

use std::{fmt, time::SystemTime};

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

/// What tells one model's weights from another's, wherever the folder lies: for each file its length, the time of its
/// last change, its header, and some bytes of each tensor.
///
/// Not a digest of everything, which would read all the bytes that a cache is there to leave unread. Each part covers
/// what the others miss: files in archives and images often carry one invented time, and versions of one model have
/// the same header and length, but training moves every tensor; and editing a few values in place moves the time.
/// A copy that keeps no times is another model here, and is packed once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ModelKey(u128);

impl fmt::Display for ModelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Collects what a [`ModelKey`] is made of.
pub(crate) struct KeyMaker(twox_hash::xxhash3_128::Hasher);

impl KeyMaker {
    pub(crate) fn new() -> Self {
        Self(XxHash3_128::new())
    }

    /// Bytes of any number; where one piece ends counts.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.write(&(bytes.len() as u64).to_le_bytes());
        self.0.write(bytes);
    }

    /// A moment; one that the system does not know counts as well.
    pub(crate) fn time(&mut self, time: Option<SystemTime>) {
        let since = time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        self.bytes(&since.map_or(0, |since| since.as_nanos()).to_le_bytes());
    }

    pub(crate) fn finish(&self) -> ModelKey {
        ModelKey(self.0.finish_128())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(fill: impl Fn(&mut KeyMaker)) -> String {
        let mut key = KeyMaker::new();
        fill(&mut key);
        key.finish().to_string()
    }

    #[test]
    fn everything_counts() {
        let epoch = SystemTime::UNIX_EPOCH;
        let keys = [
            key(|_| ()),
            key(|key| key.bytes(b"")),
            key(|key| ["ab", "c"].into_iter().for_each(|piece| key.bytes(piece.as_bytes()))),
            key(|key| ["a", "bc"].into_iter().for_each(|piece| key.bytes(piece.as_bytes()))),
            key(|key| key.time(None)),
            key(|key| key.time(Some(epoch + Duration::from_nanos(1)))),
        ];
        for (i, one) in keys.iter().enumerate() {
            assert_eq!(one.len(), 32);
            assert!(!keys[..i].contains(one), "{i}");
        }
    }
}
