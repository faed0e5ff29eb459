//! A rival in a comparison: a process that times batches on request, and sleeps otherwise.
//!
//! ```text
//! {"batches": [[12, 7], [30]], "warm_up": 1, "runs": 3} ──▶ rival ──▶ {"ms": [[9.1, 9.0, 9.2], [8.0, 8.1, 8.0]]}
//! ```
//!
//! Requests and answers are JSON lines. turbo answers them as `turbo-bench peer` ([`turbo`], and [`products`] for
//! products alone), the others as `peers/peer_process.py` and `peers/products_peer.py`, so all are measured in the same
//! way. A batch is given by the lengths of its sequences. Their ids follow from the lengths ([`token`]), so that
//! outputs can be compared too. In the same way the factors of a product follow from its sizes ([`value`], [`weight`],
//! [`bias`]).

pub mod products;
pub mod turbo;

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::log::Log;

/// A request to a rival.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Request {
    /// Run each batch `warm_up` times uncounted, then `runs` times.
    Time {
        /// Lengths of the sequences of each batch.
        batches: Vec<Vec<u32>>,
        /// Runs before those that count.
        warm_up: usize,
        /// Runs that count.
        runs: usize,
    },
    /// Return the first and the last token's vector of each sequence of one batch.
    Rows {
        /// Lengths of its sequences.
        rows: Vec<u32>,
    },
    /// Compute a product once uncounted, then as often as fits into so many seconds, three times at least.
    Product {
        /// The product.
        linear: Linear,
        /// Seconds.
        seconds: f64,
    },
    /// Return the first and the last row of a product.
    ProductRows {
        /// The product.
        linear_rows: Linear,
    },
}

/// A linear layer: rows times packed weights, with the bias fused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// Rows of the first factor and of the product.
    pub rows: usize,
    /// Columns of the first factor.
    pub in_features: usize,
    /// Columns of the product.
    pub out_features: usize,
    /// Whether GELU follows the bias.
    pub gelu: bool,
}

/// What a rival writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It has loaded its model.
    Ready {
        /// Name and version of what computes.
        library: String,
        /// Which of its ways to compute.
        variant: String,
    },
    /// Milliseconds of each run of each batch, or of the one product.
    Ms(Vec<Vec<f64>>),
    /// The requested vectors of tokens, or rows of the product.
    Rows(Vec<Vec<f32>>),
}

/// The id of token `t` in a sequence of `n`, the same for every rival. In a vocabulary of BERT's size or larger, the
/// first thousand ids are not used, because they have special meanings.
pub fn token(t: u32, n: u32, vocab_size: usize) -> u32 {
    let mixed = u64::from(t) * 7919 + u64::from(n) * 104_729;
    if vocab_size >= 30_000 { 1000 + (mixed % 29_000) as u32 } else { (mixed % vocab_size as u64) as u32 }
}

/// Value `i` of the rows of a product, the same for every rival.
#[must_use]
pub fn value(i: usize) -> f32 {
    (i % 251) as f32 / 125.0 - 1.0
}

/// Value `i` of a weight whose rows have `in_features` values. Rows have different scales, so that an engine that mixes
/// up the scales of quantised rows computes something else.
#[must_use]
pub fn weight(i: usize, in_features: usize) -> f32 {
    value(i) * (1 + i / in_features % 7) as f32
}

/// Value `i` of a bias: large enough that its absence shows beside sums of hundreds.
#[must_use]
pub fn bias(i: usize) -> f32 {
    100.0 * value(i)
}

/// Writes `ready`, then answers requests until there are no more.
///
/// # Errors
/// When a request makes no sense, or cannot be answered.
fn converse(
    ready: &Answer,
    mut answer: impl FnMut(&Request) -> Result<Answer>,
    requests: impl BufRead,
    mut answers: impl Write,
) -> Result<()> {
    let mut say = |answer: &Answer| -> Result<()> {
        writeln!(answers, "{}", serde_json::to_string(answer)?)?;
        Ok(answers.flush()?)
    };
    say(ready)?;
    for line in requests.lines() {
        let line = line?;
        let request = serde_json::from_str(&line).with_context(|| format!("no request: {line}"))?;
        say(&answer(&request)?)?;
    }
    Ok(())
}

