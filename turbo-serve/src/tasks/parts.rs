//! Splits more inputs than one request may have into several requests, and answers them as one.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::{Door, patiently};
use crate::engine::{EngineError, Infer, InferRequest, InferResponse, Input, Timings, Usage};

/// Parts that are in progress at a time: while one is computed, the next is tokenized. More would take slots that
/// others wait for, and gain nothing.
pub(crate) const AT_ONCE: usize = 2;

/// What happens to a request when all slots are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfFull {
    /// It fails.
    Fails,
    /// It waits: it is the rest of a request that was accepted, or of a stream, which is read more slowly meanwhile.
    Waits,
}

/// The answers to any number of `inputs`. They are split into requests of as many inputs as one may have; everything
/// else in `request` applies to all of these parts. Inputs are made only when their part is requested, so that pairs do
/// not need many copies of a long query at a time.
///
/// `if_full` applies to the first part. The others wait for room, until the deadline of `request` or of the engine.
///
/// # Errors
/// Those of the engine; input numbers count through all parts.
pub async fn infer_in_parts(
    engine: &dyn Infer,
    request: InferRequest,
    inputs: impl Iterator<Item = Input> + Send,
    if_full: IfFull,
) -> Result<InferResponse, EngineError> {
    let (started, most) = (Instant::now(), engine.info().max_client_batch_size);
    let mut inputs = inputs;
    let parts = std::iter::from_fn(|| {
        let inputs: Vec<Input> = inputs.by_ref().take(most).collect();
        (!inputs.is_empty()).then(|| InferRequest { inputs, ..request.clone() })
    });
    let deadline = request.urgency.or(engine.urgency()).deadline;
    let door = &Door::default();
    let answers = stream::iter(parts.enumerate())
        .map(|(nth, part)| async move {
            let answer = match if_full {
                IfFull::Fails if nth == 0 => engine.infer(part).await,
                _ => {
                    let part = InferRequest { retries: true, ..part };
                    patiently(engine, door, part.inputs.len(), deadline, || engine.infer(part.clone())).await
                }
            };
            answer.map_err(|error| error.behind(nth * most))
        })
        .buffered(AT_ONCE)
        .try_collect::<Vec<InferResponse>>()
        .await?;
    let mut whole = together(answers).ok_or(EngineError::Empty)?;
    whole.usage.timings.total = started.elapsed();
    Ok(whole)
}

/// Joins answers in their order, and their usage; `None` if there are none.
fn together(answers: Vec<InferResponse>) -> Option<InferResponse> {
    let count = answers.iter().map(|answer| answer.rows.len()).sum::<usize>();
    let mean = |of: fn(&Timings) -> Duration| {
        let share = |answer: &InferResponse| {
            of(&answer.usage.timings).mul_f64(answer.rows.len() as f64 / count.max(1) as f64)
        };
        answers.iter().map(share).sum()
    };
    let timings = Timings {
        total: Duration::ZERO,
        tokenization: mean(|timings| timings.tokenization),
        queue: mean(|timings| timings.queue),
        inference: mean(|timings| timings.inference),
    };
    let sum = |of: fn(&Usage) -> usize| answers.iter().map(|answer| of(&answer.usage)).sum();
    let usage =
        Usage { timings, characters: sum(|usage| usage.characters), tokens: sum(|usage| usage.tokens) };
    let rows = answers.into_iter().flat_map(|answer| answer.rows);
    (count > 0).then(|| InferResponse { rows: rows.collect(), usage })
}

