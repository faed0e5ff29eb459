//! Answers to a question about a context of any length, by overlapping windows.

use std::ops::Range;

use turbo_models::tasks::{AnswerOptions, AnswerWindow, answers};

use super::{Found, Meter, aside, check_task, input, patience::AskedBefore};
use crate::engine::{
    AnswerRoom, Encoding, EngineError, Extent, Infer, InferRequest, OutputKind, SpecialTokens, Task, Texts,
    TokenizeRequest,
};

/// A question, and the text that holds its answer.
#[derive(Clone, Debug)]
pub struct QuestionRequest {
    /// The question.
    pub question: String,
    /// The text that is searched for the answer.
    pub context: String,
    /// Most tokens of a window; the model's limit, if that is less.
    pub max_seq_len: usize,
    /// Tokens of the context that neighbouring windows share, at most half a window.
    pub stride: usize,
    /// What counts as an answer.
    pub options: AnswerOptions,
    /// The room that its windows are held in until they are answered.
    pub room: AnswerRoom,
}

impl QuestionRequest {
    /// With windows of 384 tokens that share 128, as the transformers library has them.
    #[must_use]
    pub fn new(question: String, context: String) -> Self {
        let (options, room) = (AnswerOptions::default(), AnswerRoom::default());
        Self { question, context, max_seq_len: 384, stride: 128, options, room }
    }
}

/// A part of the context.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundAnswer {
    /// Between 0 and 1.
    pub score: f32,
    /// The part of the context; empty if there is no answer.
    pub text: String,
    /// Its bytes.
    pub bytes: Range<usize>,
}

/// The answers to a question, the best first.
///
/// The windows go to the model in requests of as many as one request may have, one after the other: a long context
/// takes longer, not more slots. If no slots are free for the first of these requests it fails; the others wait for
/// slots.
///
/// # Errors
/// * Those of the engine.
/// * [`EngineError::NoSuchRows`], if its model is not for [`Task::QuestionAnswering`].
/// * [`EngineError::Tokenizer`], if the question leaves no room in a window.
/// * [`EngineError::TooManyWindows`], or [`EngineError::TooManyAnswers`] for so many answers of each window, if the
///   context has too many windows.
/// * [`EngineError::AnswerTooLarge`] or [`EngineError::NoRoomForAnswer`], if there is no room for the windows.
///
/// # Panics
/// When it is polled outside a tokio runtime that has its clock enabled.
pub async fn answer_question(
    engine: &dyn Infer,
    request: QuestionRequest,
) -> Result<Found<Vec<FoundAnswer>>, EngineError> {
    check_task(engine, Task::QuestionAnswering, "answer")?;
    let QuestionRequest { question, context, max_seq_len, stride, options, room } = request;
    let mut meter = Meter::start(question.chars().count() + context.chars().count());
    let max_len = max_seq_len.min(engine.info().max_input_length);
    let stride = stride.min(max_len / 2);
    let windows = windows(engine, &question, most_tokens(&context), max_len, stride).await?;
    check_size(windows, max_len, &options)?;
    let mut held = HeldWindows::new(room, windows.saturating_mul(max_len))?;
    let extent = Extent::Windows { max_len, stride };
    let texts = vec![Texts::Pair(question, context.clone())];
    let asked = AskedBefore::new(engine);
    let tokenized = asked.tokenize(TokenizeRequest::new(texts, extent)).await?;
    let windows: Vec<_> = tokenized.into_iter().flat_map(|it| it.encodings).map(kept).collect();
    held.are(windows.iter().map(Encoding::len).sum());
    meter.tokenized();

    let mut logits = Vec::with_capacity(windows.len());
    for some in windows.chunks(engine.info().max_client_batch_size) {
        let inputs = some.iter().map(|window| input(window, Vec::new())).collect();
        let request = InferRequest::new(inputs, OutputKind::Tokens);
        let response = match logits.is_empty() {
            true => engine.infer(request).await?,
            false => asked.infer(request).await?,
        };
        meter.inferred(&response.usage);
        logits.extend(response.rows);
    }
    let found = aside(move || {
        let _held = held; // as long as there are windows, whether the client waits or not
        let windows: Vec<_> = windows
            .iter()
            .zip(&logits)
            .map(|(encoding, row)| AnswerWindow { encoding, logits: &row.values })
            .collect();
        let answers = answers(&context, &windows, &options)?;
        Ok(answers.into_iter().map(|answer| found_answer(&context, answer.score, answer.bytes)).collect())
    });
    Ok(meter.finish(found.await?))
}

