//! A TOML file as its reader meets it: section by section, key by key, with the line of everything that is wrong.
//!
//! Nothing ends at the first mistake: what can be read is read, and [`Report`] has all that was found. A key that is
//! not asked for is a mistake, too.

use std::{cell::RefCell, collections::BTreeMap, fmt, ops::Range};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// What is wrong with a file.
pub(super) struct Report<'a> {
    file: &'a str,
    text: &'a str,
    found: RefCell<BTreeMap<(usize, usize), String>>,
}

impl<'a> Report<'a> {
    /// Nothing, so far.
    pub(super) fn new(file: &'a str, text: &'a str) -> Self {
        Self { file, text, found: RefCell::default() }
    }

    /// Adds what is wrong at a place, in bytes.
    pub(super) fn add(&self, at: usize, what: impl fmt::Display) {
        let before = self.text.as_bytes().get(..at).unwrap_or(self.text.as_bytes());
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        let mut found = self.found.borrow_mut();
        let nth = found.len();
        found.insert((line, nth), format!("{}:{line}: {what}", self.file));
    }

    /// All of it, a line for each, in the order of the file; `None` where there is nothing.
    pub(super) fn into_lines(self) -> Option<Vec<String>> {
        let found = self.found.into_inner();
        (!found.is_empty()).then(|| found.into_values().collect())
    }

    /// The file's outermost section; `None` where it is not TOML.
    pub(super) fn read(&'a self) -> Option<Section<'a>> {
        match DeTable::parse(self.text) {
            Ok(table) => Some(Section::new(self, String::new(), 0, table.into_inner())),
            Err(error) => {
                self.add(error.span().map_or(0, |span| span.start), error.message());
                None
            }
        }
    }
}

/// A table, of which every key is taken once.
pub(super) struct Section<'a> {
    report: &'a Report<'a>,
    /// As it is written in its brackets; empty for the outermost.
    name: String,
    places: Places,
    left: BTreeMap<String, (usize, Spanned<DeValue<'a>>)>,
    /// Keys that were asked for.
    known: Vec<String>,
}

/// Where the keys of a section stand.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    section: usize,
    keys: BTreeMap<String, usize>,
}

impl Places {
    /// Where a key stands; where the section does if it has no such key.
    pub(super) fn of(&self, key: &str) -> usize {
        self.keys.get(key).copied().unwrap_or(self.section)
    }
}

/// A value, and where it stands.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) at: usize,
    pub(super) value: T,
}

impl<'a> Section<'a> {
    fn new(report: &'a Report<'a>, name: String, at: usize, table: DeTable<'a>) -> Self {
        let entry = |(key, value): (Spanned<_>, _)| {
            let Range { start, .. } = key.span();
            (String::from(key.into_inner()), (start, value))
        };
        let left: BTreeMap<_, _> = table.into_iter().map(entry).collect();
        let keys = left.iter().map(|(key, (at, _))| (key.clone(), *at)).collect();
        Self { report, name, places: Places { section: at, keys }, left, known: Vec::new() }
    }

    /// Where it begins.
    pub(super) fn at(&self) -> usize {
        self.places.section
    }

    /// Where its keys stand, those included that were taken.
    pub(super) fn places(&self) -> Places {
        self.places.clone()
    }

    /// Says what is wrong with it.
    pub(super) fn problem(&self, at: usize, what: impl fmt::Display) {
        self.report.add(at, what);
    }

