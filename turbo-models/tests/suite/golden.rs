//! Hidden states against those of the reference implementation in float64.

use std::{collections::BTreeSet, fs, sync::Arc};

use serde_json::Value;
use turbo_graph::{Executor, Op, Pass, PlannerConfig, Program, passes};
use turbo_models::{
    Checkpoint, Cpu, CpuOptions, Encoded, Encoder, EncoderKernels, EncoderOptions, LayoutKind, Pooling,
    Staging, Task,
    graph::kernels::{
        Float, bf16,
        cuda::{
            Cuda, CudaOptions,
            emulator::{Emulator, Order},
        },
        f16,
    },
};

use crate::common::{Row, data, golden_rows, max_difference};

/// The reference itself loses up to 1e-5 in float32, in values of magnitude 3 after at most three layers. Another order
/// of summation may lose as much again; this leaves room for a few times that. A dropped bias, a wrong activation or a
/// mask off by one is off by 1e-2 and more.
const TOLERANCE: f32 = 1e-4;

/// Every way to compute the same result.
fn variants() -> Vec<(&'static str, LayoutKind, Vec<Pass>)> {
    vec![
        ("packed, fused", LayoutKind::Packed, passes::ALL.to_vec()),
        ("padded, fused", LayoutKind::Padded, passes::ALL.to_vec()),
        ("padded, fused as in the paper", LayoutKind::Padded, passes::paper()),
        ("padded, unfused", LayoutKind::Padded, Vec::new()),
    ]
}

/// One result that a model computes for each input.
#[derive(Clone, Copy)]
struct Wanted {
    task: Task,
    output: &'static str,
    golden: fn(&Row) -> Vec<f32>,
}

const HIDDEN: Wanted = Wanted {
    task: Task::Embedding { pooling: Pooling::Mean },
    output: "last_hidden_state",
    golden: |row| row.hidden.clone(),
};

/// The result of a fixture's head.
fn of_head(task: Task) -> Wanted {
    let output = match task {
        Task::MaskedLm => "selected_logits",
        Task::TokenClassification | Task::QuestionAnswering => "token_logits",
        _ => "pooled",
    };
    Wanted { task, output, golden: |row| row.head.clone() }
}

/// The words of a masked language model: for each, the maximum over all tokens of log(1 + relu(logit)).
const SPARSE: Wanted = Wanted {
    task: Task::SparseEmbedding,
    output: "pooled",
    golden: |row| {
        let words = row.head.len() / row.input.input_ids.len();
        let most = |word| row.head.iter().skip(word).step_by(words).copied().fold(0.0, f32::max);
        (0..words).map(|word| most(word).ln_1p()).collect()
    },
};

/// The wanted results for the inputs of each batch.
fn outputs(
    checkpoint: &Checkpoint,
    wanted: Wanted,
    layout: LayoutKind,
    passes: &[Pass],
    batches: &[&[Row]],
) -> Vec<Vec<f32>> {
    let cpu = Cpu::new(CpuOptions::default()).unwrap();
    outputs_on(cpu, checkpoint, wanted, layout, passes, batches)
}

fn outputs_on<D: EncoderKernels>(
    device: D,
    checkpoint: &Checkpoint,
    wanted: Wanted,
    layout: LayoutKind,
    passes: &[Pass],
    batches: &[&[Row]],
) -> Vec<Vec<f32>> {
    let graph = checkpoint.graph(wanted.task).unwrap();
    let program = Program::compile(&graph, layout, passes).unwrap();
    let mut executor = Executor::new(device, program, checkpoint, PlannerConfig::default()).unwrap();
    let output = executor.output(wanted.output).unwrap();
    let mut all = Vec::new();
    for batch in batches {
        let mut staging = Staging::new();
        for Row { input: Encoded { input_ids, token_type_ids }, .. } in *batch {
            staging.push(input_ids, token_type_ids).unwrap();
            if wanted.task == Task::MaskedLm {
                let every_token: Vec<u32> = (0..input_ids.len() as u32).collect();
                staging.select(&every_token).unwrap();
            }
        }
        executor.run(&staging).unwrap();
        for sequence in 0..batch.len() {
            let mut rows = Vec::new();
            executor.read(output, sequence, &mut rows).unwrap();
            all.push(rows);
        }
    }
    all
}

