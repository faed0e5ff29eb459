//! An answer as bytes, for places that may damage it: `[checksum; 16] [f32, little endian; n]`.
//!
//! The checksum is over key and values, so that a record under a wrong key counts as damaged, too. It detects
//! accidents, not attacks: processes that can write to such a place are trusted, as is the model's folder.

use twox_hash::xxhash3_128::Hasher;

use super::{Key, memory::Values};

const CHECKSUM: usize = size_of::<u128>();

/// A key to look up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub key: Key,
    /// Number of values of its answer.
    pub len: usize,
}

/// The bytes are not those that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an answer has another checksum than when it was written")]
pub(super) struct Damaged;

/// The record of `values` under `key`.
pub(super) fn encode(key: &Key, values: &[f32]) -> Vec<u8> {
    let mut record = Vec::with_capacity(CHECKSUM + size_of_val(values));
    record.resize(CHECKSUM, 0);
    values.iter().for_each(|value| record.extend(value.to_le_bytes()));
    let checksum = checksum(key, &record[CHECKSUM..]);
    record[..CHECKSUM].copy_from_slice(&checksum);
    record
}

/// The values of `record`; `None` if their number is not the wanted one.
pub(super) fn decode(wanted: &Wanted, record: &[u8]) -> Result<Option<Values>, Damaged> {
    let (claimed, values) = record.split_at_checked(CHECKSUM).ok_or(Damaged)?;
    let (values, rest) = values.as_chunks();
    if claimed != checksum(&wanted.key, &record[CHECKSUM..]) || !rest.is_empty() {
        return Err(Damaged);
    }
    Ok((values.len() == wanted.len).then(|| values.iter().map(|value| f32::from_le_bytes(*value)).collect()))
}

fn checksum(key: &Key, values: &[u8]) -> [u8; CHECKSUM] {
    let mut hasher = Hasher::new();
    hasher.write(key.bytes());
    hasher.write(values);
    hasher.finish_128().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Scope;

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let keys = [1, 2].map(|id| Scope::of("test").key("pooled", &[&[id]]));
        let values = [1.5, f32::NAN, -0.0, f32::MIN_POSITIVE / 2.0];
        let wanted = Wanted { key: keys[0], len: values.len() };
        let record = encode(&keys[0], &values);
        let read = decode(&wanted, &record).unwrap().unwrap();
        assert_eq!(read.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), values.map(f32::to_bits));
        assert_eq!(decode(&Wanted { len: 3, ..wanted }, &record), Ok(None));
        assert_eq!(decode(&Wanted { key: keys[1], ..wanted }, &record), Err(Damaged));
        for len in 0..record.len() {
            assert_eq!(decode(&wanted, &record[..len]), Err(Damaged), "cut to {len}");
        }
        for bit in 0..record.len() * 8 {
            let mut damaged = record.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&wanted, &damaged), Err(Damaged), "bit {bit}");
        }
        assert_eq!(decode(&Wanted { len: 0, ..wanted }, &encode(&keys[0], &[])), Ok(Some([].into())));
    }
}
