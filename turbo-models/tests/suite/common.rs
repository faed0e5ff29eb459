//! Where the fixtures are, what is in them, and what their models compute.

use std::path::{Path, PathBuf};

use safetensors::{SafeTensors, tensor::Dtype};
use turbo_models::{
    Checkpoint, Cpu, CpuOptions, Encoded, Encoder, EncoderOptions, ModelError, Pooling, Staging, Task,
};

/// The folder `name` of the fixtures.
pub(crate) fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// An input and the reference's results for it.
pub(crate) struct Row {
    /// Its ids.
    pub(crate) input: Encoded,
    /// The last hidden state, `[seq_len, hidden_size]`.
    pub(crate) hidden: Vec<f32>,
    /// The result of the head: a row for the input, or for each token. Empty without a head.
    pub(crate) head: Vec<f32>,
}

/// The rows of a fixture's `golden.safetensors`, of lengths at which kernels take different paths.
pub(crate) fn golden_rows(fixture: &str, num_layers: u32) -> Vec<Row> {
    let file = std::fs::read(data(fixture).join("golden.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    let ids = |name: &str| -> Vec<u32> {
        let tensor = file.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), Dtype::I64);
        tensor.data().as_chunks().0.iter().map(|id| i64::from_le_bytes(*id).try_into().unwrap()).collect()
    };
    // values, and how many there are in a row
    let rows_of = |name: &str| -> Option<(Vec<f32>, usize)> {
        let tensor = file.tensor(name).ok()?;
        assert_eq!(tensor.dtype(), Dtype::F32);
        let values = tensor.data().as_chunks().0.iter().map(|value| f32::from_le_bytes(*value));
        Some((values.collect(), tensor.shape()[1]))
    };
    let hidden = rows_of("rows.last_hidden_state");
    let hidden = hidden.or_else(|| rows_of(&format!("rows.hidden_states.{num_layers}")));
    let (hidden, hidden_size) = hidden.unwrap();
    let (head, head_width) = rows_of("rows.head").unwrap_or_default();
    let input_ids = ids("rows.input_ids");
    let types = "rows.token_type_ids";
    let token_type_ids = if file.tensor(types).is_ok() { ids(types) } else { vec![0; input_ids.len()] };
    let rows = ids("rows.cu_seqlens");
    let per_input = head.len() == (rows.len() - 1) * head_width;
    let row = |(index, ends): (usize, &[u32])| {
        let tokens = ends[0] as usize..ends[1] as usize;
        let input = Encoded {
            input_ids: input_ids[tokens.clone()].to_vec(),
            token_type_ids: token_type_ids[tokens.clone()].to_vec(),
        };
        let of_head = if per_input { index..index + 1 } else { tokens.clone() };
        Row {
            input,
            hidden: hidden[tokens.start * hidden_size..tokens.end * hidden_size].to_vec(),
            head: head[of_head.start * head_width..of_head.end * head_width].to_vec(),
        }
    };
    rows.windows(2).enumerate().map(row).collect()
}

/// The largest difference between two rows of the same length.
pub(crate) fn max_difference(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    // NaN counts as larger than any difference
    got.iter().zip(expected).map(|(g, e)| (g - e).abs()).fold(0.0, |max, d| if d <= max { max } else { d })
}

/// An encoder on the CPU.
pub(crate) fn encoder(checkpoint: &Checkpoint, options: EncoderOptions) -> Result<Encoder<Cpu>, ModelError> {
    Encoder::new(Cpu::new(CpuOptions::default()).unwrap(), checkpoint, options)
}

/// The result of the folder's own task for one input.
pub(crate) fn vector(checkpoint: &Checkpoint, input: &Encoded) -> Vec<f32> {
    pooled(checkpoint, checkpoint.task().unwrap(), input)
}

/// The same for a folder that names no task.
pub(crate) fn bare_vector(folder: &Path, pooling: Pooling, input: &Encoded) -> Vec<f32> {
    pooled(&Checkpoint::open(folder).unwrap(), pooling.into(), input)
}

fn pooled(checkpoint: &Checkpoint, task: Task, input: &Encoded) -> Vec<f32> {
    let options = EncoderOptions { task, ..EncoderOptions::of(checkpoint) };
    encoder(checkpoint, options).unwrap().embed_batch(std::slice::from_ref(input)).unwrap().remove(0)
}

/// The vocabulary logits of one token.
pub(crate) fn word_logits(folder: &Path) -> Vec<f32> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let options = EncoderOptions { task: Task::MaskedLm, ..EncoderOptions::of(&checkpoint) };
    let mut encoder = encoder(&checkpoint, options).unwrap();
    let mut batch = Staging::new();
    batch.push(&[5, 6, 7], &[0, 0, 0]).unwrap();
    batch.select(&[1]).unwrap();
    encoder.run(&batch).unwrap();
    let mut logits = Vec::new();
    encoder.selected(0, &mut logits).unwrap();
    logits
}
