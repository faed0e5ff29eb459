//! From JSON to JSON: one planner, given one request after the other.
//!
//! In (all but `requests` may be left out; sizes in bytes, both ends of a life inclusive):
//!
//! ```json
//! {"policy": "paper" | {"retain": 8}, "chunk_bytes": 2097152, "scale": 1.2, "alignment": 256,
//!  "requests": [[{"first_op": 0, "last_op": 1, "size": 614400}]]}
//! ```
//!
//! Out: an array with one object per request. `placements` are in the order of the records. First the chunks of
//! `release` are given back, then those of `grow` obtained; `footprint` is the bytes of the chunks held from then on:
//!
//! ```json
//! [{"placements": [{"chunk": 0, "offset": 0}], "grow": [{"chunk": 0, "bytes": 2097152}],
//!   "release": [], "footprint": 2097152, "peak_live_bytes": 614400}]
//! ```

use serde::{Deserialize, Serialize};
use turbo_alloc::{
    AllocError, Chunk, ChunkId, Placement, Planner, PlannerConfig, Policy, UsageRecord, peak_live_bytes,
};

/// Plans all requests of `input`.
///
/// # Errors
/// One line that says what is wrong with the input, and where.
pub(crate) fn answer(input: &str) -> Result<String, String> {
    let input: Input = serde_json::from_str(input).map_err(|error| error.to_string())?;
    let mut planner = Planner::new(input.config()).map_err(|error| error.to_string())?;
    let answers = input.requests.iter().enumerate().map(|(i, records)| {
        answer_one(&mut planner, records).map_err(|error| format!("request {i}: {error}"))
    });
    let answers = answers.collect::<Result<Vec<_>, _>>()?;
    serde_json::to_string(&answers).map_err(|error| error.to_string())
}

fn answer_one(planner: &mut Planner, records: &[UsageRecord]) -> Result<Answer, AllocError> {
    let plan = planner.plan(records)?;
    Ok(Answer {
        footprint: plan.footprint(),
        placements: plan.placements,
        grow: plan.grow.into_iter().map(Grown::from).collect(),
        release: plan.release,
        peak_live_bytes: peak_live_bytes(records),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    policy: Option<PolicyName>,
    chunk_bytes: Option<usize>,
    scale: Option<f64>,
    alignment: Option<usize>,
    requests: Vec<Vec<UsageRecord>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PolicyName {
    Paper,
    Retain(u32),
}

impl Input {
    fn config(&self) -> PlannerConfig {
        let default = PlannerConfig::default();
        PlannerConfig {
            policy: match self.policy {
                None => default.policy,
                Some(PolicyName::Paper) => Policy::Paper,
                Some(PolicyName::Retain(plans)) => Policy::RetainFor { plans },
            },
            chunk_bytes: self.chunk_bytes.unwrap_or(default.chunk_bytes),
            scale: self.scale.unwrap_or(default.scale),
            alignment: self.alignment.unwrap_or(default.alignment),
        }
    }
}

#[derive(Serialize)]
struct Answer {
    placements: Vec<Placement>,
    grow: Vec<Grown>,
    release: Vec<ChunkId>,
    footprint: usize,
    peak_live_bytes: usize,
}

/// A [`Chunk`] with its id in the field `chunk`, as in a placement.
#[derive(Serialize)]
struct Grown {
    chunk: ChunkId,
    bytes: usize,
}

impl From<Chunk> for Grown {
    fn from(Chunk { id, bytes }: Chunk) -> Self {
        Self { chunk: id, bytes }
    }
}
