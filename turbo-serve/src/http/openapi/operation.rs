//! The document's entry for one route and method.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::engine::Priority;

/// One operation, built step by step.
pub(in crate::http) struct Operation {
    id: Cow<'static, str>,
    tag: &'static str,
    summary: &'static str,
    parameters: Vec<&'static str>,
    body: Option<Value>,
    answer: Value,
    refusals: &'static [u16],
    errors: Errors,
    public: bool,
    /// Whether it exists only at the root, and not below `/models/{model}`, too.
    at_root: bool,
}

/// The form of an operation's errors.
#[derive(Clone, Copy)]
enum Errors {
    Tei,
    OpenAi,
    Rerank,
    Kserve,
    /// It depends on the body.
    Any,
}

/// Error statuses of requests with a body.
const ASKING: [u16; 10] = [400, 404, 408, 413, 415, 422, 424, 429, 503, 504];

impl Operation {
    /// An operation that answers with JSON of this schema.
    pub(super) fn new(id: &'static str, tag: &'static str, summary: &'static str, schema: &str) -> Self {
        let answer = json!({
            "description": "the answer",
            "content": { "application/json": { "schema": of(schema) } },
        });
        Self {
            id: id.into(),
            tag,
            summary,
            parameters: Vec::new(),
            body: None,
            answer,
            refusals: &[],
            errors: Errors::Tei,
            public: false,
            at_root: false,
        }
    }

    /// An operation that answers with text of this type.
    pub(super) fn text(id: &'static str, tag: &'static str, summary: &'static str, media_type: &str) -> Self {
        let content = json!({ media_type: { "schema": { "type": "string" } } });
        let answer = json!({ "description": "the answer", "content": content });
        Self { answer, ..Self::new(id, tag, summary, "Nothing") }
    }

    /// An operation that answers with its status alone.
    pub(super) fn nothing(id: &'static str, tag: &'static str, summary: &'static str) -> Self {
        Self { answer: json!({ "description": "nothing" }), ..Self::new(id, tag, summary, "Nothing") }
    }

    /// With a body of this schema, examples of it, and the error statuses of bodies.
    pub(super) fn asks<const N: usize>(mut self, schema: &str, examples: [(&str, Value); N]) -> Self {
        let examples = examples.map(|(name, value)| (name.to_owned(), json!({ "value": value })));
        let examples: Map<String, Value> = Map::from_iter(examples);
        self.body = Some(json!({
            "required": true,
            "content": { "application/json": { "schema": of(schema), "examples": examples } },
        }));
        self.refuses(&ASKING)
    }

    /// With a body that may be left out.
    pub(super) fn may_ask<const N: usize>(self, schema: &str, examples: [(&str, Value); N]) -> Self {
        let mut asks = self.asks(schema, examples);
        asks.body.iter_mut().for_each(|body| body["required"] = Value::Bool(false));
        asks
    }

    /// With bodies and answers that may also be JSON followed by bytes, where a header gives the JSON's length.
    pub(super) fn or_bytes(mut self) -> Self {
        let bytes = json!({ "schema": { "type": "string", "format": "binary" } });
        for told in self.body.iter_mut().chain([&mut self.answer]) {
            told["content"]["application/octet-stream"] = bytes.clone();
        }
        self
    }

    /// With these error statuses.
    pub(super) fn refuses(self, refusals: &'static [u16]) -> Self {
        Self { refusals, ..self }
    }

    /// With a parameter in its path.
    pub(super) fn with_parameter(mut self, name: &'static str) -> Self {
        self.parameters.push(name);
        self
    }

    /// The same operation for a version that the path names.
    pub(in crate::http) fn of_version(self) -> Self {
        let id = format!("{}_of_version", self.id);
        Self { id: id.into(), ..self.with_parameter("version") }
    }

    /// With the headers that report an answer's timings.
    pub(super) fn timed(mut self) -> Self {
        let number =
            |unit: &str| json!({ "description": unit, "schema": { "type": "integer", "minimum": 0 } });
        self.answer["headers"] = json!({
            "x-compute-type": { "description": "what it ran on", "schema": { "type": "string" } },
            "x-compute-time": number("milliseconds in total"),
            "x-compute-characters": number("characters of all texts; token ids count as one each"),
            "x-compute-tokens": number("tokens of all inputs"),
            "x-total-time": number("milliseconds in total"),
            "x-tokenization-time": number("mean milliseconds until an input was tokenized"),
            "x-queue-time": number("mean milliseconds until the batch of an input began"),
            "x-inference-time": number("mean milliseconds of the batch of an input"),
        });
        self
    }

