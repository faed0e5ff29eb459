//! Words for a masked token.

use std::cmp::Ordering;

use super::{
    TaskError,
    classify::descending,
    scores::{check, softmax},
};
use crate::{SpecialTokens, TextTokenizer, TokenizeError};

/// A token and how well it fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenScore {
    /// Its id.
    pub id: u32,
    /// Between 0 and 1; those of the whole vocabulary sum to 1.
    pub score: f32,
}

/// The `top_k` tokens that best fit a masked one, best first; of equal scores, the smaller id first.
///
/// * `logits`: `[vocab_size]`, those of the masked token.
/// * `targets`: the only tokens that are considered; repeated ids and ids outside the vocabulary are ignored. `None`:
///   all.
///
/// Source: the fill-mask pipeline of the transformers library.
///
/// # Errors
/// [`TaskError::NotANumber`].
pub fn fill_mask(
    logits: &[f32],
    top_k: usize,
    targets: Option<&[u32]>,
) -> Result<Vec<TokenScore>, TaskError> {
    check(logits, logits.len())?;
    let scores = softmax(logits.iter().copied());
    let token = |id: u32| scores.get(id as usize).map(|score| TokenScore { id, score: *score as f32 });
    let mut best: Vec<TokenScore> = match targets {
        Some(targets) => {
            let mut targets = targets.to_vec();
            targets.sort_unstable();
            targets.dedup();
            targets.into_iter().filter_map(token).collect()
        }
        None => (0..).map_while(token).collect(),
    };
    let order =
        |a: &TokenScore, b: &TokenScore| -> Ordering { descending(a.score, b.score).then(a.id.cmp(&b.id)) };
    if top_k < best.len() {
        best.select_nth_unstable_by(top_k, order);
        best.truncate(top_k);
    }
    best.sort_by(order);
    Ok(best)
}

/// Places of the masks in `input_ids`.
pub fn mask_positions(input_ids: &[u32], mask: u32) -> Vec<usize> {
    (0..input_ids.len()).filter(|place| input_ids[*place] == mask).collect()
}

/// The text of `input_ids` with token `id` at place `at`. Special tokens are left out, unless there are other masks,
/// which would be left out with them.
///
/// # Errors
/// [`TokenizeError::Tokenizer`].
///
/// # Panics
/// If there is no place `at`.
pub fn filled_text(
    tokenizer: &TextTokenizer,
    input_ids: &[u32],
    at: usize,
    id: u32,
) -> Result<String, TokenizeError> {
    let masks = tokenizer.mask_token().map_or(0, |(mask, _)| mask_positions(input_ids, mask).len());
    let special_tokens = if masks > 1 { SpecialTokens::With } else { SpecialTokens::Without };
    let mut filled = input_ids.to_vec();
    filled[at] = id;
    tokenizer.decode(&filled, special_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_tokens_come_first() {
        let ids = |top_k, targets| -> Vec<u32> {
            let best = fill_mask(&[1.0, 3.0, 1.0, f32::INFINITY, -2.0], top_k, targets).unwrap();
            best.into_iter().map(|token| token.id).collect()
        };
        assert_eq!(ids(2, None), [3, 0], "beside infinity all others are equally unlikely");
        assert_eq!(ids(9, None), [3, 0, 1, 2, 4]);
        assert_eq!(ids(9, Some(&[4, 9, 3, 4])), [3, 4]);
        assert_eq!(ids(0, None), [0; 0]);
        let nan = fill_mask(&[f32::NAN], 1, None).unwrap_err();
        assert_eq!(nan, TaskError::NotANumber { index: 0, len: 1 });
    }
}
