//! Keys that are flags: what `--max-batch-tokens` is on a command line is `max_batch_tokens` in a file, with the same
//! values. So a flag is a key from the day it is made, and both are checked by the same code.

use std::{
    any::TypeId,
    ffi::OsString,
    num::{NonZeroU64, NonZeroUsize},
    path::{Path, PathBuf},
};

use clap::{
    Arg, ArgAction, ArgMatches, Command, FromArgMatches,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};
use toml::de::DeValue;

use super::document::{At, Section};
use crate::cli::{caches::CacheArgument, serve::Arguments};

/// Flags that say something of one model. All others are the server's.
pub(super) const OF_A_MODEL: [&str; 17] = [
    "model_id",
    "revision",
    "dtype",
    "pooling",
    "default_prompt_name",
    "default_prompt",
    "dense_path",
    "auto_truncate",
    "tokenization_workers",
    "batching",
    "dispatch",
    "slo_ms",
    "layout",
    "max_batch_tokens",
    "max_batch_requests",
    "max_concurrent_requests",
    "max_client_batch_size",
];

/// Flags that are no keys; nor are those that the help hides. (Models of a file have names there.)
const NO_KEYS: [&str; 3] = ["config", "help", "served_model_name"];

/// The flags of `turbo serve`.
pub(super) struct Flags {
    serve: Command,
    /// The same, whatever variables are set.
    bare: Command,
}

/// What a command line says beside a file.
pub(super) struct Beside<'a> {
    pub(super) matches: &'a ArgMatches,
    /// Its words behind `serve`.
    pub(super) words: Vec<OsString>,
}

impl Beside<'_> {
    /// Whether it, or a variable, says anything of this flag. Compose files set variables to nothing.
    fn says(&self, name: &str) -> bool {
        match self.matches.value_source(name) {
            Some(ValueSource::CommandLine) => true,
            Some(ValueSource::EnvVariable) => {
                self.matches.get_raw(name).is_some_and(|mut values| values.any(|value| !value.is_empty()))
            }
            _ => false,
        }
    }

    /// This flag as it was written.
    pub(super) fn written(&self, name: &str) -> String {
        match self.matches.value_source(name) {
            Some(ValueSource::EnvVariable) => format!("the variable {}", name.to_uppercase()),
            _ => format!("--{}", name.replace('_', "-")),
        }
    }

    /// The first flag of a model that is said, and the key that it is in a file: such flags would be of every model, or
    /// of none.
    pub(super) fn of_a_model(&self) -> Option<(&'static str, &'static str)> {
        let mut keys = OF_A_MODEL.into_iter().map(|name| (name, name)).chain([("served_model_name", "name")]);
        keys.find(|(name, _)| self.says(name))
    }
}

impl Flags {
    /// Those of this command.
    pub(super) fn of(serve: &Command) -> Self {
        let bare = serve.clone().no_binary_name(true);
        Self { serve: bare.clone(), bare: bare.mut_args(|argument| argument.env(None::<&str>)) }
    }

    /// Names of the server's keys.
    pub(super) fn of_the_server(&self) -> impl Iterator<Item = &str> {
        let shown = self.serve.get_arguments().filter(|argument| !argument.is_hide_set());
        let names = shown.map(|argument| argument.get_id().as_str());
        names.filter(|name| !OF_A_MODEL.contains(name) && !NO_KEYS.contains(name))
    }

    /// Takes the keys of the server, as words of a command line but for those that `beside` says itself. Paths are
    /// relative to `base`.
    pub(super) fn take_server(
        &self,
        section: &mut Section<'_>,
        base: &Path,
        beside: Option<&Beside<'_>>,
    ) -> Vec<OsString> {
        let mut words = Vec::new();
        for name in self.of_the_server() {
            let taken = self.take(section, name, Some(base));
            if !beside.is_some_and(|beside| beside.says(name)) {
                words.extend(taken);
            }
        }
        words
    }

    /// Takes the keys of a model, but for the one that says where it is, as words of a command line.
    pub(super) fn take_model(&self, section: &mut Section<'_>) -> Vec<OsString> {
        let names = OF_A_MODEL.into_iter().filter(|&name| name != "model_id");
        names.flat_map(|name| self.take(section, name, None)).collect()
    }

    /// Takes one key, as the words that it is; none where it is not there or wrong, which is told.
    fn take(&self, section: &mut Section<'_>, name: &str, base: Option<&Path>) -> Vec<OsString> {
        let Some(At { at, value }) = section.take(name) else { return Vec::new() };
        let flag = self.flag(name);
        let words = match flag.words(&value, base) {
            Ok(words) => words,
            Err(expected) => {
                section.wrong_type(at, name, expected, &value);
                return Vec::new();
            }
        };
        if let Some(what) = words.iter().find_map(|word| self.refusal(&flag, word)) {
            section.problem(at, format_args!("{name}: {what}"));
            return Vec::new();
        }
        words
    }

