//! What the families of BERT's kind have in common: a norm after every sum, first over the embeddings, then twice in
//! each layer (Vaswani et al., 2017). They differ in names, in the widths of the tables, and in how positions are
//! counted.
//!
//! Sums are added in the order of BERT in the transformers library, so that rounding is the same.

use turbo_graph::{AttentionMask, Input, Positions, ValueId};

use super::attention::{Attention, HeadRows, RelativeBias};
use crate::{ModelConfig, ModelError, drawing::Drawing};

/// What a family calls the parts of a layer, below the layer's own name.
pub(super) struct LayerNames {
    /// Matrix of queries.
    pub(super) query: &'static str,
    /// Matrix of keys.
    pub(super) key: &'static str,
    /// Matrix of values.
    pub(super) value: &'static str,
    /// Matrix behind attention.
    pub(super) context: &'static str,
    /// Norm of the sum of its result and the layer's input.
    pub(super) attention_norm: &'static str,
    /// Matrix to `intermediate_size`.
    pub(super) wide: &'static str,
    /// Matrix back to `hidden_size`.
    pub(super) narrow: &'static str,
    /// Norm of the sum of its result and the input of the feed-forward half.
    pub(super) output_norm: &'static str,
}

/// `[BatchSize, PaddedLen, embedding_size]`: the norm of the sum of word embedding, token type embedding (if the model
/// has token types), and position embedding.
pub(super) fn embeddings(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    embeddings_with(drawing, config, Some(config.positions))
}

/// Like [`embeddings`], for models without a position table.
pub(super) fn embeddings_without_positions(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
) -> Result<ValueId, ModelError> {
    embeddings_with(drawing, config, None)
}

fn embeddings_with(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    positions: Option<Positions>,
) -> Result<ValueId, ModelError> {
    let columns = config.embedding_size;
    let mut table = |name: &str, rows, ids| {
        let ids = drawing.graph.input(ids);
        drawing.embed(&format!("embeddings.{name}_embeddings"), (rows, columns), ids)
    };
    let word = table("word", config.vocab_size, Input::InputIds)?;
    let token_type = match config.type_vocab_size {
        0 => None,
        rows => Some(table("token_type", rows, Input::TokenTypeIds)?),
    };
    let rows = config.max_position_embeddings;
    let position = positions.map(|ids| table("position", rows, Input::PositionIds(ids))).transpose()?;
    let mut parts = [token_type, position].into_iter().flatten();
    let sum = parts.try_fold(word, |sum, part| drawing.graph.add(sum, part))?;
    drawing.layer_norm(sum, "embeddings.LayerNorm", columns, config.layer_norm_eps)
}

/// Draws attention and feed-forward, with the weights below `layer`.
pub(super) fn layer(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    names: &LayerNames,
    layer: &str,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    biased_layer(drawing, config, names, layer, x, None, None)
}

/// Like [`layer`], with a bias on the attention scores, and with a scale other than the usual one.
pub(super) fn biased_layer(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    names: &LayerNames,
    layer: &str,
    x: ValueId,
    bias: Option<RelativeBias>,
    scale: Option<f32>,
) -> Result<ValueId, ModelError> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let name = |part: &str| format!("{layer}.{part}");

    let mut project = |part: &str| {
        let rows = drawing.linear(x, &name(part), (hidden, hidden))?;
        Ok::<_, ModelError>(HeadRows::all(rows, config.num_attention_heads, config.head_dim()))
    };
    let (query, key, value) = (project(names.query)?, project(names.key)?, project(names.value)?);
    let mask = AttentionMask::Full;
    let context = Attention { query, key, value, mask, bias, scale }.draw(drawing)?;
    let context = drawing.linear(context, &name(names.context), (hidden, hidden))?;
    let x = normed_sum(drawing, config, &name(names.attention_norm), context, x)?;

    let wide = drawing.linear(x, &name(names.wide), (hidden, inner))?;
    let wide = drawing.graph.activate(wide, config.hidden_act)?;
    let narrow = drawing.linear(wide, &name(names.narrow), (inner, hidden))?;
    normed_sum(drawing, config, &name(names.output_norm), narrow, x)
}

/// The end of each half of a layer: its result plus its input, normed.
pub(super) fn normed_sum(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    name: &str,
    x: ValueId,
    residual: ValueId,
) -> Result<ValueId, ModelError> {
    let sum = drawing.graph.add(x, residual)?;
    drawing.layer_norm(sum, name, config.hidden_size, config.layer_norm_eps)
}