    /// With errors in OpenAI's form.
    pub(super) fn like_openai(self) -> Self {
        Self { errors: Errors::OpenAi, ..self }
    }

    /// With errors in Cohere's and Jina's form.
    pub(super) fn like_rerank(self) -> Self {
        Self { errors: Errors::Rerank, ..self }
    }

    /// With errors in the form of KServe's protocol; exists once.
    pub(super) fn like_kserve(self) -> Self {
        Self { errors: Errors::Kserve, at_root: true, ..self }
    }

    /// With errors in the form of the API that the body is for.
    pub(super) fn like_asked(self) -> Self {
        Self { errors: Errors::Any, ..self }
    }

    /// Public: needs no key.
    pub(super) fn public(self) -> Self {
        Self { public: true, ..self }
    }

    /// The document's entry, for a router whose paths follow `root`.
    pub(super) fn into_json(self, root: &str) -> Value {
        let schema = match self.errors {
            Errors::Tei => "Error",
            Errors::OpenAi => "OpenAiError",
            Errors::Rerank => "RerankError",
            Errors::Kserve => "KserveError",
            Errors::Any => "AnyError",
        };
        let mut responses = Map::from_iter([("200".to_owned(), self.answer)]);
        let needs_key = (!self.public).then_some(401);
        // requests with a body are refused if they come from a web page of another origin
        let of_pages = self.body.is_some().then_some(403);
        for status in self.refusals.iter().copied().chain(needs_key).chain(of_pages) {
            responses.insert(status.to_string(), refusal(status, schema));
        }
        let mut operation = json!({
            "operationId": self.id, "tags": [self.tag], "summary": self.summary, "responses": responses,
        });
        let mut parameters: Vec<Value> = self.parameters.into_iter().map(parameter).collect();
        if self.refusals.contains(&504) {
            parameters.extend(urgency());
        }
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        if let Some(body) = self.body {
            operation["requestBody"] = body;
        }
        if self.public {
            operation["security"] = json!([]);
        }
        if self.at_root {
            operation["servers"] = json!([{ "url": root }]);
        }
        operation
    }
}

fn parameter(name: &str) -> Value {
    json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 } })
}

/// The headers that set a request's urgency.
fn urgency() -> [Value; 2] {
    let header = |name: &str, description: &str, schema: Value| json!({ "name": name, "in": "header", "required": false, "description": description, "schema": schema });
    let classes = Priority::ALL.map(Priority::name);
    [
        header(
            "X-Request-Deadline-Ms",
            "milliseconds from now for which the client waits",
            json!({ "type": "integer", "minimum": 1 }),
        ),
        header(
            "X-Request-Priority",
            "which requests go first; the others are served too",
            json!({ "enum": classes, "default": Priority::default().name() }),
        ),
    ]
}

fn refusal(status: u16, schema: &str) -> Value {
    let description = match status {
        400 => "the body is not JSON or has no inputs, or a header is invalid",
        401 => "the server requires a key, and the request does not have it",
        403 => "the request is from a web page whose origin is not allowed",
        404 => "no such model",
        408 => "the body stopped arriving",
        413 => "the body is too large",
        415 => "the body is not `application/json`, or its compression is neither gzip nor deflate",
        422 => "the body is invalid",
        424 => "the model is for something else, or has failed",
        429 => {
            "the server has no room for more inputs, or the answer would come too late: `Retry-After` says when to \
             retry"
        }
        504 => "the request was not answered within the time that the client, or the server, allows",
        _ => "no request is answered now",
    };
    let mut refusal =
        json!({ "description": description, "content": { "application/json": { "schema": of(schema) } } });
    if status == 429 {
        refusal["headers"] = json!({
            "Retry-After": { "description": "seconds", "schema": { "type": "integer", "minimum": 0 } },
            "retry-after-ms": { "description": "milliseconds", "schema": { "type": "integer", "minimum": 0 } },
        });
    }
    refusal
}

/// The schema of this name.
fn of(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}
