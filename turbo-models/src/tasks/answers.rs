//! Parts of a context that answer a question.

use std::{cmp::Ordering, collections::HashMap, ops::Range};

use super::{
    TaskError,
    classify::descending,
    scores::{check, softmax},
};
use crate::Encoding;

/// What counts as an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerOptions {
    /// Most answers; more than 1000 counts as 1000.
    pub top_k: usize,
    /// Most tokens of an answer.
    pub max_answer_len: usize,
    /// Whether the context may hold no answer.
    pub null_answer: NullAnswer,
    /// Where answers start and end.
    pub edges: Edges,
}

/// Whether an answer may be that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NullAnswer {
    /// The context is taken to have an answer.
    Forbidden,
    /// No answer is returned beside the others, with a score of its own.
    Allowed,
}

/// Where answers may start and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edges {
    /// At words: an answer that starts or ends inside a word takes the whole word.
    Words,
    /// At tokens.
    Tokens,
}

impl Default for AnswerOptions {
    /// As in the transformers library: one answer of at most 15 tokens.
    fn default() -> Self {
        Self { top_k: 1, max_answer_len: 15, null_answer: NullAnswer::Forbidden, edges: Edges::Words }
    }
}

/// One window over the context, and the model's output for it.
#[derive(Clone, Copy, Debug)]
pub struct AnswerWindow<'a> {
    /// A question and part of the context, from [`TextTokenizer::windows`](crate::TextTokenizer::windows).
    pub encoding: &'a Encoding,
    /// `[seq_len, 2]`: for each token, the logits that an answer starts there and that one ends there.
    pub logits: &'a [f32],
}

/// A part of the context.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Between 0 and 1.
    pub score: f32,
    /// Its bytes in the context, at character boundaries; `0..0` if the context holds no answer.
    pub bytes: Range<usize>,
}

/// Most answers, whatever the caller requests: there are as many spans as tokens times `max_answer_len`.
const MOST_ANSWERS: usize = 1000;

/// First and last token of a possible answer, both inclusive, and its score.
type Span = (usize, usize, f32);

/// The best answers, best first.
///
/// The score of an answer is the product of two probabilities: that an answer starts with its first token, and that an
/// answer ends with its last. Each sums to 1 over the context in a window and the special token in front of everything,
/// which stands for no answer. The best `top_k` spans of each window are considered. Spans of the same text, ignoring
/// case, are one answer, at the place where it was first found, and their scores are added. The score of no answer is
/// the least of all windows.
///
/// Source: the question answering pipeline of the transformers library. Departs from it: added scores stop at 1; no
/// answers of score 0 are made up if there are fewer than `top_k`, or if the context is empty.
///
/// Time O(tokens · `max_answer_len`).
///
/// # Errors
/// [`TaskError::Length`], [`TaskError::NotANumber`].
pub fn answers(
    context: &str,
    windows: &[AnswerWindow<'_>],
    options: &AnswerOptions,
) -> Result<Vec<Answer>, TaskError> {
    let top_k = options.top_k.min(MOST_ANSWERS);
    let mut found: Vec<(f64, Range<usize>)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut null_score: Option<f64> = None;
    for window in windows {
        check(window.logits, 2 * window.encoding.len())?;
        let [starts, ends] = [0, 1].map(|side| probabilities(window, side));
        let null = starts.first().zip(ends.first()).map(|(start, end)| start * end);
        null_score = null_score.into_iter().chain(null).reduce(f64::min);
        for (start, end, score) in best_spans(window.encoding, &starts, &ends, top_k, options.max_answer_len)
        {
            let bytes = bytes(window.encoding, start, end, options.edges);
            let text = context.get(bytes.clone()).unwrap_or_default().to_lowercase();
            let place = *places.entry(text).or_insert(found.len());
            match found.get_mut(place) {
                Some((sum, _)) => *sum += f64::from(score),
                None => found.push((f64::from(score), bytes)),
            }
        }
    }
    if options.null_answer == NullAnswer::Allowed {
        found.extend(null_score.map(|score| (score, 0..0)));
    }
    let mut answers: Vec<Answer> =
        found.into_iter().map(|(score, bytes)| Answer { score: score.min(1.0) as f32, bytes }).collect();
    answers.sort_by(|a, b| descending(a.score, b.score));
    answers.truncate(top_k);
    Ok(answers)
}

/// Whether `token` is part of the context, where answers may lie.
fn in_context(encoding: &Encoding, token: usize) -> bool {
    encoding.sequence_ids[token] == Some(1)
}

/// For each token, the probability that an answer starts (`side` 0) or ends (1) there, over the context and a special
/// first token; 0 for other tokens.
fn probabilities(window: &AnswerWindow<'_>, side: usize) -> Vec<f64> {
    let takes_part =
        |token: usize| token == 0 && window.encoding.special[0] || in_context(window.encoding, token);
    let tokens: Vec<usize> = (0..window.encoding.len()).filter(|token| takes_part(*token)).collect();
    let scores = softmax(tokens.iter().map(|token| window.logits[2 * token + side]));
    let mut probabilities = vec![0.0; window.encoding.len()];
    tokens.into_iter().zip(scores).for_each(|(token, score)| probabilities[token] = score);
    probabilities
}

/// The best `top_k` spans in the context of one window, best first; of equal scores, the first in the text.
fn best_spans(
    encoding: &Encoding,
    starts: &[f64],
    ends: &[f64],
    top_k: usize,
    max_answer_len: usize,
) -> Vec<Span> {
    let order = |a: &Span, b: &Span| -> Ordering { descending(a.2, b.2).then((a.0, a.1).cmp(&(b.0, b.1))) };
    let mut best: Vec<Span> = Vec::new();
    for start in (0..encoding.len()).filter(|token| in_context(encoding, *token)) {
        let last = start.saturating_add(max_answer_len).min(encoding.len());
        for end in (start..last).take_while(|token| in_context(encoding, *token)) {
            let score = (starts[start] * ends[end]) as f32;
            if score > 0.0 {
                best.push((start, end, score));
            }
        }
        // kept short, because there may be as many spans as tokens squared
        if best.len() > 4 * MOST_ANSWERS {
            keep_best(&mut best, top_k, order);
        }
    }
    keep_best(&mut best, top_k, order);
    best.sort_by(order);
    best
}

fn keep_best(spans: &mut Vec<Span>, top_k: usize, order: impl FnMut(&Span, &Span) -> Ordering) {
    if spans.len() > top_k {
        spans.select_nth_unstable_by(top_k, order);
        spans.truncate(top_k);
    }
}

fn bytes(encoding: &Encoding, start: usize, end: usize, edges: Edges) -> Range<usize> {
    let (first, last) = match edges {
        Edges::Tokens => (start, end),
        Edges::Words => {
            let same_word = |a: usize, b: usize| {
                in_context(encoding, b)
                    && encoding.word_ids[a].is_some()
                    && encoding.word_ids[a] == encoding.word_ids[b]
            };
            let first = (0..start).rev().take_while(|token| same_word(start, *token)).last();
            let last = (end + 1..encoding.len()).take_while(|token| same_word(end, *token)).last();
            (first.unwrap_or(start), last.unwrap_or(end))
        }
    };
    let start = encoding.offsets[first].start;
    start..encoding.offsets[last].end.max(start)
}
