//! `POST /score` and `POST /v1/score`: how well two texts match. A cross-encoder reads both at once; for an embedding
//! model the score is the cosine of their vectors.

use axum::{extract::State, response::Response};
use serde::{Deserialize, Serialize, de::IgnoredAny};

use super::{
    List,
    fields::{Cut, Padding, Side, activation, check_padding, check_template, not_null, word},
    id_of,
};
use crate::{
    engine::{InferResponse, Input, ModelInfo, OutputKind, Row, ScoreFunction},
    http::{
        ability::Ability,
        answer::{Question, Sides, answer_in_parts},
        call::{Call, RequestBody},
        cut::{check_cut, cut},
        error::{ApiError, OpenAiError},
        inputs::{Count, TextList, Whole},
        metrics::Arity,
        rerank::{check_in_parts, check_query, scores},
        router::Server,
        target::Target,
        write::{check_finite, cosine},
    },
    tasks::IfFull,
};

/// The request's body. The two sides of the pairs have had several names over time.
#[derive(Deserialize)]
pub(in crate::http) struct ScoreBody {
    model: Option<String>,
    /// `/rerank`'s name for the query. Not a side here, but errors mention it.
    query: Option<IgnoredAny>,
    #[serde(default, deserialize_with = "not_null")]
    queries: Option<TextList>,
    #[serde(default, deserialize_with = "not_null")]
    documents: Option<TextList>,
    #[serde(default, deserialize_with = "not_null")]
    items: Option<TextList>,
    #[serde(default, deserialize_with = "not_null")]
    data_1: Option<TextList>,
    #[serde(default, deserialize_with = "not_null")]
    data_2: Option<TextList>,
    #[serde(default, deserialize_with = "not_null")]
    text_1: Option<TextList>,
    #[serde(default, deserialize_with = "not_null")]
    text_2: Option<TextList>,
    use_activation: Option<bool>,
    activation: Option<bool>,
    softmax: Option<bool>,
    truncate_prompt_tokens: Option<Whole>,
    #[serde(default, deserialize_with = "word")]
    truncation_side: Option<Side>,
    max_tokens_per_query: Option<Count>,
    max_tokens_per_doc: Option<Count>,
    #[serde(default, deserialize_with = "word")]
    padding: Option<Padding>,
    instruction: Option<String>,
    chat_template_kwargs: Option<IgnoredAny>,
    request_id: Option<String>,
}

