//! `--config`: several models in one process, as a TOML file describes them.
//!
//! ```text
//! turbo.toml ─▶ document ─▶ flags, models ─▶ Config ─▶ Models
//!               (lines,      (a model is what a server of it alone would
//!                unknown      be started with: keys are flags)
//!                keys)
//! ```
//!
//! All that can be wrong without opening a model is found here, all at once, each with its line: `turbo check-config`
//! does this and nothing else. Every key is described in `docs/config.md`.

mod check;
mod document;
mod ensemble;
mod flags;
mod model;
mod source;

use std::{collections::BTreeSet, ffi::OsString, path::Path};

use anyhow::{Context, Result, anyhow, bail};
use clap::{ArgMatches, Command};
use turbo_serve::models::{Declared, Models};

use self::{
    document::{At, Report, Section, nearest},
    ensemble::{EnsembleConfig, ensemble},
    flags::{Beside, Flags},
    model::{LATEST, ModelConfig, Reader},
};
use super::{
    device::Wish,
    one_line, output,
    serve::{Arguments, Host},
};

pub(super) use check::{Arguments as CheckArguments, run as check};

/// What a file says.
pub(super) struct Config {
    /// The name of the default model.
    default: Option<String>,
    models: Vec<ModelConfig>,
    ensembles: Vec<EnsembleConfig>,
}

impl Config {
    /// Reads `path` for the command `serve`, with what the command line says beside it: `matches`, and its words behind
    /// `serve`.
    ///
    /// # Errors
    /// All that is wrong, a line for each; flags that would be of one model.
    pub(super) fn beside(
        path: &Path,
        serve: &Command,
        matches: &ArgMatches,
        words: Vec<OsString>,
    ) -> Result<Self> {
        let beside = Beside { matches, words };
        if let Some((flag, key)) = beside.of_a_model() {
            let (written, config, path) = (beside.written(flag), beside.written("config"), path.display());
            bail!(
                "{written} beside {config}: {path} describes the models: set `{key}` in their [[models]] there"
            );
        }
        Self::read(path, serve, Some(&beside))
    }

    /// Reads `path` alone.
    ///
    /// # Errors
    /// All that is wrong, a line for each.
    pub(super) fn alone(path: &Path, serve: &Command) -> Result<Self> {
        Self::read(path, serve, None)
    }

    fn read(path: &Path, serve: &Command, beside: Option<&Beside<'_>>) -> Result<Self> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| file.clone())?;
        let base = path.parent().unwrap_or(Path::new(""));
        Self::parse(&file, &text, base, serve, beside).map_err(|mistakes| {
            if let [mistake] = mistakes.as_slice() {
                return anyhow!("{mistake}");
            }
            mistakes.iter().for_each(|mistake| output::note(mistake));
            anyhow!("{file}: {} mistakes", mistakes.len())
        })
    }

    /// What the text of a file in the folder `base` says, or its mistakes, a line for each.
    fn parse(
        file: &str,
        text: &str,
        base: &Path,
        serve: &Command,
        beside: Option<&Beside<'_>>,
    ) -> Result<Self, Vec<String>> {
        let (flags, report) = (Flags::of(serve), Report::new(file, text));
        let config = report.read().map(|top| Self::of(top, &flags, base, beside));
        match (config, report.into_lines()) {
            (Some(config), None) => Ok(config),
            (_, lines) => Err(lines.unwrap_or_default()),
        }
    }

