//! BERT (Devlin et al., 2018): embeddings, then layers of attention and feed-forward, each with its sum and norm.
//!
//! The order of the sums is that of the transformers library, so that rounding is too. Its pooler and its heads belong
//! to tasks; their tensors are not asked for.

use turbo_graph::{Input, Positions, Rhs, ValueId};

use super::Architecture;
use crate::{ModelConfig, ModelError, drawing::Drawing};

pub(super) const BERT: Architecture =
    Architecture { model_type: "bert", class_prefix: "Bert", tensor_prefix: "bert.", draw };

/// `[BatchSize, PaddedLen, hidden_size]`: the hidden state of every token.
fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    let mut x = embeddings(drawing, config)?;
    for layer in 0..config.num_hidden_layers {
        drawing.graph.layer(Some(layer));
        let name = format!("encoder.layer.{layer}");
        x = attention(drawing, config, &format!("{name}.attention"), x)?;
        x = feed_forward(drawing, config, &name, x)?;
    }
    Ok(x)
}

/// The norm of the sum of what a token is, which of two texts it is in, and where.
fn embeddings(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    let hidden = config.hidden_size;
    let mut table = |name: &str, rows, ids| {
        let ids = drawing.graph.input(ids);
        drawing.embed(&format!("embeddings.{name}_embeddings"), (rows, hidden), ids)
    };
    let word = table("word", config.vocab_size, Input::InputIds)?;
    let token_type = table("token_type", config.type_vocab_size, Input::TokenTypeIds)?;
    let position = table("position", config.max_position_embeddings, Input::PositionIds(Positions::FromZero))?;
    let sum = drawing.graph.add(word, token_type)?;
    let sum = drawing.graph.add(sum, position)?;
    drawing.layer_norm(sum, "embeddings.LayerNorm", hidden, config.layer_norm_eps)
}

/// `softmax(q kᵀ / √head_dim) v` per head, then the output matrix, and the sum with `x` under a norm.
fn attention(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    name: &str,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let hidden = config.hidden_size;
    let mut heads = |part: &str| {
        let rows = drawing.linear(x, &format!("{name}.self.{part}"), (hidden, hidden))?;
        Ok::<_, ModelError>(drawing.graph.split_heads(rows, config.num_attention_heads)?)
    };
    let (query, key, value) = (heads("query")?, heads("key")?, heads("value")?);
    let graph = &mut drawing.graph;
    let scores = graph.batched_matmul(query, key, Rhs::Transposed)?;
    let scores = graph.scale(scores, 1.0 / (config.head_dim() as f32).sqrt())?;
    let scores = graph.mask(scores)?;
    let weights = graph.softmax(scores)?;
    let context = graph.batched_matmul(weights, value, Rhs::Normal)?;
    let context = graph.merge_heads(context)?;
    output(drawing, config, &format!("{name}.output"), (context, hidden), x)
}

/// Two matrices with an activation between them, and the sum with `x` under a norm.
fn feed_forward(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    name: &str,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let inner = config.intermediate_size;
    let wide = drawing.linear(x, &format!("{name}.intermediate.dense"), (config.hidden_size, inner))?;
    let wide = drawing.graph.activate(wide, config.hidden_act)?;
    output(drawing, config, &format!("{name}.output"), (wide, inner), x)
}

/// The end of both halves of a layer: a matrix back to `hidden_size`, plus what came in, normed.
fn output(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    name: &str,
    (x, columns): (ValueId, usize),
    residual: ValueId,
) -> Result<ValueId, ModelError> {
    let hidden = config.hidden_size;
    let dense = drawing.linear(x, &format!("{name}.dense"), (columns, hidden))?;
    let sum = drawing.graph.add(dense, residual)?;
    drawing.layer_norm(sum, &format!("{name}.LayerNorm"), hidden, config.layer_norm_eps)
}
