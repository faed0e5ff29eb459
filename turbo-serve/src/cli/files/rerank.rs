//! `turbo rerank`: how well documents suit queries.

use std::{num::NonZeroUsize, process::ExitCode};

use anyhow::{Result, bail};
use clap::Args;
use turbo_models::{ScoreFunction, Task, TextTokenizer, Truncation, tasks};
use turbo_serve::files::{
    pipeline::{self, Prepared},
    read::Cell,
    write::{Answer, Kind, Ranked},
};

use super::{
    FileArguments, Work,
    model::{OpenModel, purpose},
};
use crate::cli::{model_arguments::ModelArguments, number::above_0};

const EXAMPLES: &str = "\
Examples:
  turbo rerank --model-id BAAI/bge-reranker-base --query 'a good soup' recipes.txt scores.jsonl
  turbo rerank --model-id BAAI/bge-reranker-base --query soup recipes.txt --top-k 10 --return-text
  turbo rerank --model-id BAAI/bge-reranker-base questions.jsonl rankings.jsonl --top-k 3
  turbo rerank --model-id my/qwen3 --query soup recipes.txt --instruction 'Is it vegetarian?'

With --query, each row of the input is a document and gets a score, in the input's order:
  {\"index\":0,\"score\":0.02}
With --top-k as well, only the best are written, the best first. Without --query, each row has its
own query and its own documents, a list of texts or a single one, and gets a ranking of them:
  {\"index\":0,\"ranking\":[{\"index\":2,\"score\":0.98},…]}";

/// Score documents against a query, or each row's documents against its query
#[derive(Args)]
#[command(after_help = super::short_help(EXAMPLES), after_long_help = super::long_help(EXAMPLES))]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    files: FileArguments,

    /// One query for all rows, each of which is a document
    #[arg(long, value_name = "TEXT", help_heading = "Files")]
    query: Option<String>,
    /// Column with the query of each row
    #[arg(
        long,
        value_name = "NAME",
        default_value = "query",
        conflicts_with = "query",
        help_heading = "Files"
    )]
    query_column: String,
    /// Instruction that says how to judge documents, instead of the model's own
    ///
    /// For rerankers that are language models: their template has a place for it.
    #[arg(long, value_name = "TEXT", help_heading = "Model")]
    instruction: Option<String>,
    /// Column with the documents
    ///
    /// By default, `text` with --query, otherwise `documents`.
    #[arg(long, visible_alias = "column", alias = "text-field", value_name = "NAME", help_heading = "Files")]
    documents_column: Option<String>,
    /// Write only the N best documents
    ///
    /// Of all rows with --query, otherwise of each row.
    #[arg(long, value_name = "N", value_parser = above_0::<NonZeroUsize>, help_heading = "Answers")]
    top_k: Option<NonZeroUsize>,
    /// Repeat the documents in the output
    #[arg(long, help_heading = "Answers")]
    return_text: bool,
    /// Write logits, whatever scale the model asks for
    #[arg(long, help_heading = "Answers")]
    raw_scores: bool,
}

/// Ranks as the arguments say.
///
/// # Errors
/// No such file or model, a model that does not score pairs, an output that cannot be written.
pub(in crate::cli) fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.query.is_none() && arguments.files.is_lines()? {
        bail!("lines of text have no column for the query: pass --query, or a file of another format");
    }
    let documents =
        |usual| arguments.files.only_column("--documents-column", arguments.documents_column.as_ref(), usual);
    let columns = match arguments.query {
        Some(_) => vec![documents("text")?],
        None => vec![arguments.query_column.clone(), documents("documents")?],
    };
    let top_k = arguments.top_k.map(NonZeroUsize::get);
    let best = top_k.filter(|_| arguments.query.is_some());
    let rows = arguments.files.open(&columns, best)?;
    let model = OpenModel::open(&arguments.model)?;
    match (model.checkpoint.task(), model.checkpoint.labels().len()) {
        (Some(Task::SequenceClassification), 1) => {}
        (Some(Task::SequenceClassification), 0) => {
            bail!("{}: its labels make no sense, as the warning says; a cross-encoder has one", model.shown())
        }
        (Some(Task::SequenceClassification), labels) => {
            bail!("{}: it has {labels} labels, expected a cross-encoder, which has one", model.shown())
        }
        (other, _) => bail!("{}: it is {}, expected a cross-encoder", model.shown(), purpose(other)),
    }
    let tokenizer = told(&model, arguments.instruction.as_deref())?;
    let mut made_from = arguments.files.made_from("rerank", &columns, &rows)?;
    model.describe(&arguments.model, &mut made_from);
    let choices = [
        ("--query", arguments.query.clone().unwrap_or_default()),
        ("--top-k", top_k.map_or_else(|| "all".to_owned(), |top_k| top_k.to_string())),
        ("--return-text", arguments.return_text.to_string()),
        ("--raw-scores", arguments.raw_scores.to_string()),
    ];
    made_from.extend(choices.map(|(flag, value)| (flag.to_owned(), value)));
    made_from.extend(arguments.instruction.clone().map(|words| ("--instruction".to_owned(), words)));
    let pairs = Pairs {
        tokenizer,
        truncation: arguments.files.truncation(),
        function: if arguments.raw_scores {
            ScoreFunction::Identity
        } else {
            model.checkpoint.pair_score_function()
        },
        with_text: arguments.return_text,
    };
    let mut compiled =
        model.compile(&arguments.model, &arguments.files.packed_cache, Task::SequenceClassification)?;
    drop(model);
    let (compute, with_text) = (&mut compiled, arguments.return_text);
    match &arguments.query {
        Some(query) => {
            let job = Score { pairs, query: query.clone() };
            let kind = Kind::Score { with_text };
            arguments.files.run(Work { rows, job, compute, kind, made_from, best })
        }
        None => {
            let job = Rank { pairs, top_k };
            let kind = Kind::Ranking { with_text };
            arguments.files.run(Work { rows, job, compute, kind, made_from, best: None })
        }
    }
}

