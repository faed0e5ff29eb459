//! Qwen3 (Yang et al., 2025) as an embedder: a decoder with norms of every query and key head, and usually no biases.
//! Also pplx-embed, which is the same in both directions.

use turbo_graph::{AttentionMask, ValueId};

use super::{
    ActivationRange, Architecture, Name,
    decoder::{self, Projections},
    qwen2,
};
use crate::{
    ModelConfig, ModelError,
    config::{ConfigFields, HeadDim, Setting},
    drawing::{Bias, Drawing, Gain},
};

const ATTENTION_BIAS: Setting<bool> = Setting::Field("attention_bias", false);

pub(super) const QWEN3: Architecture = Architecture {
    names: &[Name { model_type: "qwen3", class_prefix: "Qwen3" }],
    tensor_prefixes: &["model."],
    fields: ConfigFields { head_dim: HeadDim::Own(Setting::Field("head_dim", 128)), ..qwen2::FIELDS },
    activations: ActivationRange::WithinF16,
    heads: decoder::HEADS,
    draw,
};

/// The `model_type` of pplx-embed.
pub(super) const PPLX_TYPE: &str = "bidirectional_pplx_qwen3";

/// Perplexity's pplx-embed: every token sees all others.
pub(super) const PPLX: Architecture = Architecture {
    names: &[Name { model_type: PPLX_TYPE, class_prefix: "PPLXQwen3" }],
    fields: ConfigFields { causal_fields: &[], ..QWEN3.fields },
    heads: &[],
    draw: |drawing, config| decoder::draw_with(drawing, config, projections(config)?, AttentionMask::Full),
    ..QWEN3
};

fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    let hidden = decoder::draw(drawing, config, projections(config)?)?;
    projected(drawing, config, hidden)
}

fn projections(config: &ModelConfig) -> Result<Projections, ModelError> {
    let bias = config.bias(ATTENTION_BIAS)?;
    Ok(Projections { bias, context_bias: bias, head_norms: Some(Gain::Weight) })
}

/// Voyage's models have a matrix behind the last norm. Its result is as wide as `num_labels` says, or else as
/// `id2label` has names: files that the library saved again lack the number.
fn projected(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    hidden: ValueId,
) -> Result<ValueId, ModelError> {
    const NAME: &str = "linear";
    match drawing.has("linear.weight") {
        true => drawing
            .linear_with(hidden, NAME, (config.hidden_size, config.num_labels()?), Bias::Without)
            .map_err(|error| config.explained_by_labels(error)),
        false => Ok(hidden),
    }
}