    /// What the outermost section says; whole only where the report stays empty.
    fn of(mut top: Section<'_>, flags: &Flags, base: &Path, beside: Option<&Beside<'_>>) -> Self {
        let default = top.string("default");
        let (mut server, mut server_at) = (Vec::new(), 0);
        if let Some(mut section) = top.section("server") {
            server = flags.take_server(&mut section, base, beside);
            server_at = section.at();
            section
                .done(|key| flags::OF_A_MODEL.contains(&key).then(|| "it belongs in [[models]]".to_owned()));
        }
        let sections = top.sections("models");
        if sections.is_empty() {
            top.problem(0, "models: there is none, expected at least one `[[models]]`");
        }
        let reader = Reader { flags, base, server: &server, beside };
        let of_ensembles = top.sections("ensembles");
        let (declared_models, declared_ensembles) = (sections.len(), of_ensembles.len());
        let models: Vec<ModelConfig> =
            sections.into_iter().filter_map(|section| reader.model(section)).collect();
        if let Some(what) = models.first().and_then(|first| first.arguments.check().err()) {
            top.problem(server_at, format_args!("server: {}", one_line(&what)));
        }
        let ensembles: Vec<EnsembleConfig> = of_ensembles.into_iter().filter_map(ensemble).collect();
        check_names(&top, &models, &ensembles);
        // What is wrong itself is not missing as well.
        if models.len() == declared_models {
            check_members(&top, &models, &ensembles);
            if ensembles.len() == declared_ensembles {
                check_default(&top, &models, &ensembles, default.as_ref());
            }
        }
        top.done(|_| None);
        Self { default: default.map(|default| default.value), models, ensembles }
    }

    /// The flags of the server, among those of its first model.
    pub(super) fn server(&self) -> &Arguments {
        &self.models[0].arguments
    }

    /// What the models run on.
    pub(super) fn devices(&self) -> Vec<Wish> {
        self.models.iter().map(|model| model.arguments.model().device).collect()
    }

    /// The models, on `host`; none is loaded yet.
    ///
    /// # Errors
    /// What has changed since the file was read.
    pub(super) fn declare(self, host: &Host) -> Result<Models> {
        let models = self.models.into_iter().map(|model| source::declared(model, host));
        // Behind the models: they are loaded in this order.
        let declared: Vec<Declared> =
            models.chain(self.ensembles.into_iter().map(|it| it.declared)).collect();
        Ok(Models::new(declared, self.default.as_deref())?)
    }
}

/// All names, with the key that gives each.
fn names<'a>(
    models: &'a [ModelConfig],
    ensembles: &'a [EnsembleConfig],
) -> impl Iterator<Item = (&'static str, &'a At<String>)> {
    let of_models = models.iter().flat_map(|model| {
        let aliases = model.aliases.iter().map(|(alias, _)| ("aliases", alias));
        std::iter::once(("name", &model.name)).chain(aliases)
    });
    let of_ensembles = ensembles.iter().flat_map(|ensemble| {
        let aliases = ensemble.aliases.iter().map(|alias| ("aliases", alias));
        std::iter::once(("name", &ensemble.name)).chain(aliases)
    });
    of_models.chain(of_ensembles)
}

/// Every name stands for one thing.
fn check_names(top: &Section<'_>, models: &[ModelConfig], ensembles: &[EnsembleConfig]) {
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for (key, At { at, value }) in names(models, ensembles) {
        if !known.insert(value) {
            top.problem(*at, format_args!("{key}: `{value}` names two models, expected a unique name"));
        } else if let Some((name, version)) = version_in(value, models) {
            top.problem(
                *at,
                format_args!(
                    "{key}: `{value}` means version `{version}` of `{name}`, expected a unique name"
                ),
            );
        }
    }
}

/// The model and its version that `name` means by itself.
fn version_in<'a>(name: &'a str, models: &[ModelConfig]) -> Option<(&'a str, &'a str)> {
    let (name, version) = name.rsplit_once('/')?;
    let is_it = |model: &&ModelConfig| {
        model.name.value == name || model.aliases.iter().any(|(alias, _)| alias.value == name)
    };
    let versions = &models.iter().find(is_it)?.versions;
    let is_one =
        version == LATEST || versions.names().is_ok_and(|names| names.iter().any(|name| name == version));
    is_one.then_some((name, version))
}

/// The default is one of the models.
fn check_default(
    top: &Section<'_>,
    models: &[ModelConfig],
    ensembles: &[EnsembleConfig],
    default: Option<&At<String>>,
) {
    let known: Vec<&str> = names(models, ensembles).map(|(_, name)| name.value.as_str()).collect();
    if let Some(At { at, value }) = default.filter(|default| !known.contains(&default.value.as_str())) {
        top.problem(*at, format_args!("default: no model `{value}`: {}", expected(value, &known)));
    }
}

/// What `name` might have been.
fn expected(name: &str, known: &[&str]) -> String {
    match nearest(name, known) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("expected one of {}", known.join(", ")),
    }
}

