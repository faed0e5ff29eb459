//! Which regimes of a figure are measured: `--only`.

/// A selection of regimes by words. Each word is of some kind: the model of a regime, say, or its name. For each kind
/// that occurs, a regime must match one of its words. No words select all regimes.
#[derive(Clone, Debug)]
pub struct Selection<const KINDS: usize> {
    /// The words of each kind.
    wanted: [Vec<String>; KINDS],
}

impl<const KINDS: usize> Selection<KINDS> {
    /// Checks `words` against those of all regimes.
    ///
    /// # Errors
    /// When a word matches no regime; the error lists the words there are.
    pub fn new<'a>(
        words: Vec<String>,
        all: impl IntoIterator<Item = [&'a str; KINDS]>,
    ) -> Result<Self, String> {
        let mut known: Vec<(usize, &str)> = Vec::new();
        for named in all.into_iter().flat_map(|words| words.into_iter().enumerate()) {
            if !known.contains(&named) {
                known.push(named);
            }
        }
        let mut wanted: [Vec<String>; KINDS] = std::array::from_fn(|_| Vec::new());
        for word in words {
            let Some((kind, _)) = known.iter().find(|(_, name)| *name == word) else {
                let names: Vec<&str> = known.iter().map(|(_, name)| *name).collect();
                return Err(format!("{word}: expected one of {}", names.join(", ")));
            };
            wanted[*kind].push(word);
        }
        Ok(Self { wanted })
    }

    /// Whether a regime with these words is selected.
    #[must_use]
    pub fn takes(&self, words: [&str; KINDS]) -> bool {
        let fits =
            |(wanted, word): (&Vec<String>, &str)| wanted.is_empty() || wanted.iter().any(|it| it == word);
        self.wanted.iter().zip(words).all(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [[&str; 2]; 3] = [["minilm", "short"], ["minilm", "long"], ["bert-base", "long"]];

    #[test]
    fn words_of_one_kind_widen_and_of_several_narrow() {
        let count = |words: &[&str]| {
            let words = words.iter().map(|&word| word.to_owned()).collect();
            let selection = Selection::new(words, ALL).unwrap();
            ALL.iter().filter(|&&words| selection.takes(words)).count()
        };
        assert_eq!(count(&[]), 3);
        assert_eq!([count(&["minilm"]), count(&["long"]), count(&["minilm", "long"])], [2, 2, 1]);
        assert_eq!([count(&["short", "long"]), count(&["short", "bert-base"])], [3, 0]);
        let error = Selection::new(vec!["lang".into()], ALL).unwrap_err();
        assert_eq!(error, "lang: expected one of minilm, short, long, bert-base");
    }
}
