//! Words that fit where a text has a mask.

use turbo_models::tasks::{TokenScore, fill_mask, mask_positions};

use super::{Found, Meter, aside, input, patience::AskedBefore};
use crate::engine::{
    DecodeRequest, Encoding, EngineError, Extent, Infer, InferRequest, OutputKind, Row, SpecialTokens, Texts,
    TokenizeRequest, Tokenized,
};

/// A text with gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GapRequest {
    /// The text, with the model's mask token in one or more places.
    pub text: String,
    /// How many words to find for each gap.
    pub top_k: usize,
    /// The only words to consider, at most [`MOST_TARGETS`], as the vocabulary writes them. A word that is not a token
    /// stands for its first token. `None`: all tokens of the vocabulary.
    pub targets: Option<Vec<String>>,
}

/// A word that fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Filled {
    /// Between 0 and 1.
    pub score: f32,
    /// Its id.
    pub token: u32,
    /// Its text.
    pub text: String,
    /// The whole text with this word; other gaps stay as they are.
    pub sequence: String,
}

/// Most words that are returned for one text, all gaps together: each comes with a whole text.
pub const MOST_FILLED: usize = 1000;
/// Most words in [`GapRequest::targets`].
pub const MOST_TARGETS: usize = 1000;

/// For each gap of the text, the words that fit best, the best first. It fails if no slot is free for the text itself;
/// its requests to tokenize targets and to decode words wait for slots.
///
/// # Errors
/// Those of the engine; [`EngineError::InvalidSelection`] for a text without a gap or with too many, and for targets
/// without tokens or too many targets.
///
/// # Panics
/// When it is polled outside a tokio runtime that has its clock enabled.
pub async fn fill_gaps(
    engine: &dyn Infer,
    request: GapRequest,
) -> Result<Found<Vec<Vec<Filled>>>, EngineError> {
    let GapRequest { text, top_k, targets } = request;
    let top_k = top_k.min(targets.as_ref().map_or(usize::MAX, Vec::len));
    let (mut meter, at_once) = (Meter::start(text.chars().count()), engine.info().max_client_batch_size);
    let extent = Extent::Input(engine.info().default_truncation());
    let encoding = encodings(engine.tokenize(to_tokenize(vec![text], extent)).await?).swap_remove(0);
    let asked = AskedBefore::new(engine);
    let gaps = gaps(engine, &encoding, top_k)?;
    let targets = match targets {
        Some(words) => Some(first_tokens(&asked, words, at_once).await?),
        None => None,
    };
    meter.tokenized();

    let selected = gaps.iter().filter_map(|&gap| u32::try_from(gap).ok()).collect();
    let inputs = vec![input(&encoding, selected)];
    let response = engine.infer(InferRequest::new(inputs, OutputKind::Selected)).await?;
    meter.inferred(&response.usage);
    let best = aside(move || {
        let rows = response.rows.iter().flat_map(Row::rows);
        rows.map(|logits| fill_mask(logits, top_k, targets.as_deref())).collect::<Result<Vec<_>, _>>()
    });
    let filled = texts(&asked, &encoding.input_ids, &gaps, best.await?, at_once).await?;
    Ok(meter.finish(filled))
}

fn wrong<T>(why: String) -> Result<T, EngineError> {
    Err(EngineError::InvalidSelection { input: 0, why })
}

/// The positions of the gaps among the tokens.
fn gaps(engine: &dyn Infer, encoding: &Encoding, top_k: usize) -> Result<Vec<usize>, EngineError> {
    let Some(mask) = &engine.info().model.mask_token else {
        return wrong("the model's tokenizer has no mask token".into());
    };
    let gaps = mask_positions(&encoding.input_ids, mask.id);
    match gaps.len() {
        // The message has the number of tokens, since a mask may have been cut off.
        0 => {
            wrong(format!("there is no `{}` in the {} tokens that are read of it", mask.text, encoding.len()))
        }
        count if count.saturating_mul(top_k) > MOST_FILLED => wrong(format!(
            "it asks for {top_k} words (`top_k`) for each of its {count} gaps, at most {MOST_FILLED} together are \
             possible"
        )),
        _ => Ok(gaps),
    }
}

fn to_tokenize(texts: Vec<String>, extent: Extent) -> TokenizeRequest {
    TokenizeRequest::new(texts.into_iter().map(Texts::One).collect(), extent)
}

/// The tokens of each text.
fn encodings(tokenized: Vec<Tokenized>) -> Vec<Encoding> {
    tokenized.into_iter().flat_map(|it| it.encodings).collect()
}

/// The token of each word, or its first one, in requests of at most `at_once` words.
async fn first_tokens(
    engine: &AskedBefore<'_>,
    words: Vec<String>,
    at_once: usize,
) -> Result<Vec<u32>, EngineError> {
    if words.len() > MOST_TARGETS {
        return wrong(format!("there are {} `targets`, at most {MOST_TARGETS} are possible", words.len()));
    }
    let mut first = Vec::with_capacity(words.len());
    for some in words.chunks(at_once) {
        let request = to_tokenize(some.to_vec(), Extent::Word);
        let tokenized = engine.tokenize(request).await.map_err(|error| error.behind(first.len()))?;
        for encoding in encodings(tokenized) {
            match encoding.input_ids.first() {
                Some(&token) => first.push(token),
                None => return wrong(format!("`targets`[{}] has no tokens", first.len())),
            }
        }
    }
    Ok(first)
}

/// Decodes the texts with the tokens filled in, in requests of at most `at_once` texts.
async fn texts(
    engine: &AskedBefore<'_>,
    input_ids: &[u32],
    gaps: &[usize],
    best: Vec<Vec<TokenScore>>,
    at_once: usize,
) -> Result<Vec<Vec<Filled>>, EngineError> {
    // The other gaps, which are special tokens, have to stay in the text.
    let special = if gaps.len() > 1 { SpecialTokens::With } else { SpecialTokens::Without };
    let tokens: Vec<(usize, TokenScore)> =
        gaps.iter().zip(&best).flat_map(|(&gap, best)| best.iter().map(move |&token| (gap, token))).collect();
    let (mut words, mut sequences) = (Vec::new(), Vec::new());
    for some in tokens.chunks(at_once) {
        let ids = some.iter().map(|(_, token)| vec![token.id]).collect();
        words.extend(engine.decode(DecodeRequest::new(ids, SpecialTokens::With)).await?);
        let whole = |&(gap, token): &(usize, TokenScore)| {
            let mut ids = input_ids.to_vec();
            ids[gap] = token.id;
            ids
        };
        let ids = some.iter().map(whole).collect();
        sequences.extend(engine.decode(DecodeRequest::new(ids, special)).await?);
    }
    let mut filled = tokens.iter().zip(words).zip(sequences).map(|(((_, token), text), sequence)| Filled {
        score: token.score,
        token: token.id,
        text,
        sequence,
    });
    Ok(best.iter().map(|best| filled.by_ref().take(best.len()).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::Task,
        tasks::fake::{Crowded, wait},
    };

    #[test]
    fn a_text_that_was_begun_waits_for_room() {
        let targets = Some(["b", "c", "d"].map(str::to_owned).to_vec());
        let request = GapRequest { text: "xaz".to_owned(), top_k: 3, targets };
        let found = wait(fill_gaps(&Crowded::new(Task::MaskedLm), request));
        let mut sequences: Vec<_> = found.found[0].iter().map(|filled| filled.sequence.as_str()).collect();
        sequences.sort_unstable();
        assert_eq!(sequences, ["xbz", "xcz", "xdz"]);
    }
}
