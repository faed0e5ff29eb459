//! EmbeddingGemma (Schechter Vera et al., 2025): Gemma 3 (Gemma Team, 2025), trained further so that tokens also see
//! those behind them. There are norms before and behind each part of a layer, and of every query and key head; their
//! gain is one more than the weight. Every few layers a token sees all others. In the layers between it sees only its
//! neighbours, and positions rotate faster.

use turbo_graph::{AttentionMask, Input, ValueId};

use super::{
    ActivationRange, Architecture, Name, bert,
    decoder::{self, Projections, SelfAttention},
    global_layers::GlobalLayers,
    rotary,
};
use crate::{
    ModelConfig, ModelError,
    config::{ConfigFields, HeadDim, KeyValueHeads, Only, Setting},
    drawing::{Drawing, Gain},
};

const GLOBAL_EVERY: Setting<u32> = Setting::Field("sliding_window_pattern", 6);
const WINDOW: Setting<u32> = Setting::Field("sliding_window", 4096);
const GLOBAL_THETA: Setting<f64> = Setting::Field("rope_theta", 1_000_000.0);
const LOCAL_THETA: Setting<f64> = Setting::Field("rope_local_base_freq", 10_000.0);
const ATTENTION_BIAS: Setting<bool> = Setting::Field("attention_bias", false);
const SCALAR: Setting<f64> = Setting::Field("query_pre_attn_scalar", 256.0);

pub(super) const GEMMA3: Architecture = Architecture {
    names: &[Name { model_type: "gemma3_text", class_prefix: "Gemma3Text" }],
    tensor_prefixes: &["model."],
    fields: ConfigFields {
        vocab_size: Setting::Field("vocab_size", 262_208),
        hidden_size: Setting::Field("hidden_size", 2304),
        num_hidden_layers: Setting::Field("num_hidden_layers", 26),
        num_attention_heads: Setting::Field("num_attention_heads", 8),
        num_key_value_heads: KeyValueHeads::Own(Setting::Field("num_key_value_heads", 4)),
        head_dim: HeadDim::Own(Setting::Field("head_dim", 256)),
        intermediate_size: Setting::Field("intermediate_size", 9216),
        hidden_act: Setting::Field("hidden_activation", "gelu_pytorch_tanh"),
        max_position_embeddings: Setting::Field("max_position_embeddings", 131_072),
        type_vocab_size: None,
        layer_norm_eps: Setting::Field("rms_norm_eps", 1e-6),
        only: &[
            // generative models are causal, and their windows lie before a token
            Only { field: "use_bidirectional_attention", values: &["true"], default: "false" },
            // capped scores are not implemented
            Only { field: "attn_logit_softcapping", values: &["null"], default: "null" },
        ],
        ..bert::FIELDS
    },
    activations: ActivationRange::BeyondF16,
    heads: &[],
    draw,
};

fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    let (global, local) = attentions(drawing, config)?;
    let regular = || {
        let distance = config.count(GLOBAL_EVERY)?;
        Ok(GlobalLayers::Every { distance, first: distance - 1 })
    };
    let global_layers = GlobalLayers::listed_or(config, regular)?;
    let (hidden, epsilon) = (config.hidden_size, config.layer_norm_eps);
    let norm = |drawing: &mut Drawing<'_>, x, name: &str| {
        drawing.rms_norm(x, name, hidden, epsilon, Gain::OnePlusWeight)
    };

    let ids = drawing.graph.input(Input::InputIds);
    let words = (config.vocab_size, hidden);
    let mut x = drawing.embed_times("embed_tokens", words, ids, (hidden as f32).sqrt())?;
    for layer in 0..config.num_hidden_layers {
        drawing.graph.layer(Some(layer));
        let name = format!("layers.{layer}");
        let attention = if global_layers.has(layer) { global } else { local };
        let normed = norm(drawing, x, &format!("{name}.input_layernorm"))?;
        let context = attention.draw(drawing, config, &format!("{name}.self_attn"), normed)?;
        let context = norm(drawing, context, &format!("{name}.post_attention_layernorm"))?;
        x = drawing.graph.add(x, context)?;
        let normed = norm(drawing, x, &format!("{name}.pre_feedforward_layernorm"))?;
        let narrow = decoder::feed_forward(drawing, config, &format!("{name}.mlp"), normed)?;
        let narrow = norm(drawing, narrow, &format!("{name}.post_feedforward_layernorm"))?;
        x = drawing.graph.add(x, narrow)?;
    }
    drawing.graph.layer(None);
    norm(drawing, x, "norm")
}

/// The attention of the layers that see the whole input, and that of the others.
fn attentions(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
) -> Result<(SelfAttention, SelfAttention), ModelError> {
    rotary::refuse_scaling(config)?;
    let bias = config.bias(ATTENTION_BIAS)?;
    let projections = Projections { bias, context_bias: bias, head_norms: Some(Gain::OnePlusWeight) };
    let scale = Some(scale(config)?);
    let mut of = |layers, theta, mask| {
        let theta = rotary::theta(config, layers, theta)?;
        let table = rotary::table(drawing, config, theta, rotary::Stretch::None)?;
        Ok::<_, ModelError>(SelfAttention { projections, table, mask, scale })
    };
    let global = of(rotary::Layers::Global, GLOBAL_THETA, AttentionMask::Full)?;
    // The field counts both sides. Versions of transformers up to early ones of 5 save half of it, which they compute
    // with, in its place, and halve the window again when they read such a file; so does this code.
    let reach = config.count(WINDOW)? as usize / 2;
    let local = of(rotary::Layers::Local, LOCAL_THETA, AttentionMask::Window { reach })?;
    Ok((global, local))
}

/// Factor of the scores.
fn scale(config: &ModelConfig) -> Result<f32, ModelError> {
    match config.read(SCALAR)? {
        scalar if scalar > 0.0 && scalar.is_finite() => Ok(scalar.sqrt().recip() as f32),
        other => Err(config.wrong(SCALAR.name(), format!("is {other}, expected more than 0"))),
    }
}
