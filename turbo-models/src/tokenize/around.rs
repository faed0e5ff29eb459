//! The special tokens around one text. They are the same for every text, so the library makes them once, and not for
//! each text: it would allocate places and strings for every token, which the model does not read.

use std::ops::Range;

use tokenizers::tokenizer::Encoding as Tokens;

use super::tokens::of_ids;
use crate::Encoded;

/// What stands before a text and behind it, and the type of the tokens in between.
pub(super) struct Around {
    before: Encoded,
    type_id: u32,
    behind: Encoded,
}

/// Stands for a text; no vocabulary has so many tokens.
const TEXT: u32 = u32::MAX;

impl Around {
    /// What `join` puts around a text; `None` unless the result contains the text exactly once. None of the library's
    /// steps looks at ids, so what it does with one token it does with all.
    pub(super) fn of<E>(join: impl FnOnce(Tokens) -> Result<Tokens, E>) -> Option<Self> {
        let joined = join(of_ids(vec![TEXT])).ok()?;
        let (ids, types) = (joined.get_ids(), joined.get_type_ids());
        let at = ids.iter().position(|&id| id == TEXT)?;
        let part = |range: Range<usize>| Encoded {
            input_ids: ids[range.clone()].to_vec(),
            token_type_ids: types[range].to_vec(),
        };
        let (before, behind) = (part(0..at), part(at + 1..ids.len()));
        (!behind.input_ids.contains(&TEXT)).then(|| Self { before, type_id: types[at], behind })
    }

    /// The ids of a text and of what is around it.
    pub(super) fn put(&self, ids: &[u32]) -> Encoded {
        let Self { before, type_id, behind } = self;
        let types = vec![*type_id; ids.len()];
        Encoded {
            input_ids: [&before.input_ids, ids, &behind.input_ids].concat(),
            token_type_ids: [&before.token_type_ids, types.as_slice(), &behind.token_type_ids].concat(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::{PostProcessor, processors::template::TemplateProcessing};

    use super::*;

    fn steps(single: &str) -> TemplateProcessing {
        let special_tokens = vec![("[CLS]", 1), ("[SEP]", 2)];
        TemplateProcessing::builder()
            .try_single(single)
            .unwrap()
            .special_tokens(special_tokens)
            .build()
            .unwrap()
    }

    proptest! {
        #[test]
        fn it_is_what_the_library_puts_there(ids in prop::collection::vec(3_u32..9, 0..5)) {
            for single in ["$A", "[CLS] $A [SEP]", "[CLS]:1 [CLS] $A:2", "$A [SEP]:3 [SEP]"] {
                let steps = steps(single);
                let around = Around::of(|text| steps.process(text, None, true)).unwrap();
                let expected = steps.process(of_ids(ids.clone()), None, true).unwrap();
                let put = around.put(&ids);
                prop_assert_eq!(put.input_ids, expected.get_ids());
                prop_assert_eq!(put.token_type_ids, expected.get_type_ids());
            }
        }
    }

    #[test]
    fn a_text_that_is_not_there_once_has_nothing_around_it() {
        for single in ["[CLS] [SEP]", "$A [SEP] $A"] {
            let steps = steps(single);
            assert!(Around::of(|text| steps.process(text, None, true)).is_none(), "{single}");
        }
        assert!(Around::of(|_| Err::<Tokens, _>("no step")).is_none());
    }
}