#[cfg(test)]
mod tests {
    use std::{
        ops::Range,
        sync::{
            Mutex,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
    };

    use super::*;
    use crate::{
        engine::{
            DecodeRequest, EngineInfo, Health, OutputKind, Pending, PromptName, Row, TokenizeRequest,
            Tokenized,
        },
        tasks::fake::info,
    };

    /// Takes two inputs at a time; the row of a text is the number that it is.
    struct Twos {
        info: EngineInfo,
        /// Which requests find no room.
        full: Range<usize>,
        /// The inputs of each request, as they came.
        seen: Mutex<Vec<usize>>,
        /// How many of them retry.
        patient: AtomicUsize,
        inside: AtomicUsize,
        most_inside: AtomicUsize,
    }

    impl Twos {
        fn new(full: Range<usize>) -> Self {
            let [patient, inside, most_inside] = [0, 0, 0].map(AtomicUsize::new);
            Self { info: info(), full, seen: Mutex::default(), patient, inside, most_inside }
        }

        async fn answer(&self, request: InferRequest) -> Result<InferResponse, EngineError> {
            let count = request.inputs.len();
            assert!((1..=2).contains(&count) && request.prompt_name == PromptName::Named("query".to_owned()));
            self.patient.fetch_add(usize::from(request.retries), SeqCst);
            let nth = {
                let mut seen = self.seen.lock().unwrap();
                seen.push(count);
                seen.len() - 1
            };
            if self.full.contains(&nth) {
                return Err(EngineError::Overloaded { retry_after: Duration::from_secs(60) });
            }
            self.most_inside.fetch_max(self.inside.fetch_add(1, SeqCst) + 1, SeqCst);
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.inside.fetch_sub(1, SeqCst);
            let row = |(input, content): (usize, &Input)| match content {
                Input::Text(text) => {
                    let number = text.parse().map_err(|_| EngineError::EmptyInput { input })?;
                    Ok(Row { values: vec![number], row_len: 1, tokens: 3 })
                }
                other => panic!("{other:?}"),
            };
            let rows = request.inputs.iter().enumerate().map(row).collect::<Result<_, _>>()?;
            let timings =
                Timings { inference: Duration::from_millis(6 * count as u64), ..Timings::default() };
            Ok(InferResponse { rows, usage: Usage { timings, characters: count, tokens: 3 * count } })
        }
    }

    impl Infer for Twos {
        fn info(&self) -> &EngineInfo {
            &self.info
        }

        fn infer(&self, request: InferRequest) -> Pending<'_, InferResponse> {
            Box::pin(self.answer(request))
        }

        fn tokenize(&self, _: TokenizeRequest) -> Pending<'_, Vec<Tokenized>> {
            unreachable!("nobody asks for tokens")
        }

        fn decode(&self, _: DecodeRequest) -> Pending<'_, Vec<String>> {
            unreachable!("nobody asks for texts")
        }

        fn health(&self) -> Health {
            Health::Ready
        }
    }

    fn ask(engine: &Twos, texts: &[&str]) -> Result<InferResponse, EngineError> {
        ask_or(IfFull::Fails, engine, texts)
    }

    fn ask_or(if_full: IfFull, engine: &Twos, texts: &[&str]) -> Result<InferResponse, EngineError> {
        let request = InferRequest {
            prompt_name: PromptName::Named("query".to_owned()),
            ..InferRequest::new(Vec::new(), OutputKind::RAW)
        };
        let inputs = texts.iter().map(|&text| Input::Text(text.to_owned()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(infer_in_parts(engine, request, inputs, if_full))
    }

    #[test]
    fn parts_are_one_answer() {
        let engine = Twos::new(0..0);
        let answer = ask(&engine, &["5", "4", "3", "2", "1"]).unwrap();
        let rows: Vec<f32> = answer.rows.iter().map(|row| row.values[0]).collect();
        assert_eq!(rows, [5.0, 4.0, 3.0, 2.0, 1.0]);
        assert_eq!((answer.usage.characters, answer.usage.tokens), (5, 15));
        // Four inputs took 12 ms, one took 6.
        let inference = answer.usage.timings.inference.as_secs_f64();
        assert!((inference - 0.0108).abs() < 1e-6, "the mean over inputs: {inference}");
        assert!(answer.usage.timings.total >= Duration::from_millis(2));
        assert_eq!(
            (engine.seen.lock().unwrap().as_slice(), engine.most_inside.load(SeqCst)),
            (&[2, 2, 1][..], 2)
        );
    }

    #[test]
    fn what_has_begun_waits_for_room_and_nothing_begins_without() {
        let refused = ask(&Twos::new(0..1), &["1", "2", "3"]);
        assert_eq!(refused, Err(EngineError::Overloaded { retry_after: Duration::from_secs(60) }));
        let engine = Twos::new(1..3);
        assert_eq!(ask(&engine, &["1", "2", "3"]).unwrap().rows.len(), 3);
        assert_eq!(*engine.seen.lock().unwrap(), [2, 1, 1, 1], "the second part was refused twice");
        assert_eq!(engine.patient.load(SeqCst), 3, "and the first would not have come again");
        let engine = Twos::new(0..2);
        assert_eq!(ask_or(IfFull::Waits, &engine, &["1", "2"]).unwrap().rows.len(), 2);
    }

    #[test]
    fn errors_name_the_input_of_the_whole() {
        let wrong = ask(&Twos::new(0..0), &["1", "2", "3", "not a number"]);
        assert_eq!(wrong, Err(EngineError::EmptyInput { input: 3 }));
        assert_eq!(ask(&Twos::new(0..0), &[]), Err(EngineError::Empty));
    }
}