impl RequestBody for ScoreBody {
    type Error = OpenAiError;

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

/// One side of the pairs, and the field that it came in.
struct Texts {
    field: &'static str,
    list: TextList,
}

impl Texts {
    fn len(&self) -> usize {
        self.list.texts.len()
    }
}

#[derive(Serialize)]
struct Score {
    index: usize,
    object: &'static str,
    score: f32,
}

/// The names that the two sides may have together, in the order of the body's fields.
pub(in crate::http) const NAMES: [(&str, &str); 4] =
    [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")];

/// How a model answers.
#[derive(Clone, Copy)]
enum How {
    /// It reads both texts at once, and this function turns its logit into a score.
    Pairs(ScoreFunction),
    /// It makes a vector of each text.
    Vectors,
}

/// `{"data": [{"index", "object", "score"}], …}` in the order of the pairs.
pub(in crate::http) async fn score(
    State(server): State<Server>,
    Call { target, mut body, received }: Call<ScoreBody>,
) -> Result<Response, OpenAiError> {
    Ability::Score.check(&target)?;
    check_padding(body.padding)?;
    check_template(body.chat_template_kwargs.take())?;
    let Cut { truncation, max_input_length } =
        Cut::of(&target, body.truncate_prompt_tokens, body.truncation_side)?;
    let most_tokens = [
        texts_cut(&target, "max_tokens_per_query", body.max_tokens_per_query)?,
        texts_cut(&target, "max_tokens_per_doc", body.max_tokens_per_doc)?,
    ];
    let sides = body.sides()?;
    check_sides(&target, &server, &sides)?;
    let arity = match sides.each_ref().map(|side| side.list.arity) {
        [Arity::Single, Arity::Single] => Arity::Single,
        _ => Arity::Batch,
    };
    let model = &target.engine().info().model;
    let (name, how) = (model.name.clone(), How::of(model, body.activation()));
    if let How::Vectors = how {
        let texts: usize = sides.iter().map(Texts::len).sum();
        target.check_values(texts * model.rows.pooled.unwrap_or(0))?;
    }
    let target = target.begun()?;
    let (sides, if_full) = cut_sides(&target, sides, most_tokens).await?;
    let [first, second] = &sides;
    if let (How::Pairs(_), [query]) = (how, first.list.texts.as_slice()) {
        check_query(&target, first.field, query, second.len())?;
    }
    let (firsts, id) = (first.len(), id_of("score", body.request_id));
    let (inputs, output, sides) = how.asks(sides);
    let question = Question {
        truncation,
        max_input_length,
        instruction: body.instruction,
        sides,
        ..Question::new(arity, output, received)
    };
    let write = move |response: &InferResponse| {
        let score = |(index, score)| Score { index, object: "score", score };
        let data = how.scores(response, firsts)?.into_iter().enumerate().map(score).collect();
        Ok(List::new(id, &name, data, response.usage.tokens).json())
    };
    Ok(answer_in_parts(target, question, inputs, if_full, write).await?)
}

impl How {
    fn of(model: &ModelInfo, activation: Option<bool>) -> Self {
        let function = match model.score_function {
            _ if activation == Some(false) => ScoreFunction::Identity,
            // The problem type that a folder states takes precedence over the function that it names.
            ScoreFunction::Identity => ScoreFunction::Identity,
            _ => model.pair_score_function,
        };
        match Ability::of(model) {
            Ability::Rerank => Self::Pairs(function),
            _ => Self::Vectors,
        }
    }

    /// What the model is asked: its inputs, the rows that it gives, and the sides that errors name. Errors about pairs
    /// name none: they are numbered by pair.
    fn asks(
        self,
        [first, second]: [Texts; 2],
    ) -> (Box<dyn Iterator<Item = Input> + Send>, OutputKind, Option<Sides>) {
        let sides = Sides { fields: [first.field, second.field], firsts: first.len() };
        let (first, second) = (first.list.texts, second.list.texts);
        match self {
            Self::Pairs(_) => (pairs(first, second), OutputKind::RAW, None),
            Self::Vectors => {
                let all = first.into_iter().chain(second).map(Input::Text);
                (Box::new(all), OutputKind::Pooled { normalize: true, dimensions: None }, Some(sides))
            }
        }
    }

    /// The scores of the pairs, of which the first side has `firsts` texts.
    fn scores(self, response: &InferResponse, firsts: usize) -> Result<Vec<f32>, ApiError> {
        match self {
            Self::Pairs(function) => scores(response, function),
            Self::Vectors => cosines(&response.rows, firsts),
        }
    }
}

impl ScoreBody {
    fn activation(&self) -> Option<bool> {
        activation([self.use_activation, self.activation, self.softmax])
    }

    /// Both sides of the pairs, whose names must belong together.
    fn sides(&mut self) -> Result<[Texts; 2], ApiError> {
        let given: Vec<Texts> = [
            ("queries", self.queries.take()),
            ("documents", self.documents.take()),
            ("items", self.items.take()),
            ("data_1", self.data_1.take()),
            ("data_2", self.data_2.take()),
            ("text_1", self.text_1.take()),
            ("text_2", self.text_2.take()),
        ]
        .into_iter()
        .filter_map(|(field, list)| Some(Texts { field, list: list? }))
        .collect();
        let query = self.query.as_ref().map(|_| "`query`".to_owned());
        let fields: Vec<String> =
            query.into_iter().chain(given.iter().map(|side| format!("`{}`", side.field))).collect();
        if let Ok([first, second]) = <[Texts; 2]>::try_from(given)
            && NAMES.contains(&(first.field, second.field))
        {
            return Ok([first, second]);
        }
        let got = match &fields[..] {
            [] => "none of them".to_owned(),
            fields => fields.join(", "),
        };
        Err(ApiError::validation(format!(
            "expected `queries` and `documents`, or `text_1` and `text_2`, and no other names of texts; got {got}"
        )))
    }
}

/// Most tokens of each text of a side; 0 is no limit.
fn texts_cut(target: &Target, field: &str, tokens: Option<Count>) -> Result<Option<usize>, ApiError> {
    let tokens = tokens.map(|Count(tokens)| tokens).filter(|&tokens| tokens > 0);
    check_cut(target, field, tokens)?;
    Ok(tokens)
}

/// Refuses sides that make no pairs, or too many.
fn check_sides(target: &Target, server: &Server, sides: &[Texts; 2]) -> Result<(), ApiError> {
    let [first, second] = sides;
    if let Some(Texts { field, .. }) = sides.iter().find(|side| side.len() == 0) {
        return Err(ApiError::empty(format!("`{field}` cannot be empty")));
    }
    if ![1, second.len()].contains(&first.len()) {
        return Err(ApiError::validation(format!(
            "there are {} `{one}` and {} `{other}`, expected one of `{one}`, or as many as of `{other}`",
            first.len(),
            second.len(),
            one = first.field,
            other = second.field
        )));
    }
    check_in_parts(server, target, second.field, second.len(), "pairs")
}

/// Cuts the texts of each side that may have only so many tokens; later requests then wait for room, as [`cut`] says.
async fn cut_sides(
    target: &Target,
    mut sides: [Texts; 2],
    most_tokens: [Option<usize>; 2],
) -> Result<([Texts; 2], IfFull), ApiError> {
    let mut if_full = IfFull::Fails;
    for (side, most_tokens) in sides.iter_mut().zip(most_tokens) {
        if let Some(limit) = most_tokens {
            let texts = std::mem::take(&mut side.list.texts);
            (side.list.texts, if_full) = cut(target, texts, limit, if_full).await?;
        }
    }
    Ok((sides, if_full))
}

/// A cross-encoder's inputs: the only first text beside each of the second ones, or each beside its own.
fn pairs(mut first: Vec<String>, second: Vec<String>) -> Box<dyn Iterator<Item = Input> + Send> {
    match first.pop() {
        Some(query) if first.is_empty() => {
            Box::new(second.into_iter().map(move |text| Input::Pair(query.clone(), text)))
        }
        last => {
            let first = first.into_iter().chain(last);
            Box::new(first.zip(second).map(|(first, second)| Input::Pair(first, second)))
        }
    }
}

/// The cosines of pairs. The first `firsts` rows are one side: a single row for all pairs, or one for each.
fn cosines(rows: &[Row], firsts: usize) -> Result<Vec<f32>, ApiError> {
    check_finite(rows)?;
    let (first, second) = rows.split_at(firsts);
    Ok(second.iter().zip(first.iter().cycle()).map(|(second, first)| cosine(first, second)).collect())
}
