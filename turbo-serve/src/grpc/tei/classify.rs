//! `tei.v1.Predict` and `tei.v1.Rerank`: labels of texts, and texts ranked by the score of the only label.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, TryStreamExt};
use tonic::{Request, Response, Status, Streaming, async_trait};
use turbo_models::tasks::{LabelScore, classify, rank};

use super::{
    Answered, Question, check, metadata, number,
    proto::{
        PredictPairRequest, PredictRequest, PredictResponse, Prediction, Rank, RerankRequest, RerankResponse,
        RerankStreamRequest, predict_server::Predict, rerank_server::Rerank,
    },
    truncation,
};
use crate::{
    engine::{EngineError, Infer, InferRequest, Input, OutputKind, Row, ScoreFunction, Timings, Usage},
    grpc::{
        calls::{Answerer, Ask, Calls},
        streams::{Answers, arrived, at_once},
    },
    http::{Ability, ApiError, Arity, caught, check_copies, check_finite, score_function},
    models::Served,
    net::Arrived,
};

/// Most texts that are ranked in one stream: their scores are kept until it ends.
const MOST_RANKED: usize = 1 << 20;

/// Most bytes of texts that one stream gets back with their ranks.
const MOST_RETURNED: usize = 64 << 20;

/// A text, or a pair of texts, whose labels are asked for.
struct Labelled {
    input: Input,
    truncate: bool,
    truncation_direction: i32,
    raw_scores: bool,
}

impl Labelled {
    /// The labels and their scores, the best first.
    async fn ask(self, engine: &dyn Infer, ability: Ability) -> Result<(Vec<LabelScore>, Usage), ApiError> {
        let function = score_function(&engine.info().model, Some(self.raw_scores));
        let question = Question {
            input: self.input,
            output: OutputKind::RAW,
            truncate: self.truncate,
            truncation_direction: self.truncation_direction,
            prompt_name: None,
        };
        let (row, usage) = question.ask(engine, ability).await?;
        Ok((classify(&row.values, function)?, usage))
    }

    async fn predict(self, engine: &dyn Infer) -> Result<Answered<PredictResponse>, ApiError> {
        let (scores, usage) = self.ask(engine, Ability::Predict).await?;
        let labels = &engine.info().model.labels;
        let prediction = |it: LabelScore| Prediction { score: it.score, label: labels[it.index].clone() };
        let predictions = scores.into_iter().map(prediction).collect();
        Ok(Answered { message: PredictResponse { predictions, metadata: Some(metadata(&usage)) }, usage })
    }
}

impl Ask for PredictRequest {
    type Answer = PredictResponse;
    const COUNTED: Option<Arity> = Some(Arity::Single);

    async fn ask(self, served: &Served, _: Instant) -> Result<Answered<PredictResponse>, ApiError> {
        let Self { inputs, truncate, raw_scores, truncation_direction } = self;
        let input = Input::Text(inputs);
        Labelled { input, truncate, truncation_direction, raw_scores }.predict(served.engine()).await
    }
}

impl Ask for PredictPairRequest {
    type Answer = PredictResponse;
    const COUNTED: Option<Arity> = Some(Arity::Single);

    async fn ask(self, served: &Served, _: Instant) -> Result<Answered<PredictResponse>, ApiError> {
        let Self { mut inputs, truncate, raw_scores, truncation_direction } = self;
        let input = match (inputs.pop(), inputs.pop(), inputs.len()) {
            (Some(only), None, _) => Input::Text(only),
            (Some(second), Some(first), 0) => Input::Pair(first, second),
            (_, _, more) => {
                let got = if more == 0 { 0 } else { more + 2 };
                return Err(ApiError::validation(format!("`inputs` has {got} texts, expected one or two")));
            }
        };
        Labelled { input, truncate, truncation_direction, raw_scores }.predict(served.engine()).await
    }
}

