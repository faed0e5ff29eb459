//! `turbo embed`: a vector for each text of a file.

use std::{num::NonZeroUsize, process::ExitCode};

use anyhow::{Result, bail};
use clap::{ArgAction, Args, ValueEnum, builder::PossibleValue};
use turbo_models::{Task, TextTokenizer, Truncation, l2_normalize};
use turbo_serve::files::{
    pipeline::{self, Prepared},
    read::Cell,
    write::{Answer, Kind},
};

use super::{FileArguments, Work, model::OpenModel};
use crate::cli::{
    model_arguments::{ModelArguments, PoolingArgument},
    number::above_0,
};

const EXAMPLES: &str = "\
Examples:
  turbo embed --model-id minilm texts.txt vectors.npy
  turbo embed --model-id BAAI/bge-small-en-v1.5 articles.jsonl vectors.parquet --column body
  turbo embed --model-id minilm articles.csv vectors.npy --column title --resume
  echo 'a good soup' | turbo embed --model-id minilm --quiet | jq .embedding

numpy.load('vectors.npy', mmap_mode='r')[17] is then the vector of the 18th row.";

/// Embed each text of a file
#[derive(Args)]
#[command(after_help = super::short_help(EXAMPLES), after_long_help = super::long_help(EXAMPLES))]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    files: FileArguments,

    /// Column with the texts, by default `text`
    #[arg(long, alias = "text-field", value_name = "NAME", help_heading = "Files")]
    column: Option<String>,
    /// How token vectors become one vector per text
    ///
    /// By default, as the model folder says.
    #[arg(long, env, value_enum, help_heading = "Model")]
    pooling: Option<DensePooling>,
    /// Whether vectors are divided by their length
    ///
    /// By default, as the model folder says.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set,
          help_heading = "Model")]
    normalize: Option<bool>,
    /// Keep only the first N values of each vector
    ///
    /// For models that were trained for it. Vectors are normalized after that.
    #[arg(long, value_name = "N", value_parser = above_0::<NonZeroUsize>, help_heading = "Model")]
    dimensions: Option<NonZeroUsize>,
    /// Text to put before each text
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_name", help_heading = "Model")]
    prompt: Option<String>,
    /// Name of the model's prompt to put before each text
    ///
    /// By default, the model's default prompt, if it has one.
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    prompt_name: Option<String>,
}

/// A pooling that makes dense vectors. The other one is not listed, and read to be refused in words that help.
#[derive(Clone, Copy)]
struct DensePooling(PoolingArgument);

impl ValueEnum for DensePooling {
    fn value_variants<'a>() -> &'a [Self] {
        use PoolingArgument::{Cls, LastToken, Max, Mean, Splade};
        &[Self(Cls), Self(Mean), Self(LastToken), Self(Max), Self(Splade)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let is_sparse = matches!(self.0, PoolingArgument::Splade);
        self.0.to_possible_value().map(|value| value.hide(is_sparse))
    }
}

/// Embeds as the arguments say.
///
/// # Errors
/// No such file or model, a model that cannot do it, an output that cannot be written.
pub(in crate::cli) fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(DensePooling(PoolingArgument::Splade)) = arguments.pooling {
        bail!(
            "--pooling splade: this command writes dense vectors; for sparse ones use POST /embed_sparse of turbo serve \
             (if you did not pass the flag, the variable POOLING says so)"
        );
    }
    let columns = [arguments.files.only_column("--column", arguments.column.as_ref(), "text")?];
    let rows = arguments.files.open(&columns, None)?;
    let model = OpenModel::open(&arguments.model)?;
    let task = arguments.task(&model)?;
    let prompt = arguments.prompt(&model)?;
    let mut compiled = model.compile(&arguments.model, &arguments.files.packed_cache, task)?;
    let dimensions = arguments.dimensions(compiled.pooled_len()?)?;
    let normalize = arguments.normalize.unwrap_or(model.checkpoint.normalizes());