/// A process that has loaded its model, if it needs one.
pub struct Rival {
    name: String,
    library: String,
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    log: Log,
}

impl Rival {
    /// Starts `command` and waits until it is ready.
    ///
    /// # Errors
    /// When it does not start, or ends. The error quotes the last lines that it wrote.
    pub fn start(name: &str, command: &mut Command) -> Result<Self> {
        let log = Log::new()?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log.sink()?);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}: {command:?}"))?;
        let to = child.stdin.take().context("its standard input was asked for")?;
        let from = BufReader::new(child.stdout.take().context("its standard output was asked for")?);
        let (name, library) = (name.to_owned(), String::new());
        let mut rival = Self { name, library, child, to, from, log };
        match rival.answer()? {
            Answer::Ready { library, variant } => rival.library = format!("{library} ({variant})"),
            other => bail!("{}: expected that it is ready, got {other:?}", rival.name),
        }
        Ok(rival)
    }

    /// Its name in the comparison.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name, version and variant of what computes.
    pub fn library(&self) -> &str {
        &self.library
    }

    /// The id of its process.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Milliseconds of `runs` runs of each batch.
    ///
    /// # Errors
    /// When it ends, or answers something else.
    pub fn time(&mut self, batches: &[Vec<u32>], warm_up: usize, runs: usize) -> Result<Vec<Vec<f64>>> {
        match self.ask(&Request::Time { batches: batches.to_vec(), warm_up, runs })? {
            Answer::Ms(ms) if ms.len() == batches.len() && ms.iter().all(|times| times.len() == runs) => {
                Ok(ms)
            }
            other => {
                bail!("{}: expected {runs} times of {} batches, got {other:?}", self.name, batches.len())
            }
        }
    }

    /// The first and the last token's vector of each sequence of a batch.
    ///
    /// # Errors
    /// When it ends, or answers something else.
    pub fn rows(&mut self, lens: &[u32]) -> Result<Vec<Vec<f32>>> {
        match self.ask(&Request::Rows { rows: lens.to_vec() })? {
            Answer::Rows(rows) if rows.len() == 2 * lens.len() => Ok(rows),
            other => bail!("{}: expected {} rows, got {other:?}", self.name, 2 * lens.len()),
        }
    }

    /// Milliseconds of each run of a product; as many runs as fit into so many seconds.
    ///
    /// # Errors
    /// When it ends, or answers something else.
    pub fn product(&mut self, linear: Linear, seconds: f64) -> Result<Vec<f64>> {
        match self.ask(&Request::Product { linear, seconds })? {
            Answer::Ms(mut ms) if ms.len() == 1 && ms[0].len() >= products::FEWEST => Ok(ms.swap_remove(0)),
            other => bail!("{}: expected the times of one product, got {other:?}", self.name),
        }
    }

    /// The first and the last row of a product.
    ///
    /// # Errors
    /// When it ends, or answers something else.
    pub fn product_rows(&mut self, linear: Linear) -> Result<Vec<Vec<f32>>> {
        match self.ask(&Request::ProductRows { linear_rows: linear })? {
            Answer::Rows(rows) if rows.len() == 2 => Ok(rows),
            other => bail!("{}: expected two rows of a product, got {other:?}", self.name),
        }
    }

    /// Writes the request as one line, and reads the answer from another.
    ///
    /// # Errors
    /// When it ends, or answers something else.
    pub fn ask<A: DeserializeOwned>(&mut self, request: &impl Serialize) -> Result<A> {
        let line = serde_json::to_string(request)? + "\n";
        // If the process has ended, reading its answer says why.
        drop(self.to.write_all(line.as_bytes()).and_then(|()| self.to.flush()));
        self.answer()
    }

    fn answer<A: DeserializeOwned>(&mut self) -> Result<A> {
        let mut line = String::new();
        let read =
            self.from.read_line(&mut line).with_context(|| format!("cannot read from {}", self.name))?;
        if read == 0 {
            bail!("{} ended; it said:\n{}", self.name, self.log.last_words());
        }
        serde_json::from_str(&line)
            .with_context(|| format!("{} does not speak the protocol: {line}", self.name))
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        // If it has ended by itself, there is nothing to do.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_those_of_the_other_side() {
        let time = r#"{"batches":[[12,7],[30]],"warm_up":1,"runs":3}"#;
        let asked = Request::Time { batches: vec![vec![12, 7], vec![30]], warm_up: 1, runs: 3 };
        assert_eq!(serde_json::to_string(&asked).unwrap(), time);
        assert_eq!(serde_json::from_str::<Request>(time).unwrap(), asked);
        let rows = Request::Rows { rows: vec![12, 7] };
        assert_eq!(serde_json::to_string(&rows).unwrap(), r#"{"rows":[12,7]}"#);
        let linear = Linear { rows: 10, in_features: 768, out_features: 2304, gelu: true };
        let product =
            r#"{"linear":{"rows":10,"in_features":768,"out_features":2304,"gelu":true},"seconds":0.5}"#;
        let asked = Request::Product { linear, seconds: 0.5 };
        assert_eq!(serde_json::to_string(&asked).unwrap(), product);
        assert_eq!(serde_json::from_str::<Request>(product).unwrap(), asked);
        let asked = Request::ProductRows { linear_rows: linear };
        let rows = r#"{"linear_rows":{"rows":10,"in_features":768,"out_features":2304,"gelu":true}}"#;
        assert_eq!(serde_json::to_string(&asked).unwrap(), rows);
        assert_eq!(serde_json::from_str::<Request>(rows).unwrap(), asked);
        let ready = r#"{"ready": {"library": "onnxruntime 1.31.1", "variant": "fused"}}"#;
        let said = Answer::Ready { library: "onnxruntime 1.31.1".into(), variant: "fused".into() };
        assert_eq!(serde_json::from_str::<Answer>(ready).unwrap(), said);
        let ms = r#"{"ms": [[9.1], [8.0]]}"#;
        assert_eq!(serde_json::from_str::<Answer>(ms).unwrap(), Answer::Ms(vec![vec![9.1], vec![8.0]]));
    }

    /// The results of `token(t, n)` in `peers/peer_process.py`.
    #[test]
    fn ids_are_those_of_the_other_side() {
        assert_eq!([(0, 12), (11, 12), (499, 500)].map(|(t, n)| token(t, n, 30522)), [10748, 10857, 28081]);
        assert!((0..100).all(|t| token(t, 100, 103) < 103));
    }

    /// The results of `values`, `weight` and `bias` in `peers/products_peer.py`.
    #[test]
    fn factors_are_those_of_the_other_side() {
        assert_eq!([0, 125, 250, 251].map(value), [-1.0, 0.0, 1.0, -1.0]);
        assert_eq!([0, 251, 502, 250 + 251 * 7].map(|i| weight(i, 251)), [-1.0, -2.0, -3.0, 1.0]);
        assert_eq!([0, 125, 250].map(bias), [-100.0, 0.0, 100.0]);
    }

    #[cfg(unix)]
    #[test]
    fn a_rival_that_ends_says_why() {
        let mut shell = Command::new("sh");
        let error = Rival::start("it", shell.args(["-c", "echo no such model >&2; exit 1"])).err().unwrap();
        assert!(error.to_string().contains("it ended; it said:\nno such model"), "{error}");
        let mut shell = Command::new("sh");
        let error = Rival::start("it", shell.args(["-c", "echo hello"])).err().unwrap();
        assert!(error.to_string().contains("it does not speak the protocol: hello"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn an_answer_to_another_question_is_refused() {
        let script =
            r#"echo '{"ready":{"library":"l","variant":"v"}}'; read line; echo '{"ms":[[1.0]]}'; read line"#;
        let mut rival = Rival::start("it", Command::new("sh").args(["-c", script])).unwrap();
        assert_eq!(rival.library(), "l (v)");
        let error = rival.time(&[vec![5]], 0, 2).unwrap_err().to_string();
        assert!(error.starts_with("it: expected 2 times of 1 batches"), "{error}");
        let mut rival = Rival::start("it", Command::new("sh").args(["-c", script])).unwrap();
        let linear = Linear { rows: 1, in_features: 1, out_features: 1, gelu: false };
        let error = rival.product(linear, 0.1).unwrap_err().to_string();
        assert!(error.starts_with("it: expected the times of one product"), "one run is too few: {error}");
    }
}
