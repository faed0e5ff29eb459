//! Checkpoints of a named shape with random weights: timing needs the sizes, not the knowledge.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::json;

/// The sizes of a BERT.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct BertShape {
    /// What people call it.
    pub name: &'static str,
    /// Width of a token's vector.
    pub hidden_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads of each attention.
    pub num_attention_heads: usize,
    /// Width between the matrices of the feed-forward part.
    pub intermediate_size: usize,
    /// Rows of the word table.
    pub vocab_size: usize,
    /// Rows of the position table.
    pub max_position_embeddings: usize,
}

/// BERT-base (Devlin et al., 2018).
pub const BERT_BASE: BertShape = BertShape {
    name: "bert-base",
    hidden_size: 768,
    num_hidden_layers: 12,
    num_attention_heads: 12,
    intermediate_size: 3072,
    vocab_size: 30522,
    max_position_embeddings: 512,
};

impl BertShape {
    /// Writes `config.json` and `model.safetensors` to `dir`: values in ±0.02, norm gains 1.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let config = json!({
            "model_type": "bert",
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "intermediate_size": self.intermediate_size,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_position_embeddings,
        });
        std::fs::write(dir.join("config.json"), config.to_string()).context("cannot write config.json")?;
        let tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)> = self
            .tensors()
            .into_iter()
            .map(|(name, shape)| (name.clone(), (shape.clone(), values(&name, &shape))))
            .collect();
        let views = tensors
            .iter()
            .map(|(name, (shape, bytes))| {
                Ok((name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes)?))
            })
            .collect::<Result<Vec<_>>>()?;
        let file = dir.join("model.safetensors");
        safetensors::serialize_to_file(views, None, &file)
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// Names and shapes, as published.
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, wide) = (self.hidden_size, self.intermediate_size);
        let norm = |name: &str| {
            vec![(format!("{name}.weight"), vec![hidden]), (format!("{name}.bias"), vec![hidden])]
        };
        let linear = |name: &str, out: usize, columns: usize| {
            vec![(format!("{name}.weight"), vec![out, columns]), (format!("{name}.bias"), vec![out])]
        };
        let mut tensors = vec![
            ("embeddings.word_embeddings.weight".to_owned(), vec![self.vocab_size, hidden]),
            ("embeddings.token_type_embeddings.weight".to_owned(), vec![2, hidden]),
            ("embeddings.position_embeddings.weight".to_owned(), vec![self.max_position_embeddings, hidden]),
        ];
        tensors.extend(norm("embeddings.LayerNorm"));
        for layer in 0..self.num_hidden_layers {
            let name = format!("encoder.layer.{layer}");
            for part in ["query", "key", "value"] {
                tensors.extend(linear(&format!("{name}.attention.self.{part}"), hidden, hidden));
            }
            tensors.extend(linear(&format!("{name}.attention.output.dense"), hidden, hidden));
            tensors.extend(norm(&format!("{name}.attention.output.LayerNorm")));
            tensors.extend(linear(&format!("{name}.intermediate.dense"), wide, hidden));
            tensors.extend(linear(&format!("{name}.output.dense"), hidden, wide));
            tensors.extend(norm(&format!("{name}.output.LayerNorm")));
        }
        tensors
    }
}

fn values(name: &str, shape: &[usize]) -> Vec<u8> {
    let gain = name.ends_with("LayerNorm.weight");
    let mut state =
        name.bytes().fold(0x9e37_79b9_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if gain { 1.0_f32 } else { (state >> 8) as f32 / (1 << 24) as f32 * 0.04 - 0.02 }
    };
    std::iter::repeat_with(next).take(shape.iter().product()).flat_map(f32::to_le_bytes).collect()
}
