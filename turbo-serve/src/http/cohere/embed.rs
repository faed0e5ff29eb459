//! `POST /v2/embed`: a vector of each text, written in each of the requested types.

use std::sync::Arc;

use axum::response::Response;
use serde::{Deserialize, de::IgnoredAny};

use super::input_type::prompt_name;
use crate::{
    engine::{InferResponse, Input, OutputKind, Truncation},
    http::{
        ability::Ability,
        answer::{Question, answer_in_parts, new_id},
        call::{Call, RequestBody},
        error::{ApiError, OpenAiError},
        inputs::{Count, TextList, at_least_one},
        openai::check_count,
        vllm::fields::refuse,
        write::{self, Encoding},
    },
    tasks::IfFull,
};

/// The request's body. Fields that are not named here are ignored, `priority` among them.
#[derive(Deserialize)]
pub(in crate::http) struct EmbedBody {
    model: Option<String>,
    texts: Option<TextList>,
    images: Option<IgnoredAny>,
    inputs: Option<IgnoredAny>,
    input_type: Option<String>,
    embedding_types: Option<Vec<String>>,
    truncate: Option<String>,
    max_tokens: Option<Count>,
    output_dimension: Option<Count>,
}

impl RequestBody for EmbedBody {
    type Error = OpenAiError;

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

/// `{"embeddings": {"float": [[f32]], …}, "texts", "meta", …}`: normalised rows, computed in parts of as many texts as
/// the model takes. Texts that are too long lose their end unless the request says otherwise.
pub(in crate::http) async fn embed(
    Call { target, body, received }: Call<EmbedBody>,
) -> Result<Response, OpenAiError> {
    Ability::Embed.check(&target)?;
    refuse("images", body.images, "no model reads images; send `texts`")?;
    refuse("inputs", body.inputs, "no model reads images beside texts; send `texts`")?;
    let TextList { texts, arity } =
        body.texts.ok_or_else(|| ApiError::validation("missing field `texts`"))?;
    if texts.is_empty() {
        return Err(ApiError::empty("`texts` cannot be empty").into());
    }
    check_count(&target, texts.len())?;
    let types = types(body.embedding_types.unwrap_or_default())?;
    let bytes_per_value = types.iter().map(|it| it.bytes_per_value()).sum();
    let target = target.writing(bytes_per_value);
    let model = &target.engine().info().model;
    let row_len = model.rows.pooled.unwrap_or(0);
    let dimensions = dimensions(body.output_dimension, row_len)?;
    check_types(&types, dimensions.unwrap_or(row_len))?;
    let prompt_name = prompt_name(&model.prompts, body.input_type)?;
    let truncation = truncation(body.truncate.as_deref())?;
    let max_input_length = at_least_one("max_tokens", body.max_tokens)?;
    // the answer repeats the texts
    let echoed: usize = texts.iter().map(String::len).sum();
    let as_values = echoed.div_ceil(size_of::<f32>() + bytes_per_value);
    target.check_values(texts.len() * dimensions.unwrap_or(row_len) + as_values)?;
    if let Some(planned) = target.planned() {
        planned.fits(echoed).map_err(ApiError::from)?;
    }
    let output = OutputKind::Pooled { normalize: true, dimensions };
    let question = Question {
        truncation: Some(truncation),
        max_input_length,
        prompt_name,
        ..Question::new(arity, output, received)
    };
    let texts: Arc<[String]> = texts.into();
    let asked = Arc::clone(&texts);
    let inputs = (0..asked.len()).map(move |index| Input::Text(asked[index].clone()));
    let write = move |response: &InferResponse| {
        let tokens = response.usage.tokens;
        Ok(write::embeddings_by_type(&response.rows, &types, &new_id("embd"), &texts, tokens)?)
    };
    Ok(answer_in_parts(target, question, inputs, IfFull::Fails, write).await?)
}

/// How vectors are written: in each of the named types once, or as numbers if none is named.
fn types(names: Vec<String>) -> Result<Vec<Encoding>, ApiError> {
    const KNOWN: [Encoding; 4] = [Encoding::Float, Encoding::Base64, Encoding::Binary, Encoding::Ubinary];
    let mut types = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let Some(known) = KNOWN.into_iter().find(|known| known.name() == name) else {
            let why = match name.as_str() {
                "int8" | "uint8" => "; how values become integers is not known",
                _ => "",
            };
            return Err(ApiError::validation(format!(
                "`embedding_types` has {name:?} at [{index}], expected \"float\", \"base64\", \"binary\" or \
                 \"ubinary\"{why}"
            )));
        };
        if !types.contains(&known) {
            types.push(known);
        }
    }
    Ok(if types.is_empty() { vec![Encoding::Float] } else { types })
}

/// Refuses types of one bit per value for vectors that do not fill whole bytes.
fn check_types(types: &[Encoding], row_len: usize) -> Result<(), ApiError> {
    let of_bits = types.iter().find(|it| matches!(it, Encoding::Binary | Encoding::Ubinary));
    match of_bits {
        Some(of_bits) if !row_len.is_multiple_of(8) => Err(ApiError::validation(format!(
            "`embedding_types` has {:?}, expected vectors of a multiple of 8 values, but these have {row_len}: set \
             `output_dimension`",
            of_bits.name()
        ))),
        _ => Ok(()),
    }
}

/// How many values of each vector are kept.
fn dimensions(asked: Option<Count>, row_len: usize) -> Result<Option<usize>, ApiError> {
    match asked {
        Some(Count(count)) if !(1..=row_len).contains(&count) => {
            Err(ApiError::validation(format!("`output_dimension` is {count}, expected 1 to {row_len}")))
        }
        asked => Ok(asked.map(|Count(count)| count)),
    }
}

/// What happens to texts that are too long.
fn truncation(name: Option<&str>) -> Result<Truncation, ApiError> {
    match name {
        None | Some("END") => Ok(Truncation::Right),
        Some("START") => Ok(Truncation::Left),
        Some("NONE") => Ok(Truncation::Off),
        Some(other) => Err(ApiError::validation(format!(
            "`truncate` is {other:?}, expected \"END\", \"START\" or \"NONE\""
        ))),
    }
}