fn matches_the_reference(fixture: &str, wanted: Wanted) {
    let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
    let rows = golden_rows(fixture, checkpoint.config().num_hidden_layers);
    let longest = rows.iter().map(|row| row.input.input_ids.len()).max().unwrap();
    assert_eq!(longest, checkpoint.max_input_length(), "{fixture}: the goldens reach the limit");
    let batched: Vec<&[Row]> = vec![&rows];
    let alone: Vec<&[Row]> = rows.chunks(1).collect();
    for (name, layout, passes) in variants() {
        let together = outputs(&checkpoint, wanted, layout, &passes, &batched);
        let alone = outputs(&checkpoint, wanted, layout, &passes, &alone);
        for ((row, output), alone) in rows.iter().zip(&together).zip(&alone) {
            let difference = max_difference(output, &(wanted.golden)(row));
            let (task, tokens) = (wanted.task, row.input.input_ids.len());
            assert!(
                difference < TOLERANCE,
                "{fixture}, {task}, {name}, {tokens} tokens: off by {difference}"
            );
            assert!(
                bits(output).eq(bits(alone)),
                "{fixture}, {task}, {name}, {tokens} tokens: company changes bits"
            );
        }
    }
    let layouts = [LayoutKind::Packed, LayoutKind::Padded];
    let [packed, padded] =
        layouts.map(|layout| outputs(&checkpoint, wanted, layout, passes::ALL, &batched).concat());
    assert!(bits(&packed).eq(bits(&padded)), "{fixture}, {}: the layout changes bits", wanted.task);
}

/// The hidden states of every family on an emulated GPU: in f32 as on the CPU, in narrower types as close as the
/// reference in those types. Each batch runs twice, because the launches of the second run would be recorded.
#[test]
fn an_emulated_gpu_matches_the_reference() {
    let Some(gpu) = emulated_gpu() else { return };
    for fixture in BARE {
        is_matched_by(&gpu, fixture, HIDDEN, EXACT);
        is_matched_by(&gpu.with_float::<bf16>(), fixture, HIDDEN, as_the_reference_in::<bf16>(fixture));
        if !fixture.starts_with(BEYOND_F16) {
            is_matched_by(&gpu.with_float::<f16>(), fixture, HIDDEN, as_the_reference_in::<f16>(fixture));
        }
    }
}

/// The family whose activations exceed f16. Those of its fixtures do not, but those of its published models do.
const BEYOND_F16: &str = "gemma3";

#[test]
fn what_exceeds_f16_is_refused_where_floats_are_f16() {
    let Some(gpu) = emulated_gpu() else { return };
    for fixture in ["gemma3-base", "gemma3-listed"] {
        let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
        let options = EncoderOptions::of(&checkpoint);
        let refused = Encoder::new(gpu.with_float::<f16>(), &checkpoint, options.clone()).err().unwrap();
        let expected = "gemma3_text models have activations beyond the range of f16, supported: f32, bf16";
        assert_eq!(refused.to_string(), expected);
        assert!(Encoder::new(gpu.with_float::<bf16>(), &checkpoint, options).is_ok(), "{fixture}");
    }
}

#[test]
fn heads_on_an_emulated_gpu_match_the_reference() {
    let Some(gpu) = emulated_gpu() else { return };
    for (fixture, wanted) in [
        ("bert-seqcls", of_head(Task::SequenceClassification)),
        ("modernbert-mean", of_head(Task::SequenceClassification)),
        ("qwen3-rerank", of_head(Task::SequenceClassification)),
        ("jina-rerank", of_head(Task::SequenceClassification)),
        ("deberta-seqcls", of_head(Task::SequenceClassification)),
        ("electra-tokcls", of_head(Task::TokenClassification)),
        ("bert-qa", of_head(Task::QuestionAnswering)),
        ("bert-mlm", of_head(Task::MaskedLm)),
        ("bert-mlm", SPARSE),
    ] {
        is_matched_by(&gpu, fixture, wanted, EXACT);
    }
}

fn emulated_gpu() -> Option<Cuda<f32>> {
    let emulator = Emulator::or_skip(Order::Forward)?;
    Some(Cuda::new(Arc::new(emulator), CudaOptions::default()))
}

/// Most error of a single value, and of all values in the mean.
#[derive(Clone, Copy)]
struct Allowed {
    worst: f32,
    mean: f32,
}

const EXACT: Allowed = Allowed { worst: TOLERANCE, mean: TOLERANCE };