/// The model's tokenizer, with this instruction where there is one.
fn told(model: &OpenModel, instruction: Option<&str>) -> Result<TextTokenizer> {
    match instruction {
        None => Ok(model.tokenizer.clone()),
        Some(_) if !model.tokenizer.writes_pairs() => {
            bail!("{}: --instruction: the model has no template of pairs with a place for it", model.shown())
        }
        Some(instruction) => Ok(model.tokenizer.with_instruction(instruction)?),
    }
}

/// How a query and documents become scores.
struct Pairs {
    tokenizer: TextTokenizer,
    truncation: Truncation,
    function: ScoreFunction,
    with_text: bool,
}

impl Pairs {
    fn prepare(&self, query: &str, documents: Vec<String>) -> Result<Prepared<Vec<String>>, String> {
        let encode = |document: &String| self.tokenizer.encode((query, document.as_str()), self.truncation);
        let inputs =
            documents.iter().map(encode).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        Ok(Prepared { inputs, kept: documents })
    }

    fn score(&self, logits: &[f32]) -> Result<f32, String> {
        let scores = tasks::classify(logits, self.function).map_err(|error| error.to_string())?;
        scores.first().map(|score| score.score).ok_or_else(|| "the model gave nothing".to_owned())
    }
}

/// Each row is a document for the one query.
struct Score {
    pairs: Pairs,
    query: String,
}

impl pipeline::Job for Score {
    type Kept = Vec<String>;

    fn prepare(&self, cells: Vec<Cell>) -> Result<Prepared<Self::Kept>, String> {
        self.pairs.prepare(&self.query, vec![super::only_text(cells)?])
    }

    fn answer(&self, documents: Self::Kept, outputs: Vec<Vec<f32>>) -> Result<Answer, String> {
        let score = self.pairs.score(&super::only_output(outputs)?)?;
        let text = documents.into_iter().next().filter(|_| self.pairs.with_text);
        Ok(Answer::Score { score, text })
    }
}

/// Each row has its query and its documents.
struct Rank {
    pairs: Pairs,
    top_k: Option<usize>,
}

impl pipeline::Job for Rank {
    type Kept = Vec<String>;

    fn prepare(&self, cells: Vec<Cell>) -> Result<Prepared<Self::Kept>, String> {
        let mut cells = cells.into_iter();
        let (Some(query), Some(documents)) = (cells.next(), cells.next()) else {
            return Err("a query and documents are needed".to_owned());
        };
        let documents = match documents {
            Cell::Text(document) => vec![document],
            Cell::List(documents) => documents,
        };
        self.pairs.prepare(&super::text(query)?, documents)
    }

    fn answer(&self, documents: Self::Kept, outputs: Vec<Vec<f32>>) -> Result<Answer, String> {
        let scores = outputs.iter().map(|logits| self.pairs.score(logits)).collect::<Result<Vec<_>, _>>()?;
        let ranked = |index: usize| Ranked {
            index: index as u64,
            score: scores[index],
            text: self.pairs.with_text.then(|| documents[index].clone()),
        };
        let best = tasks::rank(&scores).into_iter().take(self.top_k.unwrap_or(usize::MAX));
        Ok(Answer::Ranking(best.map(ranked).collect()))
    }
}
