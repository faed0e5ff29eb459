//! `--config`: several models in one process, as a TOML file describes them.
//!
//! ```text
//! turbo.toml ─▶ document ─▶ flags, models ─▶ Config ─▶ Models
//!               (lines,      (a model is what a server of it alone would
//!                unknown      be started with: keys are flags)
//!                keys)
//! ```
//!
//! All that can be wrong without opening a model is found here, all at once, each with its line: `turbo check-config` does
//! this and nothing else. Every key is described in `docs/config.md`.

mod check;
mod document;
mod flags;
mod model;
mod source;

use std::{collections::BTreeSet, ffi::OsString, path::Path};

use anyhow::{Context, Result, anyhow, bail};
use clap::{ArgMatches, Command};
use turbo_serve::models::{Declared, Models};

use self::{
    document::{At, Report, Section, nearest},
    flags::{Beside, Flags},
    model::{ModelConfig, Reader},
};
use super::{
    output,
    serve::{Arguments, Host},
};

pub(super) use check::{Arguments as CheckArguments, run as check};

/// What a file says.
pub(super) struct Config {
    /// The name of the default model.
    default: Option<String>,
    models: Vec<ModelConfig>,
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
        if let Some((key, written)) = beside.of_a_model() {
            let path = path.display();
            bail!(
                "{written} beside --config: models are described in {path}, say `{key}` in their [[models]] there"
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
        let mut server = Vec::new();
        if let Some(mut section) = top.section("server") {
            server = flags.take_server(&mut section, base, beside);
            section
                .done(|key| flags::OF_A_MODEL.contains(&key).then(|| "it is one of [[models]]".to_owned()));
        }
        let sections = top.sections("models");
        if sections.is_empty() {
            top.problem(0, "models: there is none, expected at least one `[[models]]`");
        }
        let reader = Reader { flags, base, server: &server, beside };
        let models: Vec<ModelConfig> =
            sections.into_iter().filter_map(|section| reader.model(section)).collect();
        check_names(&top, &models, default.as_ref());
        top.done(|_| None);
        Self { default: default.map(|default| default.value), models }
    }

    /// The flags of the server, among those of its first model.
    pub(super) fn server(&self) -> &Arguments {
        &self.models[0].arguments
    }

    /// The models, on `host`; none is loaded yet.
    ///
    /// # Errors
    /// What has changed since the file was read.
    pub(super) fn declare(self, host: &Host) -> Result<Models> {
        let declared: Vec<Declared> =
            self.models.into_iter().map(|model| source::declared(model, host)).collect();
        Ok(Models::new(declared, self.default.as_deref())?)
    }
}

/// Every name stands for one thing, and the default is one of them.
fn check_names(top: &Section<'_>, models: &[ModelConfig], default: Option<&At<String>>) {
    let mut known: BTreeSet<&str> = BTreeSet::new();
    let aliases = models.iter().flat_map(|model| model.aliases.iter().map(|(alias, _)| ("aliases", alias)));
    let names = models.iter().map(|model| ("name", &model.name));
    for (key, At { at, value }) in names.chain(aliases) {
        if !known.insert(value) {
            top.problem(*at, format_args!("{key}: `{value}` names two models, expected a name of its own"));
        }
    }
    if let Some(At { at, value }) = default
        && !known.contains(value.as_str())
        && !models.is_empty()
    {
        let names: Vec<&str> = known.into_iter().collect();
        let expected = match nearest(value, &names) {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!("expected one of {}", names.join(", ")),
        };
        top.problem(*at, format_args!("default: no model `{value}`: {expected}"));
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
            [[models]]
            name = 'first'
            model_id = 'a'
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
";
        let mistakes = parse(folder.path(), text).err().unwrap();
        let expected = [
            "1: defautl: unknown key at the top: did you mean `default`?",
            "3: dtype: unknown key in server: it is one of [[models]]",
            "4: prot: unknown key in server: did you mean `port`?",
            "6: name: expected letters, digits, `-`, `_` and `.` (aliases may be any text), got \"a/b\"",
            "10: versions: ",
            "11: port: unknown key in models: it is one of [server]",
            "12: models: `name` is missing",
            "14: dtyp: unknown key in models: did you mean `dtype`?",
            "15: models: neither `model_id` nor `versions` says where the model is",
            "19: model_id: no such folder: no such folder; it is no short name either",
            "20: load: expected \"start\" or \"request\", got \"never\"",
            "21: models: max_client_batch_size must be at least 1",
            "27: model_id: ",
            "29: models: the argument '--default-prompt-name <NAME>' cannot be used with '--default-prompt <TEXT>'",
        ];
        assert_eq!(mistakes.len(), expected.len(), "{mistakes:#?}");
        for (mistake, expected) in mistakes.iter().zip(expected) {
            assert!(mistake.starts_with(&format!("x.toml:{expected}")), "{mistake}\nis not: {expected}");
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
            (format!("default = 'aa'\n{a}"), "1: default: no model `aa`: did you mean `a`?"),
            (format!("{a}version = '2'"), "4: version: no version `2`: expected one of 1"),
            (format!("{a}versions = 'versions'"), "3: model_id: it stands beside `versions`"),
            (String::new(), "1: models: there is none"),
            (
                "[[models]]\nname = 'a'\n[[models.versions]]\nversion = 'latest'\nmodel_id = 'a'".to_owned(),
                "4: version: expected a name without `/` other than `latest`, got \"latest\"",
            ),
        ] {
            let mistake = mistake(&text);
            assert!(mistake.starts_with(&format!("x.toml:{expected}")), "{mistake}\nis not: {expected}");
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
        assert!(config.as_ref().is_ok_and(|config| config.models.len() == 3), "{:#?}", config.err());
    }

    #[test]
    fn the_page_describes_every_key() {
        let (page, serve) = (page(), serve_command());
        let flags = Flags::of(&serve);
        let of_files = ["default", "name", "model_id", "versions", "version", "aliases", "load"];
        let missing: Vec<&str> = flags
            .of_the_server()
            .chain(flags::OF_A_MODEL)
            .chain(of_files)
            .filter(|key| !page.contains(&format!("| `{key}` |")))
            .collect();
        assert_eq!(missing, [""; 0], "docs/config.md has no line for them");
    }
}
