//! GTE (Zhang et al., 2024): BERT with rotary positions, one matrix for queries, keys and values, and one for both
//! halves of a gated feed-forward part. Its own configurations call it "new"; those of Snowflake's models, and of the
//! transformers library from version 5 on, call it "gte". Older GTE models are BERT.

use turbo_graph::{Activation, AttentionMask, Input, Pooling, ValueId};

use super::{
    ActivationRange, Architecture, Name,
    attention::TurnedAttention,
    bert,
    heads::{self, HasBias, Head, Step, Width, Words},
    post_norm, rotary,
};
use crate::{
    ModelConfig, ModelError, Task,
    config::{ConfigFields, Only, Setting},
    drawing::{Bias, Drawing},
};

const THETA: Setting<f64> = Setting::Field("rope_theta", 10_000.0);
/// The base of the transformers library's own class, whose files say "gte".
const THETA_OF_LIBRARY: Setting<f64> = Setting::Field("rope_theta", 160_000.0);

pub(super) const GTE: Architecture = Architecture {
    names: &[Name { model_type: "new", class_prefix: "New" }],
    // transformers 5 writes "new." before all names, including those of a head and those that begin with "gte."
    tensor_prefixes: &["new.", "gte."],
    fields: ConfigFields {
        vocab_size: Setting::Field("vocab_size", 30528),
        max_position_embeddings: Setting::Field("max_position_embeddings", 2048),
        type_vocab_size: Some(Setting::Field("type_vocab_size", 1)),
        only: &[
            Only { field: "position_embedding_type", values: &["rope"], default: "rope" },
            Only { field: "layer_norm_type", values: &["layer_norm"], default: "layer_norm" },
            Only { field: "pack_qkv", values: &["true"], default: "true" },
            Only { field: "logn_attention_scale", values: &["false"], default: "false" },
        ],
        ..bert::FIELDS
    },
    activations: ActivationRange::WithinF16,
    heads: HEADS,
    draw,
};

/// The same model as the transformers library's own class has it: with another activation in the masked language
/// model's head, and other defaults.
pub(super) const GTE_OF_LIBRARY: Architecture = Architecture {
    names: &[Name { model_type: "gte", class_prefix: "Gte" }],
    fields: ConfigFields {
        vocab_size: Setting::Field("vocab_size", 250_048),
        max_position_embeddings: Setting::Field("max_position_embeddings", 8192),
        ..GTE.fields
    },
    heads: HEADS_OF_LIBRARY,
    ..GTE
};

const HEADS: &[Head] = &[
    heads::POOLED_CLASSIFIER,
    CLASSIFIER,
    heads::TOKEN_CLASSIFIER,
    Head { task: Task::MaskedLm, steps: &[DENSE, Step::HiddenAct, NORM, WORDS] },
];

const HEADS_OF_LIBRARY: &[Head] = &[
    heads::POOLED_CLASSIFIER,
    CLASSIFIER,
    heads::TOKEN_CLASSIFIER,
    Head { task: Task::MaskedLm, steps: &[DENSE, Step::Activate(Activation::GeluErf), NORM, WORDS] },
];

/// The classifier of older files, which have no pooler before it.
const CLASSIFIER: Head = Head {
    task: Task::SequenceClassification,
    steps: &[Step::Pool(Pooling::Cls), Step::Linear("classifier", Width::Labels, HasBias::Always)],
};

const DENSE: Step = Step::Linear("lm_head.dense", Width::Hidden, HasBias::Always);
const NORM: Step = Step::Norm("lm_head.norm", HasBias::Always);
const WORDS: Step = Step::Words(Words {
    table: heads::WORD_TABLE,
    matrix: "lm_head.decoder",
    bias: &["lm_head.decoder.bias"],
    has_bias: HasBias::Always,
});

fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    let (hidden, table) = (config.hidden_size, positions(drawing, config)?);
    let ids = drawing.graph.input(Input::InputIds);
    let mut x = drawing.embed("embeddings.word_embeddings", (config.vocab_size, hidden), ids)?;
    if config.type_vocab_size > 0 {
        let ids = drawing.graph.input(Input::TokenTypeIds);
        let types =
            drawing.embed("embeddings.token_type_embeddings", (config.type_vocab_size, hidden), ids)?;
        x = drawing.graph.add(x, types)?;
    }
    let mut x = drawing.layer_norm(x, "embeddings.LayerNorm", hidden, config.layer_norm_eps)?;
    for layer in 0..config.num_hidden_layers {
        drawing.graph.layer(Some(layer));
        let name = format!("encoder.layer.{layer}");
        let matrices = [&format!("{name}.attention.qkv_proj")[..], &format!("{name}.attention.o_proj")];
        let attention = TurnedAttention { matrices, bias: Bias::With, mask: AttentionMask::Full, table };
        let context = attention.draw(drawing, config, x)?;
        x = post_norm::normed_sum(drawing, config, &format!("{name}.attn_ln"), context, x)?;
        let narrow = feed_forward(drawing, config, &format!("{name}.mlp"), x)?;
        x = post_norm::normed_sum(drawing, config, &format!("{name}.mlp_ln"), narrow, x)?;
    }
    Ok(x)
}

/// In stretched models the columns rotate by a larger base, and all of them are slowed down by the same factor. The
/// models' own code derives both from how much longer inputs are ("ntk"); files of the library's class have the results
/// ("linear").
fn positions(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    let is_library = config.model_type == "gte";
    let theta = if is_library { THETA_OF_LIBRARY } else { THETA };
    let rotary::Turning { theta, stretched } = rotary::Turning::read(config, theta)?;
    let Some((field, stretched)) = stretched else {
        return rotary::table(drawing, config, theta, rotary::Stretch::None);
    };
    match (stretched.kind(), stretched.factor, stretched.mixed_b) {
        ("default", ..) => rotary::table(drawing, config, theta, rotary::Stretch::None),
        ("ntk", _, Some(mixed_b)) => {
            Err(config.unsupported(field, format!("ntk with mixed_b {mixed_b}"), "ntk without mixed_b"))
        }
        ("ntk", Some(factor), None) if factor >= 1.0 => {
            let slower = rotary::Stretch::Linear { factor: factor.powf(2.0 / config.head_dim() as f64) };
            rotary::table(drawing, config, theta * factor, slower)
        }
        ("linear", Some(factor), _) if is_library && factor.is_finite() && factor > 0.0 => {
            rotary::table(drawing, config, theta, rotary::Stretch::Linear { factor })
        }
        (kind, factor, _) => {
            let factor = factor.map_or("without factor".to_owned(), |factor| format!("by {factor}"));
            let linear = if is_library { "linear, " } else { "" };
            let supported = format!("default, {linear}ntk by a factor of at least 1");
            Err(config.unsupported(field, format!("{kind} {factor}"), &supported))
        }
    }
}

/// The second half of the wide matrix is the gate.
fn feed_forward(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    name: &str,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let wide = format!("{name}.up_gate_proj");
    let up = drawing.product_of_rows(x, &wide, (hidden, 2 * inner), 0..inner)?;
    let gate = drawing.product_of_rows(x, &wide, (hidden, 2 * inner), inner..2 * inner)?;
    let gated = drawing.gated(gate, config.hidden_act, up)?;
    drawing.linear(gated, &format!("{name}.down_proj"), (inner, hidden))
}