    fn flag(&self, name: &str) -> Flag<'_> {
        let argument = self.bare.get_arguments().find(|argument| argument.get_id() == name);
        Flag(argument.expect("every key is a flag: a test looks"))
    }

    /// What the flag's own parser says to this word.
    fn refusal(&self, flag: &Flag<'_>, word: &OsString) -> Option<String> {
        let words = [OsString::from("--model-id=x"), word.clone()];
        let error = self.bare.clone().try_get_matches_from(words).err()?;
        let text = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.as_str()),
            _ => None,
        };
        // Others are missed here, or beside this one: that is told when all flags of a model are together.
        text(ContextKind::InvalidArg)?.split_whitespace().next().filter(|&of| of == flag.written())?;
        let got = text(ContextKind::InvalidValue).unwrap_or_default();
        match (error.kind(), error.get(ContextKind::ValidValue), std::error::Error::source(&error)) {
            (ErrorKind::InvalidValue, Some(ContextValue::Strings(values)), _) if !values.is_empty() => {
                Some(format!("expected one of {}, got \"{got}\"", values.join(", ")))
            }
            (ErrorKind::InvalidValue, ..) => Some(format!("expected a value, got \"{got}\"")),
            (ErrorKind::ValueValidation, _, Some(why)) => Some(format!("{got} cannot be used: {why}")),
            _ => None,
        }
    }

    /// The command line of these words.
    ///
    /// # Errors
    /// What is wrong with them together, in one line.
    pub(super) fn parse(
        &self,
        words: Vec<OsString>,
        beside: Option<&Beside<'_>>,
    ) -> Result<Arguments, String> {
        let command = if beside.is_some() { &self.serve } else { &self.bare };
        let words = words.into_iter().chain(beside.map(|beside| beside.words.clone()).into_iter().flatten());
        let parsed = command.clone().try_get_matches_from(words);
        parsed.and_then(|matches| Arguments::from_arg_matches(&matches)).map_err(|error| {
            let text = error.to_string();
            // Names that belong to the first line stand each in a line of its own; then come usage and hints.
            let lines: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
            lines.join(" ").trim_start_matches("error: ").to_owned()
        })
    }
}

/// One flag.
struct Flag<'a>(&'a Arg);

