//! Texts that are cut to a number of tokens of their own, before the model is asked about them.

use super::{answer::caught, error::ApiError, target::Target};
use crate::{
    engine::{Extent, Pending, SpecialTokens, Texts, TokenizeRequest, Tokenized},
    tasks::{Door, IfFull, patiently},
};

/// Refuses to cut texts to the number of tokens in `field` for an ensemble: each of its models counts tokens of its
/// own.
pub(super) fn check_cut(target: &Target, field: &str, most_tokens: Option<usize>) -> Result<(), ApiError> {
    if most_tokens.is_none() || !target.is_ensemble() {
        return Ok(());
    }
    Err(ApiError::validation(format!(
        "`{field}` is not possible here: each model of the ensemble `{}` counts its own tokens; leave it out, and send \
         texts that are short enough",
        target.name()
    )))
}

/// Cuts each text after its first `limit` tokens. Once the tokenizer has been asked, later requests to the engine
/// wait for room: if they failed, the work done so far would be wasted.
pub(super) async fn cut(
    target: &Target,
    mut texts: Vec<String>,
    limit: usize,
    mut if_full: IfFull,
) -> Result<(Vec<String>, IfFull), ApiError> {
    let (engine, door) = (target.engine(), Door::default());
    let deadline = engine.urgency().deadline;
    let long: Vec<usize> = (0..texts.len()).filter(|&index| may_exceed(&texts[index], limit)).collect();
    for some in long.chunks(engine.info().max_client_batch_size) {
        let whole = some.iter().map(|&index| Texts::One(texts[index].clone())).collect();
        let extent = Extent::Whole(SpecialTokens::Without);
        let retries = if_full == IfFull::Waits;
        let request = TokenizeRequest { retries, ..TokenizeRequest::new(whole, extent) };
        let ask = || -> Pending<'_, Vec<Tokenized>> {
            let asked = engine.tokenize(request.clone());
            Box::pin(async move { asked.await.map_err(|error| error.renumbered(|input| some[input])) })
        };
        let tokenized = match if_full {
            IfFull::Fails => caught(ask).await?,
            IfFull::Waits => caught(|| Box::pin(patiently(engine, &door, some.len(), deadline, ask))).await?,
        };
        if_full = IfFull::Waits;
        for (&index, tokenized) in some.iter().zip(&tokenized) {
            let end = end_of(tokenized, limit, &texts[index]);
            texts[index].truncate(end);
        }
    }
    Ok((texts, if_full))
}

/// Whether a text may have more tokens than `limit`: most texts can be ruled out without tokenizing them. In ASCII, a
/// token is at least one byte, except the mark that some tokenizers put before a text. Other characters may grow before
/// they become tokens (NFKC writes one of three bytes as eighteen letters).
fn may_exceed(text: &str, limit: usize) -> bool {
    text.len() >= limit || !text.is_ascii()
}

/// The byte at which the first `limit` tokens end.
fn end_of(tokenized: &Tokenized, limit: usize, text: &str) -> usize {
    let ends = tokenized.encodings.iter().flat_map(|encoding| &encoding.offsets).map(|bytes| bytes.end);
    // A token may end inside a character, whose rest is the next token.
    ends.take(limit).last().map_or(text.len(), |end| text.floor_char_boundary(end))
}
