//! The key by which a cache of packed weights knows a model.

use std::{fmt, time::SystemTime};

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

/// Tells one model's weights from another's, wherever the folder lies: for each file its length, its modification time,
/// its header, and some bytes of each tensor.
///
/// It is not a digest of all bytes, because a cache exists so that they need not be read. Each part covers what the
/// others miss. Files from archives and images often share one invented time. Versions of one model have the same
/// header and length, but training moves every tensor. Editing a few values in place changes the time. A copy that does
/// not keep times counts as another model, and is packed once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ModelKey(u128);

impl fmt::Display for ModelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Collects the parts of a [`ModelKey`].
pub(crate) struct KeyMaker(twox_hash::xxhash3_128::Hasher);

impl KeyMaker {
    pub(crate) fn new() -> Self {
        Self(XxHash3_128::new())
    }

    /// Adds any number of bytes; where one piece ends makes a difference.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.write(&(bytes.len() as u64).to_le_bytes());
        self.0.write(bytes);
    }

    /// Adds a time; a time that the system does not know counts as well.
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