impl Flag<'_> {
    fn written(&self) -> String {
        format!("--{}", self.0.get_long().unwrap_or_default())
    }

    fn is<T: 'static>(&self) -> bool {
        self.0.get_value_parser().type_id() == TypeId::of::<T>()
    }

    fn is_a_number(&self) -> bool {
        self.is::<u16>()
            || self.is::<u32>()
            || self.is::<u64>()
            || self.is::<usize>()
            || self.is::<NonZeroU64>()
            || self.is::<NonZeroUsize>()
    }

    /// `value` as words, or which type it should have.
    fn words(&self, value: &DeValue<'_>, base: Option<&Path>) -> Result<Vec<OsString>, &'static str> {
        let with = |value: &str| OsString::from(format!("{}={value}", self.written()));
        let text = |text: &str| match base {
            Some(base) if self.is_a_path(text) => with(&base.join(text).to_string_lossy()),
            _ => with(text),
        };
        let bool = self.is::<bool>();
        match (self.0.get_action(), value) {
            (ArgAction::SetTrue, DeValue::Boolean(on)) => {
                Ok(on.then(|| self.written().into()).into_iter().collect())
            }
            (_, DeValue::Boolean(value)) if bool => Ok(vec![with(&value.to_string())]),
            _ if bool => Err("true or false"),
            (_, DeValue::Integer(value)) if !self.is::<String>() && !self.is::<PathBuf>() => {
                let decimal = i64::from_str_radix(value.as_str(), value.radix());
                Ok(vec![with(&decimal.map_err(|_| "a number of 64 bits")?.to_string())])
            }
            _ if self.is_a_number() => Err("a whole number"),
            // An empty list would be as a missing key, which may mean every client.
            (ArgAction::Append, DeValue::Array(list)) if list.is_empty() => {
                Err("a list of strings that is not empty")
            }
            (ArgAction::Append, DeValue::Array(list)) => {
                let words = list.iter().map(|item| item.get_ref().as_str().map(text));
                words.collect::<Option<_>>().ok_or("a list of strings")
            }
            (_, DeValue::String(value)) if value.is_empty() && self.is_a_path("") => {
                Err("a path that is not empty")
            }
            (_, DeValue::String(value)) => Ok(vec![text(value)]),
            _ => Err("a string"),
        }
    }

    /// Whether this value of it names a file or a folder.
    fn is_a_path(&self, value: &str) -> bool {
        self.is::<PathBuf>() || self.is::<CacheArgument>() && value.parse() != Ok(CacheArgument::Off)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::config::document::Report;

    /// What a section becomes, and what is wrong with it.
    fn taken(text: &str, of_the_server: bool) -> Result<Vec<String>, Vec<String>> {
        let flags = Flags::of(&crate::cli::serve_command());
        let report = Report::new("x.toml", text);
        let mut section = report.read().unwrap();
        let words = match of_the_server {
            true => flags.take_server(&mut section, Path::new("/base"), None),
            false => flags.take_model(&mut section),
        };
        section.done(|_| None);
        match report.into_lines() {
            Some(lines) => Err(lines),
            None => Ok(words.into_iter().map(|word| word.into_string().unwrap()).collect()),
        }
    }

    #[test]
    fn keys_are_flags_with_the_same_values() {
        let model = "dtype = 'bf16'\nauto_truncate = false\nmax_batch_tokens = 0x40\ndense_path = '2_Dense'";
        let expected =
            ["--dtype=bf16", "--dense-path=2_Dense", "--auto-truncate=false", "--max-batch-tokens=64"];
        assert_eq!(taken(model, false).unwrap(), expected);
        let server =
            "json_output = true\nport = 0\npacked_cache = 'packed'\ncost_cache = 'off'\nhf_token = '1'";
        let mut words = taken(server, true).unwrap();
        words.sort();
        let expected =
            ["--cost-cache=off", "--hf-token=1", "--json-output", "--packed-cache=/base/packed", "--port=0"];
        assert_eq!(words, expected);
        assert_eq!(taken("json_output = false", true).unwrap(), [""; 0]);
        let bytes =
            "payload_limit = 3_000\nmax_body_bytes_in_flight = '64MiB'\nmax_answer_bytes_in_flight = '1GB'";
        let expected =
            ["--payload-limit=3000", "--max-body-bytes-in-flight=64MiB", "--max-answer-bytes-in-flight=1GB"];
        assert_eq!(taken(bytes, true).unwrap(), expected);
    }

    #[test]
    fn values_that_the_flag_refuses_are_refused() {
        for (text, of_the_server, expected) in [
            ("dtype = 'f33'", false, "dtype: expected one of f32, bf16, float16, int8, got \"f33\""),
            ("max_batch_tokens = 'many'", false, "max_batch_tokens: expected a whole number, got \"many\""),
            (
                "max_batch_tokens = -1",
                false,
                "max_batch_tokens: -1 cannot be used: expected a whole number above 0",
            ),
            (
                "slo_ms = 0",
                false,
                "slo_ms: 0 cannot be used: expected whole milliseconds, at least 1; leave it out",
            ),
            (
                "payload_limit = '2 megs'",
                true,
                "payload_limit: 2 megs cannot be used: expected a number of bytes, such as",
            ),
            ("threads = 0", true, "threads: 0 cannot be used: expected a whole number above 0"),
            ("threads = 99999", true, "threads: 99999 cannot be used: expected at most 4096"),
            ("auto_truncate = 'no'", false, "auto_truncate: expected true or false, got \"no\""),
            ("pooling = 1", false, "pooling: expected one of cls, mean, last-token, max, splade, got \"1\""),
            ("default_prompt = 1", false, "default_prompt: expected a string, got 1"),
            ("port = 70000", true, "port: 70000 cannot be used: expected a whole number up to 65535"),
            ("json_output = 1", true, "json_output: expected true or false, got 1"),
            ("device = 'gpu'", true, "device: gpu cannot be used: expected auto, cpu"),
            ("packed_cache = ''", true, "packed_cache: expected a path that is not empty, got \"\""),
            ("uds_path = ''", true, "uds_path: expected a path that is not empty, got \"\""),
            ("dense_path = ''", false, "dense_path: expected a path that is not empty, got \"\""),
            (
                "cors_allow_origin = []",
                true,
                "cors_allow_origin: expected a list of strings that is not empty, got an empty list",
            ),
            ("prot = 1", true, "prot: unknown key at the top: did you mean `port`?"),
        ] {
            let problems = taken(text, of_the_server).unwrap_err();
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].starts_with(&format!("x.toml:1: {expected}")), "{problems:?}");
        }
    }

    #[test]
    fn what_is_wrong_with_flags_together_is_one_line() {
        let flags = Flags::of(&crate::cli::serve_command());
        let told = flags.parse(Vec::new(), None).err();
        let expected = "the following required arguments were not provided: --model-id <PATH|NAME>";
        assert_eq!(told.as_deref(), Some(expected));
    }

    #[test]
    fn every_key_of_a_model_is_a_flag() {
        let serve = crate::cli::serve_command();
        let flags: Vec<_> = serve.get_arguments().map(|argument| argument.get_id().as_str()).collect();
        for key in OF_A_MODEL {
            assert!(flags.contains(&key), "{key}");
        }
    }
}
