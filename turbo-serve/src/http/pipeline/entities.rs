//! `POST /pipeline/token-classification`.

use std::ops::Range;

use axum::response::Response;
use serde::{Deserialize, Serialize};
use turbo_models::{CharOffsets, tasks::Aggregation};

use crate::{
    engine::Truncation,
    http::{
        ability::Ability,
        answer::{answered, caught, elsewhere},
        call::{Call, RequestBody},
        error::{ApiError, TeiError},
        inputs::{Count, Object, TextList},
        metrics::Arity,
    },
    tasks::{EntityRequest, FoundEntity, entities},
};

/// The request's body.
#[derive(Deserialize)]
pub(in crate::http) struct EntitiesBody {
    inputs: TextList,
    parameters: Option<Object<Parameters>>,
}

#[derive(Default, Deserialize)]
struct Parameters {
    aggregation_strategy: Option<Strategy>,
    ignore_labels: Option<Vec<String>>,
    /// The tokens that the parts of a long text would share. Texts are not split here: above 0 is refused, and 0 turns
    /// truncation off.
    stride: Option<Count>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Strategy {
    None,
    Simple,
    First,
    Average,
    Max,
}

impl RequestBody for EntitiesBody {
    type Error = TeiError;
}

/// An entity of one token, with the model's label.
#[derive(Serialize)]
struct Token<'a> {
    entity: &'a str,
    score: f32,
    index: usize,
    word: &'a str,
    start: usize,
    end: usize,
}

/// An entity of words. `word` is the text's own spelling, whereas the transformers library joins tokens.
#[derive(Serialize)]
struct Group<'a> {
    entity_group: &'a str,
    score: f32,
    word: &'a str,
    start: usize,
    end: usize,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Entity<'a> {
    Token(Token<'a>),
    Group(Group<'a>),
}

/// How vocabularies write unknown tokens; the text's own spelling is reported instead.
const UNKNOWN: [&str; 2] = ["[UNK]", "<unk>"];

/// `[{"entity_group", …}]` for one text, `[[…]]` for several; `[{"entity", …}]` without aggregation.
pub(in crate::http) async fn token_classification(
    Call { target, body, received }: Call<EntitiesBody>,
) -> Result<Response, TeiError> {
    Ability::TokenClassification.check(&target)?;
    let parameters = body.parameters.unwrap_or_default().0;
    if parameters.stride.is_some_and(|Count(stride)| stride > 0) {
        let why = "`stride` is not possible here: send the parts of a long text as separate texts";
        return Err(ApiError::validation(why).into());
    }
    // The default of Hugging Face's hosted models.
    let aggregation = match parameters.aggregation_strategy.unwrap_or(Strategy::Simple) {
        Strategy::None => Aggregation::None,
        Strategy::Simple => Aggregation::Simple,
        Strategy::First => Aggregation::First,
        Strategy::Average => Aggregation::Average,
        Strategy::Max => Aggregation::Max,
    };
    let TextList { texts, arity } = body.inputs;
    target.metrics().received(arity);
    let request = EntityRequest {
        texts: texts.clone(),
        aggregation,
        ignored: parameters.ignore_labels.unwrap_or_else(|| vec!["O".into()]),
        truncation: parameters.stride.map(|_| Truncation::Off),
    };
    let target = target.begun()?;
    let found = caught(|| Box::pin(entities(target.engine(), request))).await?;
    let usage = found.usage;
    let body = elsewhere(move || Ok(json(&texts, &found.found, aggregation, arity)));
    Ok(answered(&target, arity, &usage, received, body.await?))
}

fn json(texts: &[String], found: &[Vec<FoundEntity>], aggregation: Aggregation, arity: Arity) -> Vec<u8> {
    let mut all = texts.iter().zip(found).map(|(text, found)| in_text(text, found, aggregation));
    let json = match arity {
        Arity::Single => serde_json::to_vec(&all.next().unwrap_or_default()),
        Arity::Batch => serde_json::to_vec(&all.collect::<Vec<_>>()),
    };
    json.expect("numbers and strings are always JSON")
}

/// The entities of one text, with offsets in characters.
fn in_text<'a>(text: &'a str, found: &'a [FoundEntity], aggregation: Aggregation) -> Vec<Entity<'a>> {
    let characters = CharOffsets::of(text);
    let entity = |found: &'a FoundEntity| {
        let FoundEntity { label, score, bytes, tokens, token } = found;
        let Range { start, end } = characters.range(bytes);
        let (score, written) = (*score, text.get(bytes.clone()).unwrap_or_default());
        if aggregation == Aggregation::None {
            let word = if UNKNOWN.contains(&token.as_str()) { written } else { token };
            Entity::Token(Token { entity: label, score, index: tokens.start, word, start, end })
        } else {
            Entity::Group(Group { entity_group: label, score, word: written, start, end })
        }
    };
    found.iter().map(entity).collect()
}
