//! The instruction by which a model judges pairs, and the tokenizer that puts it before them.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use crate::engine::{EngineError, Tokenize};

/// The instruction by which pairs are judged, in place of the model's own. Cheap to clone: the parts of a request share
/// its words, and the tokenizer that is made for it once.
#[derive(Clone)]
pub struct Instruction(Arc<Words>);

struct Words {
    text: String,
    told: OnceLock<Told>,
}

struct Told {
    /// The tokenizer without the instruction.
    of: Arc<dyn Tokenize>,
    /// The tokenizer with it.
    made: Result<Arc<dyn Tokenize>, EngineError>,
}

impl Instruction {
    /// The words.
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// `tokenizer` with this instruction. `make` makes it, once unless the instruction is used with other models, too.
    pub(super) fn told_to(
        &self,
        tokenizer: &Arc<dyn Tokenize>,
        make: impl Fn() -> Result<Arc<dyn Tokenize>, EngineError>,
    ) -> Result<Arc<dyn Tokenize>, EngineError> {
        let told = self.0.told.get_or_init(|| Told { of: Arc::clone(tokenizer), made: make() });
        if Arc::ptr_eq(&told.of, tokenizer) { told.made.clone() } else { make() }
    }
}

impl From<String> for Instruction {
    fn from(text: String) -> Self {
        Self(Arc::new(Words { text, told: OnceLock::new() }))
    }
}

impl fmt::Debug for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Instruction").field(&self.as_str()).finish()
    }
}

impl PartialEq for Instruction {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Instruction {}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use turbo_models::{Encoding, SpecialTokens, Text, Truncation};

    use super::*;
    use crate::engine::{Encoded, Extent, TokenizeError};

    struct Silent;

    impl Tokenize for Silent {
        fn encode(&self, _: Text<'_>, _: Truncation) -> Result<Encoded, TokenizeError> {
            unreachable!("nothing is encoded")
        }

        fn tokens(&self, _: Text<'_>, _: Extent) -> Result<Vec<Encoding>, TokenizeError> {
            unreachable!("nothing is tokenized")
        }

        fn decode(&self, _: &[u32], _: SpecialTokens) -> Result<String, TokenizeError> {
            unreachable!("nothing is decoded")
        }

        fn limited_to(&self, _: usize) -> Arc<dyn Tokenize> {
            unreachable!("there is no limit")
        }
    }

    #[test]
    fn a_tokenizer_is_told_once_by_all_clones() {
        let [one, other] = [(); 2].map(|()| Arc::new(Silent) as Arc<dyn Tokenize>);
        let (instruction, made) = (Instruction::from("be good".to_owned()), Cell::new(0));
        let make = || {
            made.set(made.get() + 1);
            Err(EngineError::NoTokenizer)
        };
        for (tokenizer, expected) in [(&one, 1), (&one, 1), (&other, 2), (&one, 2)] {
            let error = instruction.clone().told_to(tokenizer, make).err();
            assert_eq!((error, made.get()), (Some(EngineError::NoTokenizer), expected));
        }
    }
}
