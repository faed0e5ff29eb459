//! What a model accepts: how many tokens, and which.

use crate::TokenizeError;

/// One input: the ids of its tokens, special ones included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Rows of the word embedding table, `[seq_len]`.
    pub input_ids: Vec<u32>,
    /// Rows of the token type table, `[seq_len]`; empty means zeros.
    pub token_type_ids: Vec<u32>,
}

/// The bounds inside which every input must lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputLimits {
    /// Most tokens of one input, special ones included.
    pub max_input_length: usize,
    /// Ids of tokens are below this.
    pub vocab_size: usize,
    /// Ids of token types are below this; 0 when the model has no token types and ignores those it is given.
    pub type_vocab_size: usize,
}

impl InputLimits {
    /// Checks that an input from any source can be run.
    ///
    /// # Errors
    /// Every variant of [`TokenizeError`] but [`TokenizeError::Tokenizer`].
    pub fn check(&self, input: &Encoded) -> Result<(), TokenizeError> {
        let (tokens, token_types) = (input.input_ids.len(), input.token_type_ids.len());
        self.check_ids(&input.input_ids)?;
        if token_types != 0 && token_types != tokens {
            return Err(TokenizeError::Uneven { tokens, token_types });
        }
        match outside(&input.token_type_ids, self.type_vocab_size) {
            Some(id) if self.type_vocab_size > 0 => {
                Err(TokenizeError::TokenType { id, type_vocab_size: self.type_vocab_size })
            }
            _ => Ok(()),
        }
    }

    /// [`Self::check`] for an input whose tokens are all of type 0.
    ///
    /// # Errors
    /// [`TokenizeError::Empty`], [`TokenizeError::TooLong`], [`TokenizeError::Vocabulary`].
    pub fn check_ids(&self, input_ids: &[u32]) -> Result<(), TokenizeError> {
        if input_ids.is_empty() {
            return Err(TokenizeError::Empty);
        }
        if input_ids.len() > self.max_input_length {
            return Err(TokenizeError::TooLong { tokens: input_ids.len(), limit: self.max_input_length });
        }
        match outside(input_ids, self.vocab_size) {
            Some(id) => Err(TokenizeError::Vocabulary { id, vocab_size: self.vocab_size }),
            None => Ok(()),
        }
    }
}

/// The first of `ids` that is not a row of a table of `rows` rows.
fn outside(ids: &[u32], rows: usize) -> Option<u32> {
    ids.iter().copied().find(|&id| id as usize >= rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_themselves_are_outside() {
        let limits = InputLimits { max_input_length: 3, vocab_size: 10, type_vocab_size: 2 };
        let check = |input_ids: &[u32], token_type_ids: &[u32]| {
            let input = Encoded { input_ids: input_ids.to_vec(), token_type_ids: token_type_ids.to_vec() };
            limits.check(&input).map_err(|error| error.to_string())
        };
        assert_eq!(check(&[0, 9, 9], &[0, 1, 1]), Ok(()));
        assert_eq!(check(&[9], &[]), Ok(()));
        let cases: [(&[u32], &[u32], &str); 5] = [
            (&[], &[], "the input has no tokens, expected at least one"),
            (&[1; 4], &[], "the input is longer than 3 tokens: 4 counted"),
            (&[1; 3], &[0; 2], "expected 3 token types, one per token, got 2"),
            (&[1, 10, 11], &[], "token 10 is outside the model's vocabulary of 10"),
            (&[1, 1, 1], &[0, 0, 2], "token type 2 is outside the model's 2 token types"),
        ];
        for (ids, types, expected) in cases {
            assert_eq!(check(ids, types).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_model_without_token_types_ignores_them() {
        let limits = InputLimits { max_input_length: 3, vocab_size: 10, type_vocab_size: 0 };
        let input = |token_type_ids: &[u32]| Encoded {
            input_ids: vec![1, 2],
            token_type_ids: token_type_ids.to_vec(),
        };
        assert_eq!(limits.check(&input(&[0, 7])), Ok(()));
        assert_eq!(limits.check(&input(&[0])), Err(TokenizeError::Uneven { tokens: 2, token_types: 1 }));
    }
}
