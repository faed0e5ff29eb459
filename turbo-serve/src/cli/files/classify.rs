//! `turbo classify`: labels for each text of a file, or for the stretches in it.

use std::{num::NonZeroUsize, process::ExitCode};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use turbo_models::{
    CharOffsets, Encoding, ScoreFunction, Task, Text, TextTokenizer, Truncation,
    tasks::{self, Aggregation},
};
use turbo_serve::files::{
    pipeline::{self, Prepared},
    read::Cell,
    write::{Answer, Class, Entity, Kind},
};

use super::{
    FileArguments, Work,
    model::{OpenModel, purpose},
};
use crate::cli::{model_arguments::ModelArguments, number::above_0};

const EXAMPLES: &str = "\
Examples:
  turbo classify --model-id path/to/sentiment reviews.txt labels.jsonl
  turbo classify --model-id path/to/nli pairs.csv - --column premise --pair-column hypothesis
  turbo classify --model-id dslim/bert-base-NER articles.jsonl entities.jsonl --column body

What is written for a text:
  {\"index\":0,\"labels\":[{\"label\":\"POSITIVE\",\"score\":0.9998},…]}
and with a model that labels tokens, where `start` and `end` count characters:
  {\"index\":0,\"entities\":[{\"entity\":\"PER\",\"score\":0.99,\"word\":\"Ada\",\"start\":0,\"end\":3}]}";

/// Label each text of a file, or the names in it
///
/// With a model for sequence classification, every text (or pair of texts) gets the model's labels, the likeliest
/// first. With a model for token classification, it gets the stretches of the text that have a label.
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
    /// Column with the second text of each pair
    ///
    /// For models that compare two texts.
    #[arg(long, value_name = "NAME", help_heading = "Files")]
    pair_column: Option<String>,
    /// Maximum number of labels for each text; by default all
    ///
    /// For models that label whole texts.
    #[arg(long, value_name = "N", value_parser = above_0::<NonZeroUsize>, help_heading = "Answers")]
    top_k: Option<NonZeroUsize>,
    /// Write logits instead of scores
    ///
    /// For models that label whole texts.
    #[arg(long, help_heading = "Answers")]
    raw_scores: bool,
    /// How the labels of tokens become those of words; by default `first`
    ///
    /// For models that label tokens.
    #[arg(long, value_enum, help_heading = "Answers")]
    aggregation: Option<AggregationArgument>,
}

#[derive(Clone, Copy, ValueEnum)]
enum AggregationArgument {
    /// Not at all: an entity per token
    None,
    /// Neighbouring tokens with the same label are one entity
    Simple,
    /// A word has the label of its first token
    First,
    /// A word has the label with the greatest mean score
    Average,
    /// A word has the label of its surest token
    Max,
}

impl From<AggregationArgument> for Aggregation {
    fn from(aggregation: AggregationArgument) -> Self {
        match aggregation {
            AggregationArgument::None => Self::None,
            AggregationArgument::Simple => Self::Simple,
            AggregationArgument::First => Self::First,
            AggregationArgument::Average => Self::Average,
            AggregationArgument::Max => Self::Max,
        }
    }
}

/// Classifies as the arguments say.
///
/// # Errors
/// No such file or model, a model that is no classifier, an output that cannot be written.
pub(in crate::cli) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let columns = arguments.columns()?;
    let rows = arguments.files.open(&columns, None)?;
    let model = OpenModel::open(&arguments.model)?;
    let mut made_from = arguments.files.made_from("classify", &columns, &rows)?;
    model.describe(&arguments.model, &mut made_from);
    let (tokenizer, truncation) = (model.tokenizer.clone(), arguments.files.truncation());
    let labels = model.checkpoint.labels().to_vec();
    match model.checkpoint.task() {
        Some(task @ Task::SequenceClassification) => {
            if arguments.aggregation.is_some() {
                bail!(
                    "--aggregation: {} labels whole texts, expected a model that labels tokens",
                    model.shown()
                );
            }
            let function = if arguments.raw_scores {
                ScoreFunction::Identity
            } else {
                model.checkpoint.score_function()
            };
            let top_k = arguments.top_k.map_or(labels.len(), NonZeroUsize::get);
            made_from.insert("--raw-scores".into(), arguments.raw_scores.to_string());
            made_from.insert("--top-k".into(), top_k.to_string());
            let mut compiled = model.compile(&arguments.model, &arguments.files.packed_cache, task)?;
            drop(model);
            let job = Classify { tokenizer, truncation, labels, function, top_k };
            arguments.files.run(Work {
                rows,
                job,
                compute: &mut compiled,
                kind: Kind::Labels,
                made_from,
                best: None,
            })
        }
        Some(task @ Task::TokenClassification) => {
            if arguments.pair_column.is_some() {
                bail!("--pair-column: {} labels tokens, which takes one text at a time", model.shown());
            }
            let of_texts = [("--top-k", arguments.top_k.is_some()), ("--raw-scores", arguments.raw_scores)];
            if let Some((flag, _)) = of_texts.into_iter().find(|(_, given)| *given) {
                bail!("{flag}: {} labels tokens, expected a model that labels whole texts", model.shown());
            }
            let aggregation = arguments.aggregation.unwrap_or(AggregationArgument::First);
            let word = aggregation.to_possible_value().map(|value| value.get_name().to_owned());
            made_from.insert("--aggregation".into(), word.unwrap_or_default());
            let mut compiled = model.compile(&arguments.model, &arguments.files.packed_cache, task)?;
            drop(model);
            let job = Tag { tokenizer, truncation, labels, aggregation: aggregation.into() };
            let kind = Kind::Entities;
            arguments.files.run(Work { rows, job, compute: &mut compiled, kind, made_from, best: None })
        }
        other => {
            let is = purpose(other);
            bail!("{}: it is {is}, expected a model for sequence or token classification", model.shown())
        }
    }
}

