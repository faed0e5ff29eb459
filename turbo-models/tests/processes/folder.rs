//! A model with the proportions of BERT, large enough to stand out from everything else in memory.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::Path,
};

use serde_json::{Map, Value, json};

const HIDDEN: usize = 512;
const WIDE: usize = 2048;
const LAYERS: usize = 6;
const VOCAB: usize = 40_000;
const POSITIONS: usize = 128;

/// Writes `config.json` and about 160 MB of weights.
pub(crate) fn write(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let config = json!({
        "model_type": "bert", "hidden_size": HIDDEN, "intermediate_size": WIDE, "num_hidden_layers": LAYERS,
        "num_attention_heads": 8, "vocab_size": VOCAB, "max_position_embeddings": POSITIONS,
    });
    fs::write(dir.join("config.json"), config.to_string())?;

    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in tensors() {
        let first = end;
        end += shape.iter().product::<usize>() * size_of::<f32>();
        header.insert(name, json!({ "dtype": "F32", "shape": shape, "data_offsets": [first, end] }));
    }
    let mut header = Value::Object(header).to_string();
    header.extend((header.len()..header.len().next_multiple_of(8)).map(|_| ' '));
    let mut file = BufWriter::new(File::create(dir.join("model.safetensors"))?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let noise = noise();
    for chunk in (0..end).step_by(noise.len()) {
        file.write_all(&noise[..noise.len().min(end - chunk)])?;
    }
    file.flush()
}

/// Small numbers around zero, a prime number of them, so that no two rows of a matrix are the same.
fn noise() -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / (1 << 24) as f32 - 0.5) * 0.1
    };
    (0..65_537).flat_map(|_| next().to_le_bytes()).collect()
}

fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut tensors = Vec::new();
    let mut matrix = |name: String, rows: usize, columns: usize| {
        tensors.push((format!("{name}.weight"), vec![rows, columns]));
        tensors.push((format!("{name}.bias"), vec![rows]));
    };
    for layer in 0..LAYERS {
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        for part in
            ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]
        {
            matrix(name(part), HIDDEN, HIDDEN);
        }
        matrix(name("intermediate.dense"), WIDE, HIDDEN);
        matrix(name("output.dense"), HIDDEN, WIDE);
    }
    let layer_norms = (0..LAYERS).flat_map(|layer| {
        ["attention.output", "output"].map(|half| format!("encoder.layer.{layer}.{half}.LayerNorm"))
    });
    for norm in layer_norms.chain(["embeddings.LayerNorm".to_owned()]) {
        tensors.push((format!("{norm}.weight"), vec![HIDDEN]));
        tensors.push((format!("{norm}.bias"), vec![HIDDEN]));
    }
    for (table, rows) in [("word", VOCAB), ("position", POSITIONS), ("token_type", 2)] {
        tensors.push((format!("embeddings.{table}_embeddings.weight"), vec![rows, HIDDEN]));
    }
    tensors
}