/// The parts of a window that are kept until all windows are answered: its input, and what [`answers`] reads.
fn kept(window: Encoding) -> Encoding {
    Encoding { tokens: Vec::new(), continues_word: Vec::new(), ..window }
}

/// The tokens of windows, counted in the room for answers, where values are `f32`s.
struct HeldWindows {
    room: AnswerRoom,
    values: usize,
}

impl HeldWindows {
    /// Reserves room for `tokens` tokens, the most that there can be, before the windows are made.
    fn new(room: AnswerRoom, tokens: usize) -> Result<Self, EngineError> {
        let values = tokens.saturating_mul(VALUES_PER_TOKEN);
        room.hold(values)?;
        Ok(Self { room, values })
    }

    /// Releases the room that is not needed: there are `tokens` tokens.
    fn are(&mut self, tokens: usize) {
        let values = self.values.min(tokens * VALUES_PER_TOKEN);
        self.room.let_go(self.values - values);
        self.values = values;
    }
}

impl Drop for HeldWindows {
    fn drop(&mut self) {
        self.room.let_go(self.values);
    }
}

/// Memory of a token of a window that is [`kept`], in `f32`s: 35 bytes.
const VALUES_PER_TOKEN: usize = 9;
/// Most tokens of all windows over a context together, if the context had as many tokens as [possible](most_tokens):
/// each takes some 200 bytes of memory while the windows are made. With the default windows that is 2.5 MB of ASCII.
/// The limit is for questions that nearly fill a window: each window then advances by a few tokens, and the windows of
/// a long context would take all memory.
const MOST_WINDOW_TOKENS: usize = 1 << 22;
/// Most tokens of candidate answers, `top_k` of each window: each is a text that is kept and compared.
const MOST_ANSWER_TOKENS: usize = 1 << 24;
/// Special tokens around and between a question and its context, at most.
const SPECIAL_TOKENS: usize = 4;

/// The greatest possible number of windows.
async fn windows(
    engine: &dyn Infer,
    question: &str,
    context_tokens: usize,
    max_len: usize,
    stride: usize,
) -> Result<usize, EngineError> {
    let texts = vec![Texts::One(question.to_owned())];
    let extent = Extent::Whole(SpecialTokens::Without);
    let tokenized = engine.tokenize(TokenizeRequest::new(texts, extent)).await?;
    let taken: usize = tokenized.iter().flat_map(|it| &it.encodings).map(Encoding::len).sum();
    let step = max_len.saturating_sub(taken + SPECIAL_TOKENS + stride).max(1);
    Ok(context_tokens.div_ceil(step))
}

/// The greatest possible number of tokens of a text, without special tokens. A token of ASCII has at least one byte. A
/// tokenizer may first rewrite other letters as several: each of the Unicode normal forms, in either case, writes a
/// letter in at most three times its bytes, except for a few letters that stand for words, which take up to 33 bytes.
fn most_tokens(text: &str) -> usize {
    let of = |letter: char| match letter {
        letter if letter.is_ascii() => 1,
        '\u{2057}' | '\u{2a0c}' | '\u{3200}'..='\u{33ff}' | '\u{fdfa}' | '\u{fdfb}' => 33,
        letter => 3 * letter.len_utf8(),
    };
    text.chars().map(of).sum()
}