/// The models of ensembles are there, in the versions that they name.
fn check_members(top: &Section<'_>, models: &[ModelConfig], ensembles: &[EnsembleConfig]) {
    let names_of = |model: &ModelConfig| -> Vec<String> {
        let aliases = model.aliases.iter().map(|(alias, _)| alias.value.clone());
        std::iter::once(model.name.value.clone()).chain(aliases).collect()
    };
    let known: Vec<(Vec<String>, &ModelConfig)> =
        models.iter().map(|model| (names_of(model), model)).collect();
    let named = |name: &str| known.iter().find(|(names, _)| names.iter().any(|known| known == name));
    for At { at, value } in ensembles.iter().flat_map(|ensemble| &ensemble.models) {
        if named(value).is_some() {
            continue;
        }
        let of_a_version = value.rsplit_once('/').and_then(|(name, version)| Some((named(name)?, version)));
        match of_a_version {
            Some(((_, model), version)) => {
                let versions = model.versions.names().unwrap_or_default();
                if version != model::LATEST && !versions.iter().any(|there| there == version) {
                    let there = versions.join(", ");
                    top.problem(*at, format_args!("model: no version `{version}`: expected one of {there}"));
                }
            }
            None => {
                let names: Vec<&str> =
                    known.iter().flat_map(|(names, _)| names).map(String::as_str).collect();
                let expected = expected(value, &names);
                let why = "an ensemble does not count";
                top.problem(*at, format_args!("model: no model `{value}`: {expected} ({why})"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use turbo_serve::models::LoadWhen;

    use super::{
        model::{Version, Versions},
        *,
    };
    use crate::cli::serve_command;

    /// A folder with the models `a`, `b`, and `versions/1`, `versions/2`.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for model in ["a", "b", "versions/1", "versions/2", "versions/latest"] {
            let model = folder.path().join(model);
            fs::create_dir_all(&model).unwrap();
            fs::write(model.join("config.json"), "{}").unwrap();
        }
        fs::create_dir_all(folder.path().join("versions/unfinished")).unwrap();
        folder
    }

    fn parse(base: &Path, text: &str) -> Result<Config, Vec<String>> {
        Config::parse("x.toml", text, base, &serve_command(), None)
    }

    #[test]
    fn a_file_says_what_is_served() {
        let folder = folder();
        let text = "
            default = 'second'
            [server]
            port = 0
            device = 'cpu'
            [[models]]
            name = 'first'
            model_id = 'a'
            device = 'cuda:1'
            aliases = ['org/first']
            dtype = 'bf16'
            max_batch_tokens = 64
            load = 'request'
            [[models]]
            name = 'second'
            version = '1'
            [[models.versions]]
            version = '1'
            model_id = './b'
            aliases = ['stable']
            [[models.versions]]
            version = '2'
            model_id = 'org/name'
            revision = 'main'
            [[models]]
            name = 'third'
            versions = 'versions'";
        let config = parse(folder.path(), text).unwrap();
        assert_eq!(config.default.as_deref(), Some("second"));
        let [first, second, third] = &config.models[..] else { panic!("three are declared") };
        assert_eq!(config.devices(), [Wish::Cuda(1), Wish::Cpu, Wish::Cpu]);
        assert_eq!((first.load, second.load), (LoadWhen::Request, LoadWhen::Start));
        let limits = first.arguments.config(std::num::NonZeroUsize::MIN);
        assert_eq!(limits.max_batch_tokens, turbo_serve::engine::BatchTokens::AtMost(64));
        let aliases: Vec<_> = second.aliases.iter().map(|(_, alias)| alias.clone()).collect();
        assert_eq!((aliases[0].name.as_str(), aliases[0].version.as_deref()), ("stable", Some("1")));
        let here = |path: &str| folder.path().join(path).to_str().unwrap().to_owned();
        let Versions::Listed(versions) = &second.versions else { panic!("they are listed") };
        let places =
            versions.iter().map(|Version { model_id, revision, .. }| (model_id.clone(), revision.as_deref()));
        assert_eq!(places.collect::<Vec<_>>(), [(here("./b"), None), ("org/name".to_owned(), Some("main"))]);
        assert_eq!(third.versions.names().unwrap(), ["1", "2"]);
        let Versions::Listed(versions) = &first.versions else { panic!("it has one") };
        assert_eq!((versions[0].name.as_str(), &versions[0].model_id), ("1", &here("a")));
    }

    #[test]
    fn mistakes_are_told_all_at_once_with_their_lines() {
        let folder = folder();
        let text = "defautl = 'a'
[server]
dtype = 'f32'
prot = 1
[[models]]
name = 'a/b'
model_id = 'a'
[[models]]
name = 'b'
versions = 'nowhere'
port = 1
[[models]]
model_id = 'b'
dtyp = 'f32'
[[models]]
name = 'c'
[[models]]
name = 'd'
model_id = 'no such folder'
device = 'gpu'
load = 'never'
[[models]]
name = 'e'
model_id = 'a'
max_client_batch_size = 0
[[models]]
name = 'f'
model_id = 'a'
revision = 'main'
[[models]]
name = 'g'
model_id = 'a'
default_prompt = 'x'
default_prompt_name = 'y'
[[models]]
name = 'stats'
model_id = 'a'
";
        let mistakes = parse(folder.path(), text).err().unwrap();
        let expected = [
            "1: defautl: unknown key at the top: did you mean `default`?",
            "3: dtype: unknown key in server: it belongs in [[models]]",
            "4: prot: unknown key in server: did you mean `port`?",
            "6: name: expected letters, digits, `-`, `_` and `.` (aliases may be any text), got \"a/b\"",
            "10: versions: ",
            "11: port: unknown key in models: it belongs in [server]",
            "12: models: `name` is missing",
            "14: dtyp: unknown key in models: did you mean `dtype`?",
            "15: models: neither `model_id` nor `versions` says where the model is",
            "19: model_id: no such folder: no such folder, and neither a short name (minilm) nor a name on the Hub",
            "20: device: gpu cannot be used: expected auto, cpu, cuda or cuda:N",
            "21: load: expected \"start\" or \"request\", got \"never\"",
            "25: max_client_batch_size: 0 cannot be used: expected a whole number above 0",
            "28: model_id: ",
            "30: models: the argument '--default-prompt-name <NAME>' cannot be used with '--default-prompt <TEXT>'",
            "36: name: `stats` names the statistics of all models (`/v2/models/stats`), expected another name",
        ];
        assert_eq!(mistakes.len(), expected.len(), "{mistakes:#?}");
        for (mistake, expected) in mistakes.iter().zip(expected) {
            assert!(mistake.starts_with(&format!("x.toml:{expected}")), "{mistake}\nis not: {expected}");
        }
    }

    #[test]
    fn what_the_server_would_refuse_at_its_start_is_told() {
        let folder = folder();
        for (keys, expected) in [
            (
                "cache_bytes = 0\ncache_dir = 'c'",
                "--cache-bytes 0 keeps no answers, but --cache-dir asks to keep them",
            ),
            ("cache_url = 'no url'", "--cache-url: "),
            (
                "payload_limit = 2000\nmax_body_bytes_in_flight = 1999",
                "--max-body-bytes-in-flight 1999: expected at least",
            ),
            ("max_answer_bytes_in_flight = 0", "--max-answer-bytes-in-flight 0: expected at least 1"),
            ("payload_limit = 0", "--payload-limit 0: expected at least 1"),
            ("tls_cert = '/c.pem'", "--tls-cert /c.pem: --tls-key is missing, TLS needs both"),
            ("tls_key = '/k.pem'", "--tls-key /k.pem: --tls-cert is missing, TLS needs both"),
            ("tls_cert = '/no.pem'\ntls_key = 'k.pem'", "TLS: /no.pem: "),
            #[cfg(feature = "otlp")]
            ("otlp_endpoint = 'foo'", "--otlp-endpoint `foo`: expected a URL"),
        ] {
            let text = format!("default = 'a'\n[server]\n{keys}\n[[models]]\nname = 'a'\nmodel_id = 'a'\n");
            let mistakes = parse(folder.path(), &text).err().unwrap();
            assert_eq!(mistakes.len(), 1, "{mistakes:#?}");
            assert!(mistakes[0].starts_with(&format!("x.toml:2: server: {expected}")), "{}", mistakes[0]);
        }
    }

    #[test]
    fn names_stand_for_one_thing_and_versions_are_there() {
        let folder = folder();
        let mistake = |text: &str| {
            let mistakes = parse(folder.path(), text).err().unwrap();
            assert_eq!(mistakes.len(), 1, "{mistakes:#?}");
            mistakes[0].clone()
        };
        let a = "[[models]]\nname = 'a'\nmodel_id = 'a'\n";
        for (text, expected) in [
            (format!("{a}{a}"), "5: name: `a` names two models"),
            (format!("{a}aliases = ['b', 'a']"), "4: aliases: `a` names two models"),
            (
                format!("{a}[[models]]\nname = 'b'\nmodel_id = 'b'\naliases = ['org/b', 'a/stable', 'a/1']"),
                "7: aliases: `a/1` means version `1` of `a`",
            ),
            (format!("{a}aliases = ['a/latest']"), "4: aliases: `a/latest` means version `latest` of `a`"),
            (format!("default = 'aa'\n{a}"), "1: default: no model `aa`: did you mean `a`?"),
            (format!("{a}version = '2'"), "4: version: no version `2`: expected one of 1"),
            (format!("{a}versions = 'versions'"), "3: model_id: given beside `versions`"),
            (String::new(), "1: models: there is none"),
            (
                "[[models]]\nname = 'a'\n[[models.versions]]\nversion = 'latest'\nmodel_id = 'a'".to_owned(),
                "4: version: expected a name without `/` other than `latest`, got \"latest\"",
            ),
            (
                format!(
                    "[[models]]\nname = 'a'\n{one}{one}",
                    one = "[[models.versions]]\nversion = '1'\nmodel_id = 'a'\n"
                ),
                "7: version: `1` names two versions",
            ),
        ] {
            let mistake = mistake(&text);
            assert!(mistake.starts_with(&format!("x.toml:{expected}")), "{mistake}\nis not: {expected}");
        }
    }

    const SEARCH: &str = "
[[ensembles]]
name = 'search'
output = 'ranked'
[[ensembles.steps]]
name = 'near'
do = 'retrieve'
model = 'a'
query = 'request.query'
texts = 'request.texts'
keep = 5
[[ensembles.steps]]
name = 'ranked'
do = 'rerank'
model = 'b/1'
query = 'request.query'
texts = 'near'
";
    const MODELS: &str = "[[models]]\nname = 'a'\nmodel_id = 'a'\n[[models]]\nname = 'b'\nmodel_id = 'b'\n";

    #[test]
    fn an_ensemble_is_steps_over_models() {
        let folder = folder();
        let labels = "
[[ensembles]]
name = 'topics'
aliases = ['org/topics']
load = 'request'
max_client_batch_size = 7
output = 'topic'
[[ensembles.steps]]
name = 'vector'
do = 'embed'
model = 'a'
texts = 'request.texts'
prompt = 'query'
[[ensembles.steps]]
name = 'topic'
do = 'nearest'
vectors = 'vector'
scale = 5
labels = { sport = 'a text about sport', law = 'a text about law' }
";
        let config =
            parse(folder.path(), &format!("default = 'org/topics'\n{MODELS}{SEARCH}{labels}")).unwrap();
        let [search, topics] = &config.ensembles[..] else { panic!("two are declared") };
        let models = |ensemble: &EnsembleConfig| {
            ensemble.models.iter().map(|model| model.value.clone()).collect::<Vec<_>>()
        };
        assert_eq!(
            (models(search), models(topics)),
            (vec!["a".to_owned(), "b/1".to_owned()], vec!["a".to_owned()])
        );
        assert_eq!((search.declared.load, topics.declared.load), (LoadWhen::Start, LoadWhen::Request));
    }

    #[test]
    fn mistakes_of_ensembles_have_their_lines() {
        let folder = folder();
        let mistakes = |from: &str, to: &str| {
            let text = format!("{MODELS}{}", SEARCH.replacen(from, to, 1));
            parse(folder.path(), &text).err().unwrap_or_default()
        };
        assert_eq!(mistakes("", ""), [""; 0]);
        for (from, to, expected) in [
            (
                "do = 'rerank'",
                "do = 'rank'",
                "20: do: expected one of embed, retrieve, rerank, classify, nearest, mean",
            ),
            (
                "model = 'a'",
                "model = 'c'",
                "14: model: no model `c`: did you mean `a`? (an ensemble does not count)",
            ),
            ("'b/1'", "'b/2'", "21: model: no version `2`: expected one of 1"),
            ("texts = 'near'", "texts = 'nera'", "23: texts: no step `nera`: expected `request.query`"),
            (
                "texts = 'near'",
                "texts = 'ranked'",
                "19: name: steps wait for each other: ranked reads ranked",
            ),
            (
                "texts = 'near'",
                "texts = 'request.query'",
                "23: texts: expected texts, `request.query` gives a query",
            ),
            (
                "output = 'ranked'",
                "output = 'near'",
                "10: output: expected scores or labels, `near` gives texts",
            ),
            ("keep = 5", "keep = 0", "17: keep: expected at least 1, got 0"),
            ("keep = 5", "keep = 'all'", "17: keep: expected a whole number, got \"all\""),
            ("keep = 5", "kepe = 5", "11: ensembles.steps: `keep` is missing"),
            ("output = 'ranked'", "", "8: ensembles: `output` is missing"),
            (
                "output = 'ranked'",
                "output = 'ranked'\nmax_client_batch_size = 0",
                "11: max_client_batch_size: expected at least 1, got 0",
            ),
            ("name = 'search'", "name = 'b'", "9: name: `b` names two models"),
        ] {
            let mistakes = mistakes(from, to);
            let is_told = mistakes.iter().any(|it| it.starts_with(&format!("x.toml:{expected}")));
            assert!(is_told, "{mistakes:#?}\nis not: {expected}");
        }
    }

    /// The page that describes every key.
    fn page() -> String {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/config.md");
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn the_example_of_the_page_is_sound() {
        let page = page();
        let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let folder = tempfile::tempdir().unwrap();
        for model in ["models/minilm", "models/ranker/1", "models/ranker/2"] {
            let model = folder.path().join(model);
            fs::create_dir_all(&model).unwrap();
            fs::write(model.join("config.json"), "{}").unwrap();
        }
        let config = parse(folder.path(), example);
        let count = config.as_ref().ok().map(|config| (config.models.len(), config.ensembles.len()));
        assert_eq!(count, Some((3, 1)), "{:#?}", config.err());
    }

    #[test]
    fn the_page_describes_every_key() {
        let (page, serve) = (page(), serve_command());
        let flags = Flags::of(&serve);
        let of_files = ["default", "name", "model_id", "versions", "version", "aliases", "load"];
        let of_steps = ["do", "model", "texts", "query", "keep", "query_prompt", "texts_prompt", "prompt"];
        let of_ensembles = ["output", "vectors", "labels", "scale", "of"];
        let missing: Vec<&str> = flags
            .of_the_server()
            .chain(flags::OF_A_MODEL)
            .chain(of_files)
            .chain(of_steps)
            .chain(of_ensembles)
            .filter(|key| !page.contains(&format!("| `{key}` |")))
            .collect();
        assert_eq!(missing, [""; 0], "docs/config.md has no line for them");
    }

    #[test]
    fn the_page_has_the_defaults_of_the_flags() {
        let (page, serve) = (page(), serve_command());
        let mut flags = 0;
        for argument in serve.get_arguments() {
            let (key, [default]) = (argument.get_id().as_str(), argument.get_default_values()) else {
                continue;
            };
            let lines = page.lines().filter(|line| line.starts_with(&format!("| `{key}` |")));
            let told: Vec<&str> = lines.filter_map(|line| line.split(" | ").nth(2)).collect();
            let default = default.to_str().unwrap();
            let forms = [format!("`{default}`"), format!("`\"{default}\"`")];
            let is_told = told.iter().any(|told| forms.iter().any(|form| form == told));
            assert!(is_told, "{key}: docs/config.md says {told:?}, not `{default}`");
            flags += 1;
        }
        assert!(flags > 10, "{flags} flags with defaults");
    }
}
