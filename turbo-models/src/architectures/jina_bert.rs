//! JinaBERT (Günther et al., 2023): BERT without position embeddings, with linear biases in attention instead (Press et
//! al., 2021), and with a gated feed-forward part. Configurations call it "bert"; `position_embedding_type` tells it
//! from BERT.
//!
//! The models for code have a later form: queries and keys are normed, each over all heads together; the layer's input
//! is added and normed a second time behind attention; and the gate is the other half of its matrix.

use turbo_graph::{Activation, AttentionMask, ValueId};

use super::{
    ActivationRange, Architecture, Name,
    attention::{Attention, HeadRows, RelativeBias},
    bert, post_norm,
};
use crate::{
    ModelConfig, ModelError,
    config::{ConfigFields, Only, Setting},
    drawing::Drawing,
};

/// Its value names the activation of the gate.
const FEED_FORWARD_TYPE: Setting<&'static str> = Setting::Field("feed_forward_type", "original");

pub(super) const JINA_BERT: Architecture = Architecture {
    names: &[Name { model_type: "bert", class_prefix: "JinaBert" }],
    tensor_prefixes: &["bert."],
    fields: ConfigFields {
        told_by: Some(("position_embedding_type", "alibi")),
        only: &[
            Only { field: "position_embedding_type", values: &["alibi"], default: "absolute" },
            Only { field: "feed_forward_type", values: &["geglu", "reglu"], default: "original" },
            Only { field: "is_decoder", values: &["false"], default: "false" },
            Only { field: "add_cross_attention", values: &["false"], default: "false" },
        ],
        ..bert::FIELDS
    },
    activations: ActivationRange::WithinF16,
    heads: bert::HEADS,
    draw,
};

/// What the layers of a model have, and the names of their tensors.
struct LayerForm {
    /// Whether queries and keys are normed, and the result of attention a second time.
    more_norms: bool,
    /// Both halves of the gated part, in one matrix.
    wide: &'static str,
    /// Whether its second half is activated instead of the first.
    gate_is_second: bool,
    narrow: &'static str,
    output_norm: &'static str,
}

const FIRST: LayerForm = LayerForm {
    more_norms: false,
    wide: "mlp.gated_layers",
    gate_is_second: false,
    narrow: "mlp.wo",
    output_norm: "mlp.layernorm",
};

const LATER: LayerForm = LayerForm {
    more_norms: true,
    wide: "mlp.up_gated_layer",
    gate_is_second: true,
    narrow: "mlp.down_layer",
    output_norm: "layer_norm_2",
};

impl LayerForm {
    /// The names of the tensors decide: configurations of both forms have the same fields, apart from the place of the
    /// published code.
    fn of(drawing: &Drawing<'_>) -> &'static Self {
        if drawing.has("encoder.layer.0.attention.self.layer_norm_q.weight") { &LATER } else { &FIRST }
    }
}

fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    let form = LayerForm::of(drawing);
    let mut x = post_norm::embeddings_without_positions(drawing, config)?;
    for layer in 0..config.num_hidden_layers {
        drawing.graph.layer(Some(layer));
        let name = format!("encoder.layer.{layer}");
        x = attend(drawing, config, form, &name, x)?;
        let narrow = feed_forward(drawing, config, form, &name, x)?;
        x = post_norm::normed_sum(drawing, config, &format!("{name}.{}", form.output_norm), narrow, x)?;
    }
    Ok(x)
}

/// Attention with its sum and norm, or both of its sums and norms.
fn attend(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    form: &LayerForm,
    layer: &str,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let hidden = config.hidden_size;
    let mut project = |part: &str, norm: Option<&str>| {
        let name = format!("{layer}.attention.self");
        let mut rows = drawing.linear(x, &format!("{name}.{part}"), (hidden, hidden))?;
        if let Some(norm) = norm.filter(|_| form.more_norms) {
            rows = drawing.layer_norm(rows, &format!("{name}.{norm}"), hidden, config.layer_norm_eps)?;
        }
        Ok::<_, ModelError>(HeadRows::all(rows, config.num_attention_heads, config.head_dim()))
    };
    let (query, key) = (project("query", Some("layer_norm_q"))?, project("key", Some("layer_norm_k"))?);
    let value = project("value", None)?;
    let (mask, bias) = (AttentionMask::Full, Some(RelativeBias::Alibi));
    let context = Attention { query, key, value, mask, bias, scale: None }.draw(drawing)?;
    let context = drawing.linear(context, &format!("{layer}.attention.output.dense"), (hidden, hidden))?;
    let name = format!("{layer}.attention.output.LayerNorm");
    let context = post_norm::normed_sum(drawing, config, &name, context, x)?;
    if form.more_norms {
        post_norm::normed_sum(drawing, config, &format!("{layer}.layer_norm_1"), context, x)
    } else {
        Ok(context)
    }
}

fn feed_forward(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    form: &LayerForm,
    layer: &str,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let wide = format!("{layer}.{}", form.wide);
    let first = drawing.product_of_rows(x, &wide, (hidden, 2 * inner), 0..inner)?;
    let second = drawing.product_of_rows(x, &wide, (hidden, 2 * inner), inner..2 * inner)?;
    let (gate, up) = if form.gate_is_second { (second, first) } else { (first, second) };
    let gated = drawing.gated(gate, activation(config)?, up)?;
    drawing.linear(gated, &format!("{layer}.{}", form.narrow), (inner, hidden))
}

fn activation(config: &ModelConfig) -> Result<Activation, ModelError> {
    match config.word(FEED_FORWARD_TYPE)?.as_str() {
        "geglu" => Ok(Activation::GeluErf),
        "reglu" => Ok(Activation::Relu),
        other => Err(config.unsupported(FEED_FORWARD_TYPE.name(), other, "geglu, reglu")),
    }
}
