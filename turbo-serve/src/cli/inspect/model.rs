//! What a model consists of: sizes, and parameters by part.

use std::{collections::HashSet, fmt::Write};

use turbo_models::graph::{
    Graph,
    graph::{NamedWeight, Storage},
};
use turbo_models::{Checkpoint, Task};

use super::heading;
use crate::cli::output::{bytes, count, percent};

pub(super) fn section(
    name: &str,
    checkpoint: &Checkpoint,
    (task, computed): (Task, &str),
    drawn: &Graph,
) -> String {
    let config = checkpoint.config();
    let mut text = heading(&format!("{name}: {}", config.model_type));
    let grouped = match config.num_key_value_heads {
        all if all == config.num_attention_heads => String::new(),
        groups => format!(" ({groups} of keys and values)"),
    };
    _ = write!(
        text,
        "{} layers, hidden_size {}, {} heads of {}{grouped}, intermediate_size {}, {:?}\n\
         vocab_size {}, inputs of up to {} tokens, positions for {}\n\
         {}{}; computed in {computed}{}\n\n",
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.head_dim(),
        config.intermediate_size,
        config.hidden_act,
        config.vocab_size,
        checkpoint.max_input_length(),
        config.max_input_length(),
        purpose(checkpoint, task),
        if checkpoint.normalizes() { ", then divided by its length" } else { "" },
        config.torch_dtype.as_ref().map_or(String::new(), |dtype| format!(", stored as {dtype}")),
    );
    text + &parameters(drawn)
}

/// What is computed, in the words of the model.
fn purpose(checkpoint: &Checkpoint, task: Task) -> String {
    match task {
        Task::Embedding { pooling } if checkpoint.pooling() == Some(pooling) => {
            format!("pooling {pooling:?}")
        }
        Task::Embedding { pooling } => format!("pooling not given, {pooling:?} here"),
        Task::SequenceClassification | Task::TokenClassification => {
            format!("task {task}, {} labels", checkpoint.labels().len())
        }
        other => format!("task {other}"),
    }
}

/// Parameters whose names differ in a layer's number only.
struct Part {
    name: String,
    tensors: usize,
    parameters: u64,
}

fn parameters(drawn: &Graph) -> String {
    let parts = parts(drawn);
    let total: u64 = parts.iter().map(|part| part.parameters).sum();
    let mut text =
        format!("{:<50} {:>7} {:>12} {:>9} {:>12}\n", "parameters", "tensors", "values", "share", "as f32");
    for Part { name, tensors, parameters } in &parts {
        _ = writeln!(
            text,
            "{name:<50} {tensors:>7} {:>12} {:>7.1} % {:>12}",
            count(*parameters),
            percent(*parameters as f64, total as f64),
            bytes(4 * parameters)
        );
    }
    let tensors: usize = parts.iter().map(|part| part.tensors).sum();
    _ = writeln!(text, "{:<50} {tensors:>7} {total:>12} {:>7.1} % {:>12}", "total", 100.0, bytes(4 * total));
    text
}

/// Each named tensor once, however often the graph reads it; parts in the order in which they are first read.
fn parts(drawn: &Graph) -> Vec<Part> {
    let (mut seen, mut parts) = (HashSet::new(), Vec::<Part>::new());
    let read = drawn.nodes().iter().flat_map(|node| &node.inputs);
    let weights = read.filter_map(|&value| match &drawn.value(value).storage {
        Storage::Weight(named) => Some(named),
        _ => None,
    });
    for NamedWeight { name, shape } in weights.flatten().filter(|weight| seen.insert(weight.name.as_str())) {
        let part = part_of(name);
        let index = parts.iter().position(|known| known.name == part).unwrap_or_else(|| {
            parts.push(Part { name: part, tensors: 0, parameters: 0 });
            parts.len() - 1
        });
        parts[index].tensors += 1;
        parts[index].parameters += shape.iter().map(|&size| size as u64).product::<u64>();
    }
    parts
}

/// `encoder.layer.*.output.dense` of `encoder.layer.7.output.dense.weight`.
fn part_of(tensor: &str) -> String {
    // what is made of a tensor as it is loaded stands in brackets
    let tensor = tensor.split_once('[').map_or(tensor, |(published, _)| published);
    let module = tensor.rsplit_once('.').map_or(tensor, |(module, _)| module);
    let is_number = |piece: &str| !piece.is_empty() && piece.bytes().all(|byte| byte.is_ascii_digit());
    let pieces = module.split('.').map(|piece| if is_number(piece) { "*" } else { piece });
    pieces.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_share_a_part() {
        let cases = [
            ("encoder.layer.7.output.dense.weight", "encoder.layer.*.output.dense"),
            ("encoder.layer.11.output.dense.bias", "encoder.layer.*.output.dense"),
            ("embeddings.word_embeddings.weight", "embeddings.word_embeddings"),
            ("encoder.layer.7.mlp.up_gate_proj.weight[0..48]", "encoder.layer.*.mlp.up_gate_proj"),
            ("embed_tokens.weight[*27.712812]", "embed_tokens"),
            ("scale", "scale"),
        ];
        for (tensor, part) in cases {
            assert_eq!(part_of(tensor), part);
        }
    }
}