impl Arguments {
    /// The columns of the texts.
    fn columns(&self) -> Result<Vec<String>> {
        Ok(match &self.pair_column {
            // That lines are no pairs is told where they are opened.
            Some(second) => vec![self.column.clone().unwrap_or_else(|| TEXT.to_owned()), second.clone()],
            None => vec![self.files.only_column("--column", self.column.as_ref(), TEXT)?],
        })
    }
}

/// The column of texts where none is named.
const TEXT: &str = "text";

/// Labels of whole texts.
struct Classify {
    tokenizer: TextTokenizer,
    truncation: Truncation,
    labels: Vec<String>,
    function: ScoreFunction,
    top_k: usize,
}

impl pipeline::Job for Classify {
    type Kept = ();

    fn prepare(&self, cells: Vec<Cell>) -> Result<Prepared<()>, String> {
        let texts = cells.into_iter().map(super::text).collect::<Result<Vec<_>, _>>()?;
        let input = match &texts[..] {
            [first, second] => Text::Pair(first, second),
            [text] => Text::One(text),
            other => return Err(format!("{} texts, expected one or two", other.len())),
        };
        let input = self.tokenizer.encode(input, self.truncation).map_err(|error| error.to_string())?;
        Ok(Prepared { inputs: vec![input], kept: () })
    }

    fn answer(&self, (): (), outputs: Vec<Vec<f32>>) -> Result<Answer, String> {
        let logits = super::only_output(outputs)?;
        let scores = tasks::classify(&logits, self.function).map_err(|error| error.to_string())?;
        let class = |score: tasks::LabelScore| {
            let label =
                self.labels.get(score.index).ok_or_else(|| format!("label {} has no name", score.index))?;
            Ok(Class { label: label.clone(), score: score.score })
        };
        scores.into_iter().take(self.top_k).map(class).collect::<Result<_, String>>().map(Answer::Labels)
    }
}

/// Labels of stretches.
struct Tag {
    tokenizer: TextTokenizer,
    truncation: Truncation,
    labels: Vec<String>,
    aggregation: Aggregation,
}

/// The label of tokens outside of entities.
const OUTSIDE: &[&str] = &["O"];

impl pipeline::Job for Tag {
    type Kept = (String, Encoding);

    fn prepare(&self, cells: Vec<Cell>) -> Result<Prepared<Self::Kept>, String> {
        let text = super::only_text(cells)?;
        let encoding = self.tokenizer.encode_detailed(text.as_str(), self.truncation);
        let encoding = encoding.map_err(|error| error.to_string())?;
        Ok(Prepared { inputs: vec![encoding.encoded()], kept: (text, encoding) })
    }

    fn answer(&self, (text, encoding): Self::Kept, outputs: Vec<Vec<f32>>) -> Result<Answer, String> {
        let logits = super::only_output(outputs)?;
        let found = tasks::entities(&encoding, &logits, &self.labels, self.aggregation, OUTSIDE);
        let found = found.map_err(|error| error.to_string())?;
        let characters = CharOffsets::of(&text);
        let entity = |found: tasks::Entity<'_>| {
            let range = characters.range(&found.bytes);
            let word = text.get(found.bytes).unwrap_or_default().to_owned();
            Entity {
                entity: found.label.to_owned(),
                score: found.score,
                word,
                start: range.start,
                end: range.end,
            }
        };
        Ok(Answer::Entities(found.into_iter().map(entity).collect()))
    }
}
