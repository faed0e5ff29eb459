//! Does what a model folder is made for: labels a text or two, finds entities, answers a question, fills in a masked
//! word, lists the words of a sparse vector.
//!
//! ```text
//! cargo run --release --example task -- FOLDER TEXT [SECOND TEXT]
//!
//! cd turbo-models/tests/data        tiny models with random weights: their answers mean nothing
//! cargo run --release --example task -- pipeline-classify 'the cat sat'
//! cargo run --release --example task -- pipeline-entities-roberta 'the cat sat on the mat'
//! cargo run --release --example task -- pipeline-answers-wordpiece 'who sat?' 'the cat sat on the mat'
//! cargo run --release --example task -- pipeline-fill-mask-wordpiece 'the [MASK] sat on the mat'
//! ```

use std::{env, error::Error, path::Path, process::ExitCode};

use turbo_models::{
    Checkpoint, Cpu, CpuOptions, Encoded, Encoder, EncoderOptions, ModelError, SpecialTokens, Staging, Task,
    Text, TextTokenizer, Truncation,
    tasks::{
        Aggregation, AnswerOptions, AnswerWindow, answers, classify, entities, fill_mask, filled_text,
        mask_positions, sparse,
    },
};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (folder, text) = match &arguments[..] {
        [folder, text] => (folder, Text::One(text)),
        [folder, first, second] => (folder, Text::Pair(first, second)),
        _ => {
            eprintln!("usage: task FOLDER TEXT [SECOND TEXT]");
            return ExitCode::FAILURE;
        }
    };
    match run(Path::new(folder), text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(folder: &Path, text: Text<'_>) -> Outcome<()> {
    let checkpoint = Checkpoint::open(folder)?;
    checkpoint.warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
    let tokenizer = checkpoint.tokenizer().ok_or("the folder has no tokenizer")?;
    let options = EncoderOptions::of(&checkpoint);
    let task = options.task;
    let mut encoder = Encoder::new(Cpu::new(CpuOptions::default())?, &checkpoint, options)?;
    match (task, text) {
        (Task::Embedding { .. }, _) => Err("this model gives vectors: see the example `embed`".into()),
        (Task::SequenceClassification, text) => show_labels(&checkpoint, tokenizer, &mut encoder, text),
        (Task::TokenClassification, Text::One(text)) => {
            show_entities(&checkpoint, tokenizer, &mut encoder, text)
        }
        (Task::QuestionAnswering, Text::Pair(question, context)) => {
            show_answers(tokenizer, &mut encoder, question, context)
        }
        (Task::MaskedLm, Text::One(text)) => show_words(tokenizer, &mut encoder, text),
        (Task::SparseEmbedding, Text::One(text)) => show_weights(tokenizer, &mut encoder, text),
        (Task::QuestionAnswering, _) => Err("this model takes two texts: a question and a context".into()),
        (task, _) => Err(format!("{task} takes one text").into()),
    }
}

/// Appends the rows of one input of the last batch.
type Read = fn(&mut Encoder<Cpu>, usize, &mut Vec<f32>) -> Result<(), ModelError>;

/// The rows that `read` returns for each input, run as one batch; in each input, the tokens in `selected` are selected.
fn rows(
    encoder: &mut Encoder<Cpu>,
    inputs: &[Encoded],
    selected: &[u32],
    read: Read,
) -> Outcome<Vec<Vec<f32>>> {
    let mut batch = Staging::new();
    for input in inputs {
        encoder.push(&mut batch, &input.input_ids, &input.token_type_ids)?;
        batch.select(selected)?;
    }
    encoder.run(&batch)?;
    let mut rows = vec![Vec::new(); inputs.len()];
    for (sequence, row) in rows.iter_mut().enumerate() {
        read(encoder, sequence, row)?;
    }
    Ok(rows)
}

fn show_labels(
    checkpoint: &Checkpoint,
    tokenizer: &TextTokenizer,
    encoder: &mut Encoder<Cpu>,
    text: Text<'_>,
) -> Outcome<()> {
    let input = tokenizer.encode(text, Truncation::Right)?;
    let logits = &rows(encoder, &[input], &[], Encoder::pooled)?[0];
    for label in classify(logits, checkpoint.score_function())? {
        println!("{:8.4}  {}", label.score, checkpoint.labels()[label.index]);
    }
    Ok(())
}

fn show_entities(
    checkpoint: &Checkpoint,
    tokenizer: &TextTokenizer,
    encoder: &mut Encoder<Cpu>,
    text: &str,
) -> Outcome<()> {
    let encoding = tokenizer.encode_detailed(text, Truncation::Right)?;
    let logits = &rows(encoder, &[encoding.encoded()], &[], Encoder::tokens)?[0];
    for entity in entities(&encoding, logits, checkpoint.labels(), Aggregation::Average, &["O"])? {
        println!("{:8.4}  {:8}  {}", entity.score, entity.label, &text[entity.bytes]);
    }
    Ok(())
}

fn show_answers(
    tokenizer: &TextTokenizer,
    encoder: &mut Encoder<Cpu>,
    question: &str,
    context: &str,
) -> Outcome<()> {
    // as the reference cuts long contexts, if the model takes that many tokens
    let max_len = encoder.limits().max_input_length.min(384);
    let encodings = tokenizer.windows(question, context, max_len, (max_len / 2).min(128))?;
    let inputs: Vec<Encoded> = encodings.iter().map(|encoding| encoding.encoded()).collect();
    let logits = rows(encoder, &inputs, &[], Encoder::tokens)?;
    let window = |(encoding, logits)| AnswerWindow { encoding, logits };
    let windows: Vec<AnswerWindow<'_>> =
        encodings.iter().zip(logits.iter().map(Vec::as_slice)).map(window).collect();
    for answer in answers(context, &windows, &AnswerOptions { top_k: 3, ..AnswerOptions::default() })? {
        println!("{:8.4}  {}", answer.score, &context[answer.bytes]);
    }
    Ok(())
}

fn show_words(tokenizer: &TextTokenizer, encoder: &mut Encoder<Cpu>, text: &str) -> Outcome<()> {
    let (mask, token) = tokenizer.mask_token().ok_or("the tokenizer has no mask")?;
    let input = tokenizer.encode(text, Truncation::Right)?;
    let masks = mask_positions(&input.input_ids, mask);
    if masks.is_empty() {
        return Err(format!("write {token} where a word is to be filled in").into());
    }
    let selected: Vec<u32> = masks.iter().map(|place| *place as u32).collect();
    let logits = &rows(encoder, std::slice::from_ref(&input), &selected, Encoder::selected)?[0];
    for (row, place) in logits.chunks_exact(logits.len() / masks.len()).zip(masks) {
        for word in fill_mask(row, 5, None)? {
            println!("{:8.4}  {}", word.score, filled_text(tokenizer, &input.input_ids, place, word.id)?);
        }
    }
    Ok(())
}

fn show_weights(tokenizer: &TextTokenizer, encoder: &mut Encoder<Cpu>, text: &str) -> Outcome<()> {
    let input = tokenizer.encode(text, Truncation::Right)?;
    let mut weights = sparse(&rows(encoder, &[input], &[], Encoder::pooled)?[0])?;
    weights.sort_by(|a, b| b.value.total_cmp(&a.value));
    for weight in weights.iter().take(20) {
        println!("{:8.4}  {}", weight.value, tokenizer.decode(&[weight.index], SpecialTokens::With)?);
    }
    Ok(())
}
