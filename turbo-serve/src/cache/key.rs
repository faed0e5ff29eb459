//! The keys of answers.
//!
//! In: everything that the rows of one input depend on. Out: a [`Key`], the 256 bits of SHA-256 over an unambiguous
//! encoding of that. The ids themselves are not kept, so two inputs with one key would get one answer. Among `n`
//! inputs, the probability that any two have the same key by chance is below `n² / 2^257`: for 2^64 inputs, a thousand
//! million a second for five hundred years, that is 2^-129. Forcing it takes a collision of SHA-256, of which none is
//! known.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sha2::{Digest, Sha256};

/// Names the answer to one input of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Key {
    hash: [u8; 32],
    lasting: bool,
}

impl Key {
    /// Its bits.
    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.hash
    }

    /// Whether it means the same in other processes.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        self.lasting
    }
}

/// One model on one kind of device: equal ids have equal answers within a scope, and only there.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The state of the hash after the part that all of its keys share.
    begun: Sha256,
    lasting: bool,
}

impl Scope {
    /// The scope of all models with this `fingerprint`, in any process.
    #[must_use]
    pub fn of(fingerprint: &str) -> Self {
        Self { lasting: true, ..Self::begin(b"fingerprint", fingerprint.as_bytes()) }
    }

    /// A scope unlike any other, for a model without a fingerprint. It ends with the process.
    #[must_use]
    pub fn alone() -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        Self::begin(b"alone", &MADE.fetch_add(1, Relaxed).to_le_bytes())
    }

    fn begin(kind: &[u8], what: &[u8]) -> Self {
        let mut scope = Self { begun: Sha256::new(), lasting: false };
        [kind, what].into_iter().for_each(|piece| add(&mut scope.begun, piece));
        scope
    }

    /// The key of rows of the kind `rows` over `lists`. All callers must pass the same number of lists, in the same
    /// order.
    #[must_use]
    pub fn key(&self, rows: &str, lists: &[&[u32]]) -> Key {
        let mut all = self.begun.clone();
        add(&mut all, rows.as_bytes());
        for list in lists {
            all.update((list.len() as u64).to_le_bytes());
            list.iter().for_each(|id| all.update(id.to_le_bytes()));
        }
        Key { hash: all.finalize().into(), lasting: self.lasting }
    }
}

/// Hashes a piece, preceded by its length: so the hash depends on where the piece ends.
fn add(to: &mut Sha256, piece: &[u8]) {
    to.update((piece.len() as u64).to_le_bytes());
    to.update(piece);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_counts() {
        let (a, b) = (Scope::of("a"), Scope::of("b"));
        let keys = [
            a.key("pooled", &[&[1, 2], &[]]),
            b.key("pooled", &[&[1, 2], &[]]),
            a.key("tokens", &[&[1, 2], &[]]),
            a.key("pooled", &[&[1], &[2]]),
            a.key("pooled", &[&[], &[1, 2]]),
            a.key("pooled", &[&[2, 1], &[]]),
            a.key("pooled", &[&[1, 2, 0], &[]]),
            a.key("pooled", &[&[258], &[]]),
            Scope::alone().key("pooled", &[&[1, 2], &[]]),
            Scope::alone().key("pooled", &[&[1, 2], &[]]),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key), "{i}");
        }
    }

    #[test]
    fn the_same_is_the_same() {
        let key = || Scope::of("a").key("pooled", &[&[1, 2], &[0]]);
        assert_eq!(key(), key());
        let alone = Scope::alone();
        assert_eq!(alone.key("pooled", &[&[1]]), alone.clone().key("pooled", &[&[1]]));
        assert_eq!((key().is_lasting(), alone.key("pooled", &[]).is_lasting()), (true, false));
    }
}