#[async_trait]
impl Predict for Calls {
    type PredictStreamStream = Answers<PredictResponse>;
    type PredictPairStreamStream = Answers<PredictResponse>;

    async fn predict(&self, request: Request<PredictRequest>) -> Result<Response<PredictResponse>, Status> {
        self.answer(request).await
    }

    async fn predict_pair(
        &self,
        request: Request<PredictPairRequest>,
    ) -> Result<Response<PredictResponse>, Status> {
        self.answer(request).await
    }

    async fn predict_stream(
        &self,
        request: Request<Streaming<PredictRequest>>,
    ) -> Result<Response<Answers<PredictResponse>>, Status> {
        self.answer_each(request).await
    }

    async fn predict_pair_stream(
        &self,
        request: Request<Streaming<PredictPairRequest>>,
    ) -> Result<Response<Answers<PredictResponse>>, Status> {
        self.answer_each(request).await
    }
}

impl Ask for RerankRequest {
    type Answer = RerankResponse;
    const COUNTED: Option<Arity> = Some(Arity::Batch);

    async fn ask(self, served: &Served, _: Instant) -> Result<Answered<RerankResponse>, ApiError> {
        let engine = served.engine();
        let info = engine.info();
        check(Ability::Rerank, &info.model)?;
        // Checked before the query is copied for each text.
        let (got, limit) = (self.texts.len(), info.max_client_batch_size);
        match got {
            0 => return Err(ApiError::empty("`texts` cannot be empty")),
            got if got > limit => return Err(EngineError::TooManyInputs { got, limit }.into()),
            _ => check_copies("query", &self.query, got)?,
        }
        let function = score_function(&info.model, Some(self.raw_scores));
        let returned = self.return_text.then(|| self.texts.clone());
        let pair = |text| Input::Pair(self.query.clone(), text);
        let request = InferRequest {
            truncation: Some(truncation(self.truncate, self.truncation_direction)?),
            ..InferRequest::new(self.texts.into_iter().map(pair).collect(), OutputKind::RAW)
        };
        let response = caught(|| engine.infer(request)).await?;
        check_finite(&response.rows)?;
        let scores = response.rows.iter().map(|row| score(row, function)).collect::<Result<Vec<_>, _>>()?;
        let ranks = ranks(&scores, returned);
        let usage = response.usage;
        Ok(Answered { message: RerankResponse { ranks, metadata: Some(metadata(&usage)) }, usage })
    }
}

fn score(row: &Row, function: ScoreFunction) -> Result<f32, ApiError> {
    Ok(classify(&row.values, function)?[0].score)
}

/// The best first, each with its text where those are returned.
fn ranks(scores: &[f32], mut returned: Option<Vec<String>>) -> Vec<Rank> {
    let mut text = |index: usize| returned.as_mut().map(|texts| std::mem::take(&mut texts[index]));
    let ranked = |index: usize| Rank { index: number(index), text: text(index), score: scores[index] };
    rank(scores).into_iter().map(ranked).collect()
}

/// A text of a stream, to be scored.
struct Scored {
    message: RerankStreamRequest,
    raw_scores: bool,
}

impl Ask for Scored {
    type Answer = f32;
    const COUNTED: Option<Arity> = None; // the stream is, as one

    async fn ask(self, served: &Served, _: Instant) -> Result<Answered<f32>, ApiError> {
        let RerankStreamRequest { query, text, truncate, truncation_direction, .. } = self.message;
        let (input, raw_scores) = (Input::Pair(query, text), self.raw_scores);
        let labelled = Labelled { input, truncate, truncation_direction, raw_scores };
        let (scores, usage) = labelled.ask(served.engine(), Ability::Rerank).await?;
        Ok(Answered { message: scores[0].score, usage })
    }
}

