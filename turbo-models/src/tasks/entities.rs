//! Parts of a text that have a label: names, places, parts of speech.

use std::ops::Range;

use super::{
    TaskError,
    scores::{check, greatest, softmax},
};
use crate::Encoding;

/// How the labels of tokens become those of words, and of the entities that words form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aggregation {
    /// Not at all: an entity per token, with the label as the model writes it, such as `B-PER`.
    #[default]
    None,
    /// Neighbouring tokens of the same label form an entity; one word may have several.
    Simple,
    /// A word has the label of its first token; neighbouring words of the same label form an entity.
    First,
    /// A word has the label with the greatest mean score over its tokens.
    Average,
    /// A word has the label of its most certain token.
    Max,
}

/// A part of a text with its label.
#[derive(Clone, Debug, PartialEq)]
pub struct Entity<'l> {
    /// Its label, without `B-` and `I-` unless it stands for a single token ([`Aggregation::None`]).
    pub label: &'l str,
    /// Between 0 and 1: the mean of its words' scores.
    pub score: f32,
    /// Its bytes in the text, at character boundaries.
    pub bytes: Range<usize>,
    /// Its tokens.
    pub tokens: Range<usize>,
}

/// A token or a word, before words become entities.
struct Tagged<'l> {
    label: &'l str,
    score: f64,
    bytes: Range<usize>,
    tokens: Range<usize>,
}

/// The entities of a text, in text order.
///
/// * `encoding`: the input of the model; of a pair, only the first text is searched.
/// * `logits`: `[seq_len, labels]`.
/// * `labels`: the model's labels, in the order of the logits. An entity extends over neighbours of the same label, and
///   ends before one whose label begins with `B-`; other labels count as if they began with `I-`.
/// * `ignored`: labels that are left out, usually `O`, as [`Entity::label`] writes them.
///
/// Source: the token classification pipeline of the transformers library. Departs from it where normalisation changes
/// the length of a word, see [`Encoding::continues_word`].
///
/// # Errors
/// [`TaskError::Length`], [`TaskError::NotANumber`].
pub fn entities<'l>(
    encoding: &Encoding,
    logits: &[f32],
    labels: &'l [String],
    aggregation: Aggregation,
    ignored: &[&str],
) -> Result<Vec<Entity<'l>>, TaskError> {
    check(logits, encoding.len() * labels.len())?;
    let in_text = (0..encoding.len()).filter(|token| encoding.sequence_ids[*token] == Some(0));
    let words = match aggregation {
        Aggregation::None | Aggregation::Simple => in_text.map(|token| token..token + 1).collect(),
        _ => words(encoding, in_text),
    };
    let scores = |token: usize| softmax(logits[token * labels.len()..][..labels.len()].iter().copied());
    let tagged = words.into_iter().filter_map(|tokens| {
        let (label, score) = label_of(tokens.clone().map(scores).collect(), aggregation)?;
        Some(Tagged { label: &labels[label], score, bytes: bytes(encoding, &tokens), tokens })
    });
    let entities = match aggregation {
        Aggregation::None => tagged
            .map(|one| Entity {
                label: one.label,
                score: one.score as f32,
                bytes: one.bytes,
                tokens: one.tokens,
            })
            .collect(),
        _ => grouped(tagged.collect()),
    };
    let ignored = |entity: &Entity<'_>| ignored.contains(&entity.label);
    Ok(entities.into_iter().filter(|entity| !ignored(entity)).collect())
}

/// Groups the tokens that belong to one word, in order.
fn words(encoding: &Encoding, tokens: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut words: Vec<Range<usize>> = Vec::new();
    for token in tokens {
        match words.last_mut() {
            Some(word) if encoding.continues_word[token] && word.end == token => word.end += 1,
            _ => words.push(token..token + 1),
        }
    }
    words
}

/// The label of a word whose tokens have these `scores`; `None` if there are no labels.
fn label_of(mut scores: Vec<Vec<f64>>, aggregation: Aggregation) -> Option<(usize, f64)> {
    match aggregation {
        Aggregation::None | Aggregation::Simple | Aggregation::First => greatest(&scores[0]),
        Aggregation::Average => {
            let count = scores.len() as f64;
            let mut mean = scores.swap_remove(0);
            for token in scores {
                mean.iter_mut().zip(token).for_each(|(sum, score)| *sum += score);
            }
            mean.iter_mut().for_each(|score| *score /= count);
            greatest(&mean)
        }
        Aggregation::Max => {
            let surest: Option<Vec<(usize, f64)>> = scores.iter().map(|token| greatest(token)).collect();
            let surest = surest?;
            let sureness: Vec<f64> = surest.iter().map(|(_, score)| *score).collect();
            greatest(&sureness).map(|(token, _)| surest[token])
        }
    }
}

fn bytes(encoding: &Encoding, tokens: &Range<usize>) -> Range<usize> {
    let start = encoding.offsets[tokens.start].start;
    start..encoding.offsets[tokens.end - 1].end.max(start)
}

/// Merges neighbours of the same label.
fn grouped(tagged: Vec<Tagged<'_>>) -> Vec<Entity<'_>> {
    let goes_on = |before: &Tagged<'_>, next: &Tagged<'_>| {
        !next.label.starts_with("B-") && bare(before.label) == bare(next.label)
    };
    let groups = tagged.chunk_by(goes_on);
    groups
        .map(|group| {
            let (first, last) = (&group[0], &group[group.len() - 1]);
            Entity {
                label: first.label.split_once('-').map_or(first.label, |(_, label)| label),
                score: (group.iter().map(|one| one.score).sum::<f64>() / group.len() as f64) as f32,
                bytes: first.bytes.start..last.bytes.end.max(first.bytes.start),
                tokens: first.tokens.start..last.tokens.end,
            }
        })
        .collect()
}

/// A label without the prefix that says whether it begins or continues an entity.
fn bare(label: &str) -> &str {
    label.strip_prefix("B-").or(label.strip_prefix("I-")).unwrap_or(label)
}