    /// The value of `key`, whatever it is; its place is that of the key.
    pub(super) fn take(&mut self, key: &str) -> Option<At<DeValue<'a>>> {
        self.known.push(key.to_owned());
        let (at, value) = self.left.remove(key)?;
        Some(At { at, value: value.into_inner() })
    }

    /// The text of `key`, which must not be empty.
    pub(super) fn string(&mut self, key: &str) -> Option<At<String>> {
        let At { at, value } = self.take(key)?;
        match value {
            DeValue::String(text) if !text.is_empty() => Some(At { at, value: text.into() }),
            other => {
                self.wrong_type(at, key, "a string that is not empty", &other);
                None
            }
        }
    }

    /// The text of a key that has to be there.
    pub(super) fn required(&mut self, key: &str) -> Option<At<String>> {
        self.miss(key);
        self.string(key)
    }

    /// Says that a key is missing, if it is.
    fn miss(&self, key: &str) {
        if !self.left.contains_key(key) {
            self.problem(self.at(), format_args!("{}: `{key}` is missing", self.name));
        }
    }

    /// The number of `key`, 0 or more.
    pub(super) fn count(&mut self, key: &str) -> Option<At<usize>> {
        let At { at, value } = self.take(key)?;
        let count = match &value {
            DeValue::Integer(number) => usize::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        if count.is_none() {
            self.wrong_type(at, key, "a whole number", &value);
        }
        count.map(|value| At { at, value })
    }

    /// The number of a key that has to be there.
    pub(super) fn required_count(&mut self, key: &str) -> Option<At<usize>> {
        self.miss(key);
        self.count(key)
    }

    /// The number of `key`, with a fraction or not.
    pub(super) fn float(&mut self, key: &str) -> Option<At<f64>> {
        let At { at, value } = self.take(key)?;
        let number = match &value {
            DeValue::Float(number) => number.as_str().parse().ok(),
            DeValue::Integer(number) => {
                i64::from_str_radix(number.as_str(), number.radix()).ok().map(|number| number as f64)
            }
            _ => None,
        };
        if number.is_none() {
            self.wrong_type(at, key, "a number", &value);
        }
        number.map(|value| At { at, value })
    }

    /// A section of texts, by their names, or a list of texts that are their own names; it has to be there.
    pub(super) fn texts(&mut self, key: &str) -> Option<Vec<(String, String)>> {
        self.miss(key);
        let At { at, value } = self.take(key)?;
        let text = |value: &Spanned<DeValue<'_>>| value.get_ref().as_str().map(str::to_owned);
        let texts: Option<Vec<_>> = match &value {
            DeValue::Table(table) => {
                table.iter().map(|(name, value)| Some((name.get_ref().to_string(), text(value)?))).collect()
            }
            DeValue::Array(list) => list.iter().map(|value| Some((text(value)?, text(value)?))).collect(),
            _ => None,
        };
        if texts.is_none() {
            self.wrong_type(at, key, "a list of strings, or a section of strings", &value);
        }
        texts
    }

    /// The texts of a list.
    pub(super) fn strings(&mut self, key: &str) -> Vec<At<String>> {
        let Some(At { at, value }) = self.take(key) else { return Vec::new() };
        let DeValue::Array(list) = value else {
            self.wrong_type(at, key, "a list of strings", &value);
            return Vec::new();
        };
        let mut texts = Vec::new();
        for item in list {
            let at = item.span().start;
            match item.into_inner() {
                DeValue::String(text) if !text.is_empty() => texts.push(At { at, value: text.into() }),
                other => self.wrong_type(at, key, "strings that are not empty", &other),
            }
        }
        texts
    }

    /// The section `[key]`.
    pub(super) fn section(&mut self, key: &str) -> Option<Section<'a>> {
        let At { at, value } = self.take(key)?;
        match value {
            DeValue::Table(table) => Some(self.below(key, at, table)),
            other => {
                self.wrong_type(at, key, &format!("a section `[{key}]`"), &other);
                None
            }
        }
    }

    /// The sections `[[key]]`, one for each.
    pub(super) fn sections(&mut self, key: &str) -> Vec<Section<'a>> {
        let Some(At { at, value }) = self.take(key) else { return Vec::new() };
        match value {
            DeValue::Array(list) => self.tables(key, list),
            other => {
                self.wrong_type(at, key, &format!("sections `[[{key}]]`"), &other);
                Vec::new()
            }
        }
    }

    /// The tables of a list.
    pub(super) fn tables(&self, key: &str, list: toml::de::DeArray<'a>) -> Vec<Section<'a>> {
        let mut sections = Vec::new();
        for item in list {
            let at = item.span().start;
            match item.into_inner() {
                DeValue::Table(table) => sections.push(self.below(key, at, table)),
                other => self.wrong_type(at, key, &format!("sections `[[{key}]]`"), &other),
            }
        }
        sections
    }

    fn below(&self, key: &str, at: usize, table: DeTable<'a>) -> Section<'a> {
        let name = if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) };
        Section::new(self.report, name, at, table)
    }

    /// Says that the value of a key is of another type.
    pub(super) fn wrong_type(&self, at: usize, key: &str, expected: &str, got: &DeValue<'_>) {
        let got = match got {
            DeValue::String(text) => format!("\"{text}\""),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            DeValue::Boolean(value) => value.to_string(),
            DeValue::Datetime(time) => time.to_string(),
            DeValue::Array(list) if list.is_empty() => "an empty list".to_owned(),
            DeValue::Array(_) => "a list".to_owned(),
            DeValue::Table(_) => "a section".to_owned(),
        };
        self.problem(at, format_args!("{key}: expected {expected}, got {got}"));
    }

    /// Reports all keys that were not asked for as unknown; `hint` may add more about one.
    pub(super) fn done(self, hint: impl Fn(&str) -> Option<String>) {
        for (key, (at, _)) in &self.left {
            let place =
                if self.name.is_empty() { "at the top".to_owned() } else { format!("in {}", self.name) };
            let more = hint(key).or_else(|| Some(format!("did you mean `{}`?", nearest(key, &self.known)?)));
            let more = more.unwrap_or_else(|| format!("expected one of {}", self.known.join(", ")));
            self.problem(*at, format_args!("{key}: unknown key {place}: {more}"));
        }
    }
}

