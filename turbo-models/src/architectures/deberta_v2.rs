//! DeBERTa-v2 and v3 (He et al., 2021 and 2023): BERT whose attention depends on the distance between tokens. To the
//! score of a query and a key is added that of the query with a row for the key's position, and that of the key with a
//! row for the query's position (disentangled attention). One table has these rows for all layers; distant positions
//! share rows.
//!
//! Configurations of version 3 carry the name of version 2.

use serde_json::Value;
use turbo_graph::{Pooling, PositionBuckets, ValueId};

use super::{
    ActivationRange, Architecture, Name,
    attention::RelativeBias,
    bert,
    heads::{self, HasBias, Head, Step, Width},
    post_norm::{self, LayerNames},
};
use crate::{
    ModelConfig, ModelError, Task,
    config::{ConfigFields, Only, Setting},
    drawing::Drawing,
    position_table::PositionTable,
};

pub(super) const DEBERTA_V2: Architecture = Architecture {
    names: &[Name { model_type: "deberta-v2", class_prefix: "DebertaV2" }],
    tensor_prefixes: &["deberta."],
    fields: ConfigFields {
        vocab_size: Setting::Field("vocab_size", 128_100),
        hidden_size: Setting::Field("hidden_size", 1536),
        num_hidden_layers: Setting::Field("num_hidden_layers", 24),
        num_attention_heads: Setting::Field("num_attention_heads", 24),
        intermediate_size: Setting::Field("intermediate_size", 6144),
        type_vocab_size: Some(Setting::Field("type_vocab_size", 0)),
        layer_norm_eps: Setting::Field("layer_norm_eps", 1e-7),
        only: &[
            Only { field: "relative_attention", values: &["true"], default: "false" },
            // a convolution beside the first layer
            Only { field: "conv_kernel_size", values: &["0"], default: "0" },
        ],
        ..bert::FIELDS
    },
    activations: ActivationRange::WithinF16,
    heads: HEADS,
    draw,
};

/// There is no head for masked words: the library computes a different one than published files have, unless told
/// otherwise (`legacy`).
const HEADS: &[Head] = &[
    Head {
        task: Task::SequenceClassification,
        steps: &[
            Step::Pool(Pooling::Cls),
            Step::Linear("pooler.dense", Width::Hidden, HasBias::Always),
            Step::ActivateAs(Setting::Field("pooler_hidden_act", "gelu")),
            Step::Linear("classifier", Width::Labels, HasBias::Always),
        ],
    },
    heads::TOKEN_CLASSIFIER,
    heads::ANSWERS,
];

const LAYER: LayerNames = LayerNames {
    query: "attention.self.query_proj",
    key: "attention.self.key_proj",
    value: "attention.self.value_proj",
    context: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    wide: "intermediate.dense",
    narrow: "output.dense",
    output_norm: "output.LayerNorm",
};

fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    check(config)?;
    let in_words = config.read(Setting::Field("position_biased_input", true))?;
    let mut x = match in_words {
        true => post_norm::embeddings(drawing, config)?,
        false => post_norm::embeddings_without_positions(drawing, config)?,
    };
    let relative = RelativePositions::read(config)?;
    for layer in 0..config.num_hidden_layers {
        drawing.graph.layer(Some(layer));
        let name = format!("encoder.layer.{layer}");
        let bias = relative.bias(drawing, config, &format!("{name}.attention.self"))?;
        let scale = Some(relative.table.factor);
        x = post_norm::biased_layer(drawing, config, &LAYER, &name, x, Some(bias), scale)?;
    }
    Ok(x)
}

/// Refuses configurations that would have to be drawn in another way.
fn check(config: &ModelConfig) -> Result<(), ModelError> {
    let hidden = config.hidden_size;
    for field in ["embedding_size", "pooler_hidden_size"] {
        if let Some(size) = config.optional::<u64>(field)?.filter(|size| *size != hidden as u64) {
            return Err(config.unsupported(field, size, &format!("{hidden}, the hidden_size")));
        }
    }
    const FIELD: &str = "pos_att_type";
    let given = config.optional::<Value>(FIELD)?.unwrap_or(Value::Null);
    // a list, or one text in most published files
    let mut kinds: Vec<String> = match &given {
        Value::String(text) => text.to_lowercase().split('|').map(|kind| kind.trim().to_owned()).collect(),
        Value::Array(list) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    kinds.sort_unstable();
    if kinds == ["c2p", "p2c"] {
        return Ok(());
    }
    let given = given.as_str().map_or_else(|| given.to_string(), str::to_owned);
    Err(config.unsupported(FIELD, given, "p2c|c2p"))
}

/// How layers score with the positions of the one table.
struct RelativePositions {
    buckets: PositionBuckets,
    table: PositionTable,
    /// Whether the matrices of queries and keys project the table, or separate matrices do.
    share: bool,
}

impl RelativePositions {
    fn read(config: &ModelConfig) -> Result<Self, ModelError> {
        // numbers below 1 mean the default
        let given = |field| Ok::<_, ModelError>(config.optional::<i64>(field)?.filter(|number| *number > 0));
        let most =
            given("max_relative_positions")?.map_or(config.max_position_embeddings, |most| most as usize);
        let buckets = match given("position_buckets")? {
            None => PositionBuckets { span: most, max_distance: None },
            Some(buckets) => {
                let span = buckets as usize;
                if span < 2 || most <= span / 2 + 1 {
                    let why = format!(
                        "is {span}, expected at least 2, and half of them less than {}, one less than the positions",
                        most - 1
                    );
                    return Err(config.wrong("position_buckets", why));
                }
                PositionBuckets { span, max_distance: Some(most) }
            }
        };
        let norms = config.word(Setting::Field("norm_rel_ebd", "none"))?.to_lowercase();
        let is_normed = norms.split('|').any(|norm| norm.trim() == "layer_norm");
        Ok(Self {
            buckets,
            table: PositionTable {
                rows: "encoder.rel_embeddings.weight".to_owned(),
                norm: is_normed.then(|| ("encoder.LayerNorm".to_owned(), config.layer_norm_eps)),
                // a score is a sum of three
                factor: 1.0 / (3.0 * config.head_dim() as f32).sqrt(),
            },
            share: config.read(Setting::Field("share_att_key", false))?,
        })
    }

    /// The bias of one layer, from the weights below `attention`.
    fn bias(
        &self,
        drawing: &mut Drawing<'_>,
        config: &ModelConfig,
        attention: &str,
    ) -> Result<RelativeBias, ModelError> {
        let [key, query] =
            if self.share { ["key_proj", "query_proj"] } else { ["pos_key_proj", "pos_query_proj"] };
        let sizes = (self.buckets.count(), config.hidden_size, config.hidden_size);
        let mut table =
            |matrix: &str| drawing.positions(&format!("{attention}.{matrix}"), sizes, &self.table);
        Ok(RelativeBias::Disentangled {
            for_queries: table(key)?,
            for_keys: table(query)?,
            positions: self.buckets,
        })
    }
}