    let mut made_from = arguments.files.made_from("embed", &columns, &rows)?;
    model.describe(&arguments.model, &mut made_from);
    let choices = [
        ("--pooling", word(task)),
        ("--normalize", normalize.to_string()),
        ("--dimensions", dimensions.to_string()),
        ("--prompt", prompt.clone()),
    ];
    made_from.extend(choices.map(|(flag, value)| (flag.to_owned(), value)));
    let truncation = arguments.files.truncation();
    let job = Embed { tokenizer: model.tokenizer.clone(), prompt, truncation, dimensions, normalize };
    drop(model);
    let kind = Kind::Embedding { dimensions };
    arguments.files.run(Work { rows, job, compute: &mut compiled, kind, made_from, best: None })
}

/// The value of `--pooling` for what is computed.
fn word(task: Task) -> String {
    let pooling = PoolingArgument::value_variants().iter().find(|pooling| Task::from(**pooling) == task);
    pooling
        .and_then(ValueEnum::to_possible_value)
        .map_or_else(|| task.to_string(), |value| value.get_name().to_owned())
}

impl Arguments {
    fn task(&self, model: &OpenModel) -> Result<Task> {
        let of_folder = || model.checkpoint.pooling().map(Task::from).or(model.checkpoint.task());
        match self.pooling.map(|DensePooling(pooling)| pooling.into()).or_else(of_folder) {
            Some(task @ Task::Embedding { .. }) => Ok(task),
            Some(Task::SparseEmbedding) => {
                bail!(
                    "{}: it makes sparse vectors: for dense ones pass --pooling cls, mean, last-token or max",
                    model.shown()
                )
            }
            _ => bail!(
                "{}: it does not say how to pool token vectors: pass --pooling cls, mean, last-token or max",
                model.shown()
            ),
        }
    }

    fn prompt(&self, model: &OpenModel) -> Result<String> {
        let prompts = model.checkpoint.prompts();
        let prompt = match (&self.prompt, &self.prompt_name) {
            (Some(prompt), _) => Some(prompt.as_str()),
            (None, None) => prompts.default_prompt(),
            (None, Some(name)) => match prompts.get(name) {
                Some(prompt) => Some(prompt),
                None => {
                    let known: Vec<&str> = prompts.named.keys().map(String::as_str).collect();
                    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                    bail!("--prompt-name {name}: the model's prompts are: {known}")
                }
            },
        };
        Ok(prompt.unwrap_or_default().to_owned())
    }

    fn dimensions(&self, of_model: usize) -> Result<usize> {
        match self.dimensions.map(NonZeroUsize::get) {
            Some(asked) if asked > of_model => {
                bail!("--dimensions {asked}: the model's vectors have {of_model} values")
            }
            Some(asked) => Ok(asked),
            None => Ok(of_model),
        }
    }
}

struct Embed {
    tokenizer: TextTokenizer,
    prompt: String,
    truncation: Truncation,
    dimensions: usize,
    normalize: bool,
}

impl pipeline::Job for Embed {
    type Kept = ();

    fn prepare(&self, cells: Vec<Cell>) -> Result<Prepared<()>, String> {
        let mut text = super::only_text(cells)?;
        if !self.prompt.is_empty() {
            text.insert_str(0, &self.prompt);
        }
        let input =
            self.tokenizer.encode(text.as_str(), self.truncation).map_err(|error| error.to_string())?;
        Ok(Prepared { inputs: vec![input], kept: () })
    }

    fn answer(&self, (): (), outputs: Vec<Vec<f32>>) -> Result<Answer, String> {
        let mut vector = super::only_output(outputs)?;
        if let Some(place) = vector.iter().position(|value| !value.is_finite()) {
            return Err(format!("the model gave {} at place {place} of the vector", vector[place]));
        }
        vector.truncate(self.dimensions);
        if self.normalize {
            l2_normalize(&mut vector);
        }
        Ok(Answer::Embedding(vector))
    }
}