/// What PyTorch itself loses of the fixture's hidden states in `F` shows what such a type can hold. The mean over all
/// values is steady; the worst value is a matter of luck.
fn as_the_reference_in<F: Float>(fixture: &str) -> Allowed {
    let golden: Value =
        serde_json::from_slice(&fs::read(data(fixture).join("golden.json")).unwrap()).unwrap();
    let lost = |what: &str| golden["rounded_drift"][F::NAME][what].as_f64().unwrap() as f32;
    Allowed { worst: 2.5 * lost("worst"), mean: 1.5 * lost("mean") }
}

fn is_matched_by<F: Float>(gpu: &Cuda<F>, fixture: &str, wanted: Wanted, allowed: Allowed) {
    let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
    let rows = golden_rows(fixture, checkpoint.config().num_hidden_layers);
    let twice: Vec<&[Row]> = vec![&rows, &rows];
    let got = outputs_on(gpu.clone(), &checkpoint, wanted, LayoutKind::Packed, passes::ALL, &twice).concat();
    let want: Vec<f32> = rows.iter().chain(&rows).flat_map(wanted.golden).collect();
    let worst = max_difference(&got, &want);
    let mean = got.iter().zip(&want).map(|(got, want)| (got - want).abs()).sum::<f32>() / got.len() as f32;
    assert!(
        worst <= allowed.worst && mean <= allowed.mean,
        "{fixture}, {}, {}: off by {worst}, {mean} in the mean; {}, {} are allowed",
        wanted.task,
        F::NAME,
        allowed.worst,
        allowed.mean
    );
}

/// The head computes what the folder says it is made for.
fn head_matches_the_reference(fixture: &str, task: Task) {
    let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
    assert_eq!(checkpoint.task(), Some(task), "{fixture}");
    assert!(checkpoint.supports(task), "{fixture}");
    let rows = golden_rows(fixture, checkpoint.config().num_hidden_layers);
    assert!(rows.iter().all(|row| !row.head.is_empty()), "{fixture} has goldens of its head");
    matches_the_reference(fixture, of_head(task));
    if task == Task::MaskedLm {
        matches_the_reference(fixture, SPARSE);
        takes_the_maximum_as_it_multiplies(&checkpoint);
    }
}

/// Logits of all words for all tokens at once would not fit in memory, so the maximum is taken inside the product.
fn takes_the_maximum_as_it_multiplies(checkpoint: &Checkpoint) {
    let graph = checkpoint.graph(Task::SparseEmbedding).unwrap();
    let program = Program::compile(&graph, LayoutKind::Packed, passes::ALL).unwrap();
    let fused = program.nodes().iter().filter(|node| node.op == Op::LinearMaxPool).count();
    assert_eq!(fused, 1, "{}", program.graph());
}

fn bits(values: &[f32]) -> impl Iterator<Item = u32> {
    values.iter().map(|value| value.to_bits())
}

/// Whatever the family, fusion leaves one attention operator per layer and none of the textbook's operators, and layers
/// are planned once.
fn is_fused_and_folded(fixture: &str, task: Task) {
    let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
    let graph = checkpoint.graph(task).unwrap();
    let program = Program::compile(&graph, LayoutKind::Packed, passes::ALL).unwrap();
    let count = |is: fn(&Op) -> bool| program.nodes().iter().filter(|node| is(&node.op)).count();
    let layers = count(|op| matches!(op, Op::Attention { .. }));
    assert!(layers >= checkpoint.config().num_hidden_layers as usize, "{fixture}");
    let unfused = |op: &Op| {
        matches!(
            op,
            Op::MergeHeads
                | Op::SplitHeads(_)
                | Op::Mask(_)
                | Op::Softmax
                | Op::AddBias
                | Op::Mul
                | Op::Scale { .. }
        )
    };
    assert!(program.nodes().iter().all(|node| !unfused(&node.op)), "{fixture}: {}", program.graph());
    // Gemma's sums follow norms, not products, so no product absorbs them
    let sums = if checkpoint.config().model_type == "gemma3_text" { 2 * layers } else { 0 };
    assert_eq!(count(|op| *op == Op::Add), sums, "{fixture}: {}", program.graph());
    let experts = count(|op| matches!(op, Op::Experts { .. }));
    let plain = count(|op| matches!(op, Op::FeedForward(_)));
    assert_eq!(plain + experts, layers, "{fixture}: {}", program.graph());
    // a period may be cut where the first or the last layer is not whole; two in three of ModernBERT's layers are
    // alike, some of Gemma's are, and every other layer is in models with experts
    let folded = program.slots().folded_periods();
    let expected = match checkpoint.config().model_type.as_str() {
        "modernbert" | "gemma3_text" => layers / 2,
        _ if experts > 0 => layers / 2,
        _ => (layers - 1).max(layers.min(2)),
    };
    assert!(folded >= expected, "{fixture}: {folded} of {layers} layers folded");
}

