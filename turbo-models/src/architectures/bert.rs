//! BERT (Devlin et al., 2018): embeddings, then layers of attention and feed-forward, each with its sum and norm.
//!
//! Its pooler belongs to the head of a sequence classifier; nothing else uses it.

use turbo_graph::{Positions, ValueId};

use super::{
    ActivationRange, Architecture, Name,
    heads::{self, HasBias, Head, Step, Width, Words},
    post_norm::{self, LayerNames},
};
use crate::{
    ModelConfig, ModelError, Task,
    config::{ConfigFields, HeadDim, KeyValueHeads, Only, Setting},
    drawing::Drawing,
};

pub(super) const BERT: Architecture = Architecture {
    names: &[Name { model_type: "bert", class_prefix: "Bert" }],
    tensor_prefixes: &["bert."],
    fields: FIELDS,
    activations: ActivationRange::WithinF16,
    heads: HEADS,
    draw,
};

pub(super) const HEADS: &[Head] = &[
    heads::POOLED_CLASSIFIER,
    heads::TOKEN_CLASSIFIER,
    heads::ANSWERS,
    Head {
        task: Task::MaskedLm,
        steps: &[
            Step::Linear("cls.predictions.transform.dense", Width::Hidden, HasBias::Always),
            Step::HiddenAct,
            Step::Norm("cls.predictions.transform.LayerNorm", HasBias::Always),
            Step::Words(Words {
                table: heads::WORD_TABLE,
                matrix: "cls.predictions.decoder",
                bias: &["cls.predictions.decoder.bias", "cls.predictions.bias"],
                has_bias: HasBias::Always,
            }),
        ],
    },
];

pub(super) const FIELDS: ConfigFields = ConfigFields {
    vocab_size: Setting::Field("vocab_size", 30522),
    embedding_size: None,
    hidden_size: Setting::Field("hidden_size", 768),
    num_hidden_layers: Setting::Field("num_hidden_layers", 12),
    num_attention_heads: Setting::Field("num_attention_heads", 12),
    num_key_value_heads: KeyValueHeads::Shared,
    head_dim: HeadDim::Shared,
    intermediate_size: Setting::Field("intermediate_size", 3072),
    hidden_act: Setting::Field("hidden_act", "gelu"),
    max_position_embeddings: Setting::Field("max_position_embeddings", 512),
    type_vocab_size: Some(Setting::Field("type_vocab_size", 2)),
    layer_norm_eps: Setting::Field("layer_norm_eps", 1e-12),
    positions: Setting::Always(Positions::FromZero),
    stretched_behind: None,
    causal_window: None,
    causal_fields: &[],
    attribute_map: &[],
    newer_layout: None,
    told_by: None,
    only: &[
        Only { field: "position_embedding_type", values: &["absolute"], default: "absolute" },
        Only { field: "is_decoder", values: &["false"], default: "false" },
        Only { field: "add_cross_attention", values: &["false"], default: "false" },
        // a field of JinaBERT, which ends up here if its positions are absolute
        Only { field: "feed_forward_type", values: &["original"], default: "original" },
    ],
};

const LAYER: LayerNames = LayerNames {
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    context: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    wide: "intermediate.dense",
    narrow: "output.dense",
    output_norm: "output.LayerNorm",
};

/// `[BatchSize, PaddedLen, hidden_size]`: the hidden state of every token.
pub(super) fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    let x = post_norm::embeddings(drawing, config)?;
    layers(drawing, config, x)
}

/// The layers alone, from the first one's input.
pub(super) fn layers(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    mut x: ValueId,
) -> Result<ValueId, ModelError> {
    for layer in 0..config.num_hidden_layers {
        drawing.graph.layer(Some(layer));
        x = post_norm::layer(drawing, config, &LAYER, &format!("encoder.layer.{layer}"), x)?;
    }
    Ok(x)
}
