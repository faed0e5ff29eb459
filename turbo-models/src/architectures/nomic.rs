//! Nomic BERT (Nussbaum et al., 2024): BERT with rotary positions, one matrix for queries, keys and values, a gated
//! feed-forward part, and no biases. Its second version (Nussbaum and Duderstadt, 2025) has a plain feed-forward part
//! with biases, and in every other layer a mixture of experts, of which each token uses two.

use turbo_graph::{Activation, AttentionMask, Input, Routing, ValueId};

use super::{ActivationRange, Architecture, Name, attention::TurnedAttention, bert, post_norm, rotary};
use crate::{
    ModelConfig, ModelError,
    config::{ConfigFields, Only, Setting},
    drawing::{Bias, Drawing},
};

const THETA: Setting<f64> = Setting::Field("rotary_emb_base", 10_000.0);
const PROJECTION_BIAS: Setting<bool> = Setting::Field("qkv_proj_bias", true);
const WIDE_BIAS: Setting<bool> = Setting::Field("mlp_fc1_bias", true);
const NARROW_BIAS: Setting<bool> = Setting::Field("mlp_fc2_bias", true);
const ACTIVATION: Setting<&str> = Setting::Field("activation_function", "gelu_new");
const GATED: &str = "swiglu";
/// One in so many layers has experts; 0 or null: none has.
const EXPERTS_EVERY: Setting<u32> = Setting::Field("moe_every_n_layers", 0);

pub(super) const NOMIC: Architecture = Architecture {
    names: &[Name { model_type: "nomic_bert", class_prefix: "NomicBert" }],
    tensor_prefixes: &["bert."],
    fields: ConfigFields {
        hidden_size: Setting::Field("n_embd", 768),
        num_hidden_layers: Setting::Field("n_layer", 12),
        num_attention_heads: Setting::Field("n_head", 12),
        intermediate_size: Setting::Field("n_inner", 3072),
        hidden_act: Setting::Always("silu"),
        max_position_embeddings: Setting::Field("n_positions", 2048),
        // stretching begins behind the trained positions, and changes nothing before that
        stretched_behind: Some(("rotary_scaling_factor", Setting::Field("max_trained_positions", 2048))),
        layer_norm_eps: Setting::Field("layer_norm_epsilon", 1e-5),
        // as in GPT-2, whose field names these are, except for `max_position_embeddings`: published files that have
        // both fields say 2048 there, the trained length, and 8192 in `n_positions`
        attribute_map: &[
            ("hidden_size", "n_embd"),
            ("num_attention_heads", "n_head"),
            ("num_hidden_layers", "n_layer"),
        ],
        // the layout of version 5 of the transformers library, which has the family built in
        newer_layout: Some(("activation_function", "hidden_act")),
        only: &[
            Only { field: "activation_function", values: &[GATED, "gelu"], default: "gelu_new" },
            Only { field: "rotary_emb_fraction", values: &["1", "1.0"], default: "0.0" },
            Only { field: "rotary_emb_interleaved", values: &["false"], default: "false" },
            Only { field: "rotary_emb_scale_base", values: &["null"], default: "null" },
            Only { field: "scale_attn_weights", values: &["true"], default: "true" },
            Only { field: "prenorm", values: &["false"], default: "false" },
            Only { field: "parallel_block", values: &["false"], default: "false" },
            Only { field: "use_rms_norm", values: &["false"], default: "false" },
            Only { field: "causal", values: &["false"], default: "false" },
            Only { field: "expert_choice_router", values: &["false"], default: "false" },
            Only { field: "moe_normalize_expert_weights", values: &["false"], default: "false" },
            Only { field: "num_shared_experts", values: &["0"], default: "0" },
        ],
        ..bert::FIELDS
    },
    activations: ActivationRange::WithinF16,
    heads: &[],
    draw,
};

fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    let hidden = config.hidden_size;
    let theta = rotary::theta(config, rotary::Layers::All, THETA)?;
    let table = rotary::table(drawing, config, theta, rotary::Stretch::None)?;
    let ids = drawing.graph.input(Input::InputIds);
    let x = drawing.embed("embeddings.word_embeddings", (config.vocab_size, hidden), ids)?;
    let ids = drawing.graph.input(Input::TokenTypeIds);
    let types = drawing.embed("embeddings.token_type_embeddings", (config.type_vocab_size, hidden), ids)?;
    let mut x = post_norm::normed_sum(drawing, config, "emb_ln", x, types)?;
    let bias = config.bias(PROJECTION_BIAS)?;
    for layer in 0..config.num_hidden_layers {
        drawing.graph.layer(Some(layer));
        let name = format!("encoder.layers.{layer}");
        let matrices = [&format!("{name}.attn.Wqkv")[..], &format!("{name}.attn.out_proj")];
        let attention = TurnedAttention { matrices, bias, mask: AttentionMask::Full, table };
        let context = attention.draw(drawing, config, x)?;
        x = post_norm::normed_sum(drawing, config, &format!("{name}.norm1"), context, x)?;
        let narrow = match experts(config, layer)? {
            Some(routing) => mixture(drawing, config, &format!("{name}.mlp"), x, routing)?,
            None => feed_forward(drawing, config, &format!("{name}.mlp"), x)?,
        };
        x = post_norm::normed_sum(drawing, config, &format!("{name}.norm2"), narrow, x)?;
    }
    Ok(x)
}

/// The experts of a layer, if it has any: the second of every `moe_every_n_layers` layers has.
fn experts(config: &ModelConfig, layer: u32) -> Result<Option<Routing>, ModelError> {
    let every = config.read(EXPERTS_EVERY)?;
    if layer.checked_rem(every) != Some(1) {
        return Ok(None);
    }
    let count = |field: &'static str, most: usize| -> Result<usize, ModelError> {
        let given: Option<u32> = config.optional(field)?;
        match given.map(|count| count as usize) {
            Some(count) if (1..=most).contains(&count) => Ok(count),
            Some(count) => Err(config.wrong(field, format!("is {count}, expected 1 to {most}"))),
            None => Err(config.wrong(field, "is missing, and moe_every_n_layers is given")),
        }
    };
    let num_experts = count("num_experts", Routing::MOST_EXPERTS)?;
    Ok(Some(Routing { num_experts, top_k: count("moe_top_k", num_experts)? }))
}

/// Experts side by side, as one wide feed-forward part: the results of a token's own experts are weighted, and those of
/// the others vanish. A pass turns this into one operator, which need not compute the others.
fn mixture(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    name: &str,
    x: ValueId,
    routing: Routing,
) -> Result<ValueId, ModelError> {
    if config.word(ACTIVATION)? == GATED {
        let supported = "gelu, where moe_every_n_layers is given";
        return Err(config.unsupported(ACTIVATION.name(), GATED, supported));
    }
    let Routing { num_experts, .. } = routing;
    let (hidden, wide) = (config.hidden_size, num_experts * config.intermediate_size);
    let sizes = (hidden, num_experts);
    let logits = drawing.linear_with(x, &format!("{name}.router.layer"), sizes, Bias::Without)?;
    let up = drawing.weight(&format!("{name}.experts.mlp.w1"), &[wide, hidden])?;
    let up = drawing.graph.matmul(x, up)?;
    let activated = drawing.graph.activate(up, Activation::GeluErf)?;
    let weighted = drawing.graph.weigh_experts(activated, logits, routing)?;
    let down = drawing.product_of_transposed(weighted, &format!("{name}.experts.mlp.w2"), (wide, hidden))?;
    let bias = drawing.weight(&format!("{name}.experts.bias"), &[hidden])?;
    Ok(drawing.graph.add_bias(down, bias)?)
}

/// The feed-forward part, gated or not; if it is, the gate is the second of the two wide matrices.
fn feed_forward(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    name: &str,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let (sizes, bias) = ((config.hidden_size, config.intermediate_size), config.bias(WIDE_BIAS)?);
    let wide = if config.word(ACTIVATION)? == GATED {
        let up = drawing.linear_with(x, &format!("{name}.fc11"), sizes, bias)?;
        let gate = drawing.linear_with(x, &format!("{name}.fc12"), sizes, bias)?;
        drawing.gated(gate, config.hidden_act, up)?
    } else {
        let up = drawing.linear_with(x, &format!("{name}.fc1"), sizes, bias)?;
        drawing.graph.activate(up, Activation::GeluErf)?
    };
    drawing.linear_with(wide, &format!("{name}.fc2"), (sizes.1, sizes.0), config.bias(NARROW_BIAS)?)
}