/// What is kept of a stream's messages while their texts are scored.
#[derive(Default)]
struct Kept {
    /// Holds the bytes of the returned texts, if bytes are counted.
    arrived: Option<Arrived>,
    count: usize,
    /// As the first message says.
    raw_scores: bool,
    /// As the first message says.
    returned: Option<Vec<String>>,
    returned_bytes: usize,
}

impl Kept {
    fn keep(&mut self, message: RerankStreamRequest) -> Result<Scored, ApiError> {
        if self.count == 0 {
            self.raw_scores = message.raw_scores;
            self.returned = message.return_text.then(Vec::new);
        }
        self.count += 1;
        if self.count > MOST_RANKED {
            return Err(ApiError::validation(format!(
                "at most {MOST_RANKED} texts are ranked in one stream"
            )));
        }
        if let Some(returned) = &mut self.returned {
            self.returned_bytes += message.text.len();
            if self.returned_bytes > MOST_RETURNED {
                let advice =
                    format!("at most {MOST_RETURNED} bytes of texts are returned: leave out `return_text`");
                return Err(ApiError::validation(advice));
            }
            if let Some(arrived) = &self.arrived {
                arrived.keep_for_end(message.text.len())?;
            }
            returned.push(message.text.clone());
        }
        Ok(Scored { message, raw_scores: self.raw_scores })
    }
}

#[async_trait]
impl Rerank for Calls {
    async fn rerank(&self, request: Request<RerankRequest>) -> Result<Response<RerankResponse>, Status> {
        self.answer(request).await
    }

    async fn rerank_stream(
        &self,
        request: Request<Streaming<RerankStreamRequest>>,
    ) -> Result<Response<RerankResponse>, Status> {
        let received = Instant::now();
        let head = self.head(request.metadata())?;
        let served = self.lease_for(&head).await?;
        let (at_once, answerer) = (at_once(&served), Answerer::of(&served));
        let metrics = self.metrics.of(served.label());
        if served.retrieves() {
            let why = "an ensemble that retrieves needs all texts at once: use `Rerank` instead of a stream";
            return Err(self.refuse(&ApiError::wrong_model(why)));
        }
        drop(served); // the stream does not keep it from being unloaded
        metrics.received(Arity::Batch);

        let arrived = arrived(&request);
        let planned = arrived.as_ref().map(Arrived::planned);
        let mut kept = Kept { arrived: arrived.clone(), ..Kept::default() };
        let (mut scores, mut sum) = (Vec::new(), Usage::default());
        {
            let messages = self.clone().messages(Some(head.clone()), request);
            let texts = messages.map(|message| kept.keep(message?).map_err(|error| self.refuse(&error)));
            let mut answers = pin!(self.clone().ask_each(head.clone(), at_once, arrived, texts));
            while let Some((Answered { message, usage }, _held)) = answers.try_next().await? {
                scores.push(message);
                sum.characters += usage.characters;
                sum.add_work(&usage);
            }
        }
        if scores.is_empty() {
            return Err(self.refuse(&ApiError::empty("the stream has no texts to rank")));
        }
        let usage = mean(sum, &scores, received.elapsed());
        let (ranks, metadata) = (ranks(&scores, kept.returned), Some(metadata(&usage)));
        let answer = RerankResponse { ranks, metadata };
        self.hold(&answer, planned.as_ref())?;
        metrics.answered(Arity::Batch, &usage.timings, received.elapsed());
        let mut response = Response::new(answer);
        *response.metadata_mut() = answerer.took(&usage, received);
        Ok(response)
    }
}

/// The usage as it is reported: the times of the steps are means over the texts, and the total is that of the whole
/// call.
fn mean(sum: Usage, scores: &[f32], total: Duration) -> Usage {
    let texts = u32::try_from(scores.len()).unwrap_or(u32::MAX);
    let Timings { tokenization, queue, inference, .. } = sum.timings;
    let timings = Timings {
        total,
        tokenization: tokenization / texts,
        queue: queue / texts,
        inference: inference / texts,
    };
    Usage { timings, ..sum }
}