/// The known name that differs from `name` by few letters.
pub(super) fn nearest<'n>(name: &str, known: &'n [impl AsRef<str>]) -> Option<&'n str> {
    let known = known.iter().map(AsRef::as_ref);
    let distance = |known: &&'n str| strsim::damerau_levenshtein(name, known);
    let nearest = known.min_by_key(distance)?;
    (distance(&nearest) <= 1 + nearest.len() / 4).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str, read: impl FnOnce(&mut Section<'_>)) -> Vec<String> {
        let report = Report::new("x.toml", text);
        if let Some(mut section) = report.read() {
            read(&mut section);
            section.done(|_| None);
        }
        report.into_lines().unwrap_or_default()
    }

    #[test]
    fn everything_wrong_is_told_with_its_line() {
        let text = "first = 1\n\n[[list]]\nsecond = ''\n[[list]]\nsecnod = 'a'\nlast = [1, 'b']\n";
        let mut read = Vec::new();
        let problems = problems(text, |top| {
            assert!(top.string("first").is_none());
            for mut section in top.sections("list") {
                assert!(section.required("second").is_none());
                read.extend(section.strings("last").into_iter().map(|text| text.value));
                section.done(|_| None);
            }
        });
        assert_eq!(read, ["b"], "what can be read is read");
        let expected = [
            "x.toml:1: first: expected a string that is not empty, got 1",
            "x.toml:4: second: expected a string that is not empty, got \"\"",
            "x.toml:5: list: `second` is missing",
            "x.toml:6: secnod: unknown key in list: did you mean `second`?",
            "x.toml:7: last: expected strings that are not empty, got 1",
        ];
        assert_eq!(problems, expected);
    }

    #[test]
    fn numbers_are_read_in_the_base_they_are_written_in() {
        let told = problems("hex = 0x10\ncount = 0x10\nnegative = -1_0\nfraction = 2.5\n", |top| {
            assert_eq!(top.count("count").map(|number| number.value), Some(16));
            for (key, expected) in [("hex", 16.0), ("negative", -10.0), ("fraction", 2.5)] {
                assert_eq!(top.float(key).map(|number| number.value), Some(expected), "{key}");
            }
        });
        assert_eq!(told, [""; 0]);
    }

    #[test]
    fn what_is_not_toml_is_told_with_its_line() {
        let told = problems("a = 1\na = 2\n", |_| ());
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("x.toml:2: duplicate key"), "{told:?}");
    }

    #[test]
    fn a_name_is_near_by_few_letters() {
        let known = ["dtype", "layout", "max_batch_tokens"];
        for (name, expected) in [
            ("dtpye", Some("dtype")),
            ("max_batch_token", Some("max_batch_tokens")),
            ("max-batch-tokens", Some("max_batch_tokens")),
            ("colour", None),
        ] {
            assert_eq!(nearest(name, &known), expected);
        }
    }
}
