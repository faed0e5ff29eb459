//! The head of rerankers that are language models: behind the last token, the logit of the token that means yes minus
//! that of the token that means no. Only these two rows of the vocabulary matrix are read.

use turbo_graph::{Pooling, ValueId};

use super::decoder;
use crate::{ModelConfig, ModelError, drawing::Drawing, modules::LogitScore};

/// The vocabulary matrix of a model that has its own.
const OWN: &str = "lm_head";
/// The embedding table, which is the matrix otherwise.
const TIED: &str = "embed_tokens";

/// Draws from the hidden state of every token to a score of each input.
pub(super) fn draw(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    score: LogitScore,
    hidden: ValueId,
) -> Result<ValueId, ModelError> {
    if !drawing.has(&format!("{TIED}.weight")) {
        let supported = "a decoder, where modules.json has LogitScore";
        return Err(config.unsupported("model_type", &config.model_type, supported));
    }
    decoder::refuse_full_attention(config)?;
    refuse_capped_logits(config)?;
    let LogitScore { true_token_id, false_token_id } = score;
    let words = config.vocab_size;
    if let Some(id) = [true_token_id].into_iter().chain(false_token_id).find(|id| *id >= words) {
        return Err(config.wrong("vocab_size", format!("is {words}, and LogitScore names token {id}")));
    }
    let last = drawing.graph.pool(hidden, Pooling::LastToken)?;
    let name = if drawing.has(&format!("{OWN}.weight")) || !is_tied(config)? { OWN } else { TIED };
    drawing.product_of_row(last, name, (config.hidden_size, words), true_token_id, false_token_id)
}

/// Whether the embedding table is the matrix: yes, unless the file says otherwise.
fn is_tied(config: &ModelConfig) -> Result<bool, ModelError> {
    Ok(config.optional::<bool>("tie_word_embeddings")?.unwrap_or(true))
}

/// Refuses capped logits: their difference is not a product.
fn refuse_capped_logits(config: &ModelConfig) -> Result<(), ModelError> {
    const FIELD: &str = "final_logit_softcapping";
    match config.optional::<f64>(FIELD)? {
        None => Ok(()),
        Some(cap) => Err(config.unsupported(FIELD, cap, "null")),
    }
}
