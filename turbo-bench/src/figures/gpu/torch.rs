//! PyTorch as the other contestant of an operation: `peers/gpu_peer.py operations`.

use std::{path::Path, process::Command};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::{Dtype, Operation};
use crate::rival::Rival;

/// A process of PyTorch that prepares and times operations.
pub struct Torch(Rival);

/// How a prepared way to compute an operation is launched.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prepared {
    /// Its launches are replayed, so that Python's time does not count.
    Replayed,
    /// They are launched one by one.
    Launched,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Asked<'a> {
    Prepare { prepare: &'a Operation, dtype: Dtype, way: &'a str },
    Time { time: &'a str, runs: usize },
    Sample { sample: &'a str, values: u64 },
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answered {
    Prepared(Prepared),
    Absent(String),
    Us(f64),
    Sample(Vec<f32>),
}

/// The command of the script that computes on `device`.
pub(super) fn script(python: &Path, peers: &Path, device: &str) -> Command {
    let mut command = Command::new(python);
    command.arg(peers.join("gpu_peer.py")).args(["--device", device]);
    command
}

impl Torch {
    /// Starts a process that computes on `device`.
    ///
    /// # Errors
    /// When there is no such Python, or it has no PyTorch.
    pub fn start(python: &Path, peers: &Path, device: &str) -> Result<Self> {
        Ok(Self(Rival::start("torch", script(python, peers, device).arg("operations"))?))
    }

    /// Name and version.
    pub fn library(&self) -> &str {
        self.0.library()
    }

    /// Prepares a way to compute an operation. The inner error says why there is no such way.
    ///
    /// # Errors
    /// When the process ends, or answers something else.
    pub fn prepare(
        &mut self,
        operation: &Operation,
        dtype: Dtype,
        way: &str,
    ) -> Result<Result<Prepared, String>> {
        match self.0.ask(&Asked::Prepare { prepare: operation, dtype, way })? {
            Answered::Prepared(how) => Ok(Ok(how)),
            Answered::Absent(why) => Ok(Err(why)),
            other => bail!("torch: expected that {way} is prepared, got {other:?}"),
        }
    }

    /// Microseconds of one run, from at least so many runs.
    ///
    /// # Errors
    /// As [`Torch::prepare`].
    pub fn time(&mut self, way: &str, runs: usize) -> Result<f64> {
        match self.0.ask(&Asked::Time { time: way, runs })? {
            Answered::Us(us) => Ok(us),
            other => bail!("torch: expected a time of {way}, got {other:?}"),
        }
    }

    /// `values` values of the result, evenly spread.
    ///
    /// # Errors
    /// As [`Torch::prepare`].
    pub fn sample(&mut self, way: &str, values: u64) -> Result<Vec<f32>> {
        match self.0.ask(&Asked::Sample { sample: way, values })? {
            Answered::Sample(sample) => Ok(sample),
            other => bail!("torch: expected values of {way}, got {other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_those_of_the_other_side() {
        let softmax = Operation::Softmax { rows: 8, columns: 16 };
        for (asked, line) in [
            (
                Asked::Prepare { prepare: &softmax, dtype: Dtype::Bf16, way: "eager" },
                r#"{"prepare":{"op":"softmax","rows":8,"columns":16},"dtype":"bf16","way":"eager"}"#,
            ),
            (Asked::Time { time: "eager", runs: 100 }, r#"{"time":"eager","runs":100}"#),
            (Asked::Sample { sample: "eager", values: 3 }, r#"{"sample":"eager","values":3}"#),
        ] {
            assert_eq!(serde_json::to_string(&asked).unwrap(), line);
        }
        let answered = |line: &str| serde_json::from_str::<Answered>(line).unwrap();
        assert!(matches!(answered(r#"{"prepared": "replayed"}"#), Answered::Prepared(Prepared::Replayed)));
        assert!(matches!(answered(r#"{"absent": "why"}"#), Answered::Absent(why) if why == "why"));
        assert!(matches!(answered(r#"{"us": 92.1}"#), Answered::Us(92.1)));
        assert!(matches!(answered(r#"{"sample": [0.5, -1.0]}"#), Answered::Sample(it) if it == [0.5, -1.0]));
    }
}