/// BERT-like families have one operator for their embeddings and four in each layer, norms included.
fn is_fused_as_bert(fixture: &str) {
    let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
    let graph = checkpoint.graph(Pooling::Mean).unwrap();
    let program = Program::compile(&graph, LayoutKind::Packed, passes::ALL).unwrap();
    let count = |is: fn(&Op) -> bool| program.nodes().iter().filter(|node| is(&node.op)).count();
    let layers = count(|op| matches!(op, Op::Attention { .. }));
    assert_eq!(count(|op| matches!(op, Op::EmbedSumLayerNorm { .. })), 1, "{fixture}");
    assert_eq!(count(|op| matches!(op, Op::LinearLayerNorm { .. })), layers, "{fixture}");
    assert_eq!(count(|op| matches!(op, Op::FeedForward(parts) if parts.norm.is_some())), layers, "{fixture}");
    assert_eq!(count(|op| matches!(op, Op::Linear { .. })), layers + usize::from(projects(&checkpoint)));
    // and the mean of the rows
    assert_eq!(program.nodes().len(), 4 * layers + 2 + usize::from(projects(&checkpoint)), "{fixture}");
}

/// Whether the embeddings are narrower than the layers.
fn projects(checkpoint: &Checkpoint) -> bool {
    checkpoint.config().embedding_size != checkpoint.config().hidden_size
}

macro_rules! fixtures {
    (
        bare: { $($test:ident: $fixture:literal),* $(,)? }
        heads: { $($head_test:ident: $head_fixture:literal $task:ident),* $(,)? }
    ) => {
        $(#[test] fn $test() {
            matches_the_reference($fixture, HIDDEN);
            is_fused_and_folded($fixture, HIDDEN.task);
        })*

        $(#[test] fn $head_test() {
            matches_the_reference($head_fixture, HIDDEN);
            is_fused_and_folded($head_fixture, HIDDEN.task);
            is_fused_and_folded($head_fixture, Task::$task);
            head_matches_the_reference($head_fixture, Task::$task);
        })*

        /// A model of each family and of each kind of sizes.
        const BARE: &[&str] = &[$($fixture),*];
        pub(crate) const FIXTURES: &[&str] = &[$($fixture,)* $($head_fixture),*];
    };
}

