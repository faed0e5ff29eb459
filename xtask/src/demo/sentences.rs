//! A dozen sentences: six pairs of paraphrases.

use super::similarity::Similarities;

/// A sentence and its short name in the table.
pub(super) struct Sentence {
    pub(super) label: &'static str,
    pub(super) text: &'static str,
}

const fn sentence(label: &'static str, text: &'static str) -> Sentence {
    Sentence { label, text }
}

/// Sentences `2i` and `2i + 1` are paraphrases. Their lengths differ, so that batches are ragged.
pub(super) const SENTENCES: [Sentence; 12] = [
    sentence("fox", "The quick brown fox jumps over the lazy dog."),
    sentence("hound", "A fast auburn fox leaps across a sleepy hound."),
    sentence("password", "How do I reset my password?"),
    sentence(
        "locked out",
        "I forgot the password for my account and need a new one before the meeting this afternoon.",
    ),
    sentence("rain", "It will rain tomorrow."),
    sentence("umbrella", "The forecast promises showers for the next day, so bring an umbrella."),
    sentence(
        "rates",
        "The central bank raised interest rates by a quarter of a percentage point to slow inflation.",
    ),
    sentence("borrowing", "Borrowing became more expensive after the bank's decision."),
    sentence("bread", "Knead the dough for ten minutes and let it rise."),
    sentence(
        "baking",
        "Good bread takes time: work flour, water and yeast together, then leave the dough to grow.",
    ),
    sentence("guitar", "She plays the guitar."),
    sentence("musician", "The woman is a musician who performs songs on her acoustic guitar in small cafés."),
];

/// The sentences with their numbers in the table.
pub(super) fn listed() -> String {
    let line = |(i, s): (usize, &Sentence)| format!("{:>3}  {}\n", i + 1, s.text);
    SENTENCES.iter().enumerate().map(line).collect()
}

/// How many sentences are nearest to their paraphrase.
pub(super) fn partners_found(similarities: &Similarities) -> usize {
    (0..SENTENCES.len()).filter(|&i| similarities.nearest(i) == Some(i ^ 1)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_are_counted() {
        let axis = |pair: usize| (0..6).map(|i| if i == pair { 1.0 } else { 0.0 }).collect::<Vec<f32>>();
        let mut vectors: Vec<Vec<f32>> = (0..12).map(|i| axis(i / 2)).collect();
        assert_eq!(partners_found(&Similarities::of(&vectors).unwrap()), 12);
        vectors.swap(0, 2);
        // now 1 and 4 are near, and 2 and 3
        assert_eq!(partners_found(&Similarities::of(&vectors).unwrap()), 8);
    }
}
