//! Embeds sentences with a model folder and prints how similar they are; with one sentence, its vector.
//!
//! ```text
//! cargo run --release --example embed -- FOLDER 'How do I reset my password?' 'I forgot my password.'
//! ```

use std::{env, error::Error, path::Path, process::ExitCode};

use turbo_models::{
    Checkpoint, Cpu, CpuOptions, Encoder, EncoderOptions, Outputs, Pooling, Truncation, l2_normalize,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [folder, sentences @ ..] = &arguments[..] else {
        eprintln!("usage: embed FOLDER SENTENCE...");
        return ExitCode::FAILURE;
    };
    match embed(Path::new(folder), sentences) {
        Ok(vectors) if vectors.len() == 1 => println!("{:?}", vectors[0]),
        Ok(vectors) => print_similarities(&vectors, sentences),
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn embed(folder: &Path, sentences: &[String]) -> Result<Vec<Vec<f32>>, Box<dyn Error>> {
    let checkpoint = Checkpoint::open(folder)?;
    checkpoint.warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
    let tokenizer = checkpoint.tokenizer().ok_or("the folder has no tokenizer")?;
    let encode = |sentence: &String| tokenizer.encode(sentence, Truncation::Right);
    let inputs = sentences.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
    let cpu = Cpu::new(CpuOptions::default())?;
    // if a folder does not say how to pool, as bare language models do not, the mean is usual
    let task = checkpoint.pooling().unwrap_or(Pooling::Mean).into();
    let options = EncoderOptions { outputs: Outputs::Pooled, task, ..EncoderOptions::of(&checkpoint) };
    let mut vectors = Encoder::new(cpu, &checkpoint, options)?.embed_batch(&inputs)?;
    vectors.iter_mut().for_each(|vector| l2_normalize(vector));
    Ok(vectors)
}

/// A row per sentence: its cosine with each of the others.
fn print_similarities(vectors: &[Vec<f32>], sentences: &[String]) {
    for (row, sentence) in vectors.iter().zip(sentences) {
        for column in vectors {
            let cosine: f32 = row.iter().zip(column).map(|(a, b)| a * b).sum();
            print!("{cosine:6.2}");
        }
        println!("  {sentence}");
    }
}