/// Refuses requests that would take too long or too much memory, before the windows are built.
fn check_size(windows: usize, max_len: usize, options: &AnswerOptions) -> Result<(), EngineError> {
    if windows.saturating_mul(max_len) > MOST_WINDOW_TOKENS {
        return Err(EngineError::TooManyWindows { windows, max_len, limit: MOST_WINDOW_TOKENS });
    }
    let (top_k, answer_len) = (options.top_k, options.max_answer_len.min(max_len));
    if windows.saturating_mul(top_k).saturating_mul(answer_len) > MOST_ANSWER_TOKENS {
        return Err(EngineError::TooManyAnswers { windows, top_k, answer_len, limit: MOST_ANSWER_TOKENS });
    }
    Ok(())
}

fn found_answer(context: &str, score: f32, bytes: Range<usize>) -> FoundAnswer {
    FoundAnswer { score, text: context.get(bytes.clone()).unwrap_or_default().to_owned(), bytes }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
        time::Duration,
    };

    use super::*;
    use crate::{
        engine::HoldAnswers,
        tasks::fake::{Crowded, run, wait},
    };

    /// Counts values up to a limit.
    #[derive(Debug, Default)]
    struct Counted {
        limit: usize,
        held: AtomicUsize,
        most: AtomicUsize,
    }

    impl HoldAnswers for Counted {
        fn hold(&self, values: usize) -> Result<(), EngineError> {
            let (limit, retry_after) = (self.limit, Duration::ZERO);
            if values > limit {
                return Err(EngineError::NoRoomForAnswer { bytes: values, held: 0, limit, retry_after });
            }
            self.most.fetch_max(self.held.fetch_add(values, SeqCst) + values, SeqCst);
            Ok(())
        }

        fn let_go(&self, values: usize) {
            self.held.fetch_sub(values, SeqCst);
        }
    }

    fn request() -> QuestionRequest {
        QuestionRequest::new("b".to_owned(), "cde".to_owned())
    }

    #[test]
    fn a_question_that_was_begun_waits_for_room() {
        let found = wait(answer_question(&Crowded::new(Task::QuestionAnswering), request()));
        assert_eq!(found.found.len(), 1, "of three windows, two at a time");
    }

    #[test]
    fn windows_count_from_before_they_are_there_until_they_are_answered() {
        // three of at most eight tokens
        let most = 3 * 8 * VALUES_PER_TOKEN;
        let ask = |limit| {
            let counted = Arc::new(Counted { limit, ..Counted::default() });
            let request = QuestionRequest { room: AnswerRoom::of(counted.clone()), ..request() };
            let answered = run(answer_question(&Crowded::new(Task::QuestionAnswering), request))
                .map(|found| found.found.len());
            (answered, counted)
        };
        let (answered, counted) = ask(most);
        assert_eq!(answered, Ok(1));
        assert_eq!((counted.most.load(SeqCst), counted.held.load(SeqCst)), (most, 0));
        assert!(matches!(ask(most - 1).0, Err(EngineError::NoRoomForAnswer { .. })));
    }

    #[test]
    fn a_model_for_something_else_has_no_answers() {
        let refused = run(answer_question(&Crowded::new(Task::MaskedLm), request())).unwrap_err();
        assert_eq!(refused.to_string(), "this model is for masked-lm: it has no answer rows");
    }

    #[test]
    fn a_letter_may_be_several_tokens() {
        // NFKC, the most letters; NFD, of a Hangul syllable; and lower case.
        for (letter, written) in
            [("\u{fdfa}", 33), ("\u{3316}", 18), ("\u{ac01}", 9), ("\u{130}", 3), ("a", 1)]
        {
            assert!(most_tokens(letter) >= written, "{letter}");
        }
        assert_eq!(most_tokens("plain ASCII"), 11);
    }

    #[test]
    fn of_a_window_there_is_left_what_answers_read() {
        let window =
            Encoding { input_ids: vec![1, 2], tokens: vec!["a".into(), "b".into()], ..Encoding::default() };
        let left = kept(window);
        assert_eq!((left.input_ids, left.tokens), (vec![1, 2], Vec::new()));
    }
}