fixtures! {
    bare: {
        base: "bert-base",
        relu: "bert-relu",
        bfloat16_file: "bert-bf16",
        float16_file: "bert-f16",
        sharded: "bert-sharded",
        odd_sizes: "bert-odd",
        roberta: "roberta-base",
        xlm_roberta: "xlm-roberta-base",
        camembert: "camembert-base",
        distilbert: "distilbert-base",
        electra: "electra-base",
        albert: "albert-base",
        albert_with_groups_of_inner_layers: "albert-groups",
        mpnet: "mpnet-base",
        modernbert: "modernbert-base",
        nomic: "nomic-base",
        nomic_with_biases: "nomic-bias",
        nomic_with_experts: "nomic-experts",
        gte: "gte-base",
        gte_unstretched_with_types: "gte-plain",
        jina: "jina-base",
        jina_of_code: "jina-code",
        jina_over_long_distances: "jina-long",
        qwen3: "qwen3-base",
        qwen3_with_wide_heads: "qwen3-wide",
        qwen3_with_biases: "qwen3-bias",
        qwen2: "qwen2-base",
        qwen2_that_sees_all: "qwen2-full",
        mistral: "mistral-base",
        llama_stretched_by_frequency: "llama-base",
        gemma3: "gemma3-base",
        gemma3_with_listed_layers: "gemma3-listed",
        deberta: "deberta-base",
        deberta_with_matrices_of_positions: "deberta-own",
        mpnet_beyond_its_buckets: "mpnet-long",
        deberta_beyond_its_buckets: "deberta-long",
        modernbert_beyond_its_window: "modernbert-long",
        qwen3_at_large_angles: "qwen3-long",
    }
    heads: {
        bert_sequences: "bert-seqcls" SequenceClassification,
        bert_one_label: "bert-rerank" SequenceClassification,
        bert_tokens: "bert-tokcls" TokenClassification,
        bert_answers: "bert-qa" QuestionAnswering,
        bert_words: "bert-mlm" MaskedLm,
        bert_words_with_legacy_names: "bert-mlm-legacy" MaskedLm,
        roberta_sequences: "roberta-seqcls" SequenceClassification,
        roberta_tokens: "roberta-tokcls" TokenClassification,
        roberta_answers: "roberta-qa" QuestionAnswering,
        roberta_words: "roberta-mlm" MaskedLm,
        xlm_roberta_one_label: "xlm-roberta-rerank" SequenceClassification,
        camembert_words: "camembert-mlm" MaskedLm,
        distilbert_sequences: "distilbert-seqcls" SequenceClassification,
        distilbert_tokens: "distilbert-tokcls" TokenClassification,
        distilbert_answers: "distilbert-qa" QuestionAnswering,
        distilbert_words: "distilbert-mlm" MaskedLm,
        electra_sequences: "electra-seqcls" SequenceClassification,
        electra_tokens: "electra-tokcls" TokenClassification,
        electra_replaced_tokens: "electra-rtd" TokenClassification,
        electra_answers: "electra-qa" QuestionAnswering,
        electra_words: "electra-mlm" MaskedLm,
        albert_sequences: "albert-seqcls" SequenceClassification,
        albert_tokens: "albert-tokcls" TokenClassification,
        albert_answers: "albert-qa" QuestionAnswering,
        albert_words: "albert-mlm" MaskedLm,
        mpnet_sequences: "mpnet-seqcls" SequenceClassification,
        mpnet_tokens: "mpnet-tokcls" TokenClassification,
        mpnet_answers: "mpnet-qa" QuestionAnswering,
        mpnet_words: "mpnet-mlm" MaskedLm,
        deberta_sequences: "deberta-seqcls" SequenceClassification,
        deberta_tokens: "deberta-tokcls" TokenClassification,
        deberta_answers: "deberta-qa" QuestionAnswering,
        modernbert_sequences: "modernbert-seqcls" SequenceClassification,
        modernbert_sequences_by_the_mean: "modernbert-mean" SequenceClassification,
        modernbert_tokens: "modernbert-tokcls" TokenClassification,
        modernbert_answers: "modernbert-qa" QuestionAnswering,
        modernbert_words: "modernbert-mlm" MaskedLm,
        gte_one_label: "gte-rerank" SequenceClassification,
        gte_tokens: "gte-tokcls" TokenClassification,
        gte_words: "gte-mlm" MaskedLm,
        jina_one_label: "jina-rerank" SequenceClassification,
        jina_of_code_one_label: "jina-code-rerank" SequenceClassification,
        jina_tokens: "jina-tokcls" TokenClassification,
        jina_answers: "jina-qa" QuestionAnswering,
        jina_words: "jina-mlm" MaskedLm,
        qwen3_one_label: "qwen3-rerank" SequenceClassification,
        qwen3_tokens: "qwen3-tokcls" TokenClassification,
        qwen2_one_label: "qwen2-rerank" SequenceClassification,
        mistral_one_label: "mistral-rerank" SequenceClassification,
        llama_stretched_one_label: "llama-rerank" SequenceClassification,
    }
}

#[test]
fn the_family_of_bert_is_fused_alike() {
    for fixture in
        ["bert-base", "roberta-base", "distilbert-base", "electra-base", "albert-groups", "mpnet-base"]
    {
        is_fused_as_bert(fixture);
    }
}

#[test]
fn no_fixture_is_forgotten() {
    let folders =
        fs::read_dir(data("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let is_encoder = |name: &String| {
        let golden = fs::read(data(name).join("golden.json"));
        golden.is_ok_and(|golden| serde_json::from_slice::<Value>(&golden).unwrap()["kind"] == "encoder")
    };
    let folders: BTreeSet<String> = folders.filter(is_encoder).collect();
    assert_eq!(folders, FIXTURES.iter().map(|name| (*name).to_owned()).collect());
}
