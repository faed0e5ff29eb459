//! `POST /pipeline/fill-mask`.

use axum::response::Response;
use serde::{Deserialize, Serialize};

use crate::{
    http::{
        ability::Ability,
        answer::{answered, caught, elsewhere},
        call::{Call, RequestBody},
        error::{ApiError, TeiError},
        inputs::{Count, Object, at_least_one},
        metrics::Arity,
    },
    tasks::{Filled, Found, GapRequest, fill_gaps},
};

/// The request's body.
#[derive(Deserialize)]
pub(in crate::http) struct GapBody {
    inputs: String,
    parameters: Option<Object<Parameters>>,
}

#[derive(Default, Deserialize)]
struct Parameters {
    top_k: Option<Count>,
    targets: Option<Vec<String>>,
}

impl RequestBody for GapBody {
    type Error = TeiError;
}

#[derive(Serialize)]
struct Word<'a> {
    score: f32,
    token: u32,
    token_str: &'a str,
    sequence: &'a str,
}

/// Default number of words for a gap.
const TOP_K: usize = 5;

/// `[{"score", "token", "token_str", "sequence"}]` for one gap, `[[…]]` for several.
pub(in crate::http) async fn fill_mask(
    Call { target, body, received }: Call<GapBody>,
) -> Result<Response, TeiError> {
    Ability::FillMask.check(&target)?;
    let Parameters { top_k, targets } = body.parameters.unwrap_or_default().0;
    if targets.as_ref().is_some_and(Vec::is_empty) {
        return Err(ApiError::empty("`targets` cannot be empty: leave it out").into());
    }
    let top_k = at_least_one("top_k", top_k)?.unwrap_or(TOP_K);
    let request = GapRequest { text: body.inputs, top_k, targets };
    target.metrics().received(Arity::Single);
    let target = target.begun()?;
    let Found { found, usage } = caught(|| Box::pin(fill_gaps(target.engine(), request))).await?;
    // A thousand sequences of thousands of tokens are megabytes.
    let body = elsewhere(move || Ok(json(&found)));
    Ok(answered(&target, Arity::Single, &usage, received, body.await?))
}

fn json(found: &[Vec<Filled>]) -> Vec<u8> {
    let gaps: Vec<Vec<Word<'_>>> = found.iter().map(|gap| gap.iter().map(Word::from).collect()).collect();
    let json = match gaps.as_slice() {
        [gap] => serde_json::to_vec(gap),
        gaps => serde_json::to_vec(gaps),
    };
    json.expect("numbers and strings are always JSON")
}

impl<'a> From<&'a Filled> for Word<'a> {
    fn from(filled: &'a Filled) -> Self {
        let Filled { score, token, text, sequence } = filled;
        Self { score: *score, token: *token, token_str: text, sequence }
    }
}
