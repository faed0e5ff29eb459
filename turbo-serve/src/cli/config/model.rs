//! One `[[models]]` of a file: which model, in which versions, by which names, within which limits.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use toml::de::DeValue;
use turbo_serve::{
    hub::MAIN,
    models::{Alias, LoadWhen},
};

use super::{
    document::{At, Section},
    flags::{Beside, Flags},
};
use crate::cli::{
    device::Wish,
    model_id::{self, Place},
    serve::Arguments,
};

/// A model as its section says.
pub(super) struct ModelConfig {
    pub(super) name: At<String>,
    pub(super) aliases: Vec<(At<String>, Alias)>,
    /// The version that is pinned.
    pub(super) version: Option<String>,
    pub(super) load: LoadWhen,
    pub(super) versions: Versions,
    /// What a server of this model alone would be started with; where the model is stands in `versions`.
    pub(super) arguments: Arguments,
}

/// The versions of a model.
#[derive(Clone, Debug)]
pub(super) enum Versions {
    /// These.
    Listed(Vec<Version>),
    /// The folders in this one, by their names.
    In(PathBuf),
}

/// A version that is listed.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) name: String,
    pub(super) model_id: String,
    pub(super) place: Place,
    pub(super) revision: Option<String>,
}

/// The version of a model that lists none.
const ONLY: &str = "1";
/// No version's name: it stands for the greatest.
pub(super) const LATEST: &str = "latest";

/// Reads sections.
pub(super) struct Reader<'a> {
    pub(super) flags: &'a Flags,
    /// The folder of the file, which paths are relative to.
    pub(super) base: &'a Path,
    /// The flags that all models have.
    pub(super) server: &'a [OsString],
    pub(super) beside: Option<&'a Beside<'a>>,
}

impl Reader<'_> {
    /// The model of a section; `None` where something is wrong with it, which is told.
    pub(super) fn model(&self, mut section: Section<'_>) -> Option<ModelConfig> {
        let name = section.required("name").filter(|name| name_is_sound(&section, name));
        let aliases = section.strings("aliases").into_iter().map(|alias| {
            let plain = Alias { name: alias.value.clone(), version: None };
            (alias, plain)
        });
        let mut aliases: Vec<_> = aliases.collect();
        let load = load_when(&mut section);
        let words = self.flags.take_model(&mut section);
        let device = device(&mut section);
        let arguments = self.arguments(&section, words, device);
        let versions = self.versions(&mut section, arguments.as_ref(), &mut aliases);
        let version = section.string("version");
        if let (Some(versions), Some(At { at, value })) = (&versions, &version) {
            let there = versions.names().unwrap_or_default();
            if !there.contains(value) {
                let there = there.join(", ");
                section.problem(*at, format_args!("version: no version `{value}`: expected one of {there}"));
            }
        }
        section.done(|key| {
            let of_the_server = self.flags.of_the_server().any(|name| name == key);
            of_the_server.then(|| "it belongs in [server]".to_owned())
        });
        Some(ModelConfig {
            name: name?,
            aliases,
            version: version.map(|version| version.value),
            load,
            versions: versions?,
            arguments: arguments?,
        })
    }

    /// What a server of this model would be started with; `device` is what it chooses itself.
    fn arguments(
        &self,
        section: &Section<'_>,
        words: Vec<OsString>,
        device: Option<Wish>,
    ) -> Option<Arguments> {
        let model = [OsString::from("--model-id=.")];
        let all = model.into_iter().chain(self.server.iter().cloned()).chain(words).collect();
        let parsed = self.flags.parse(all, self.beside);
        let checked = parsed.and_then(|arguments| {
            let arguments = match device {
                Some(device) => arguments.on(device),
                None => arguments,
            };
            arguments.check_model().map_err(|error| error.to_string()).map(|()| arguments)
        });
        checked.map_err(|what| section.problem(section.at(), format_args!("models: {what}"))).ok()
    }

    /// The versions that `model_id` or `versions` say; aliases of versions are added to those of the model.
    fn versions(
        &self,
        section: &mut Section<'_>,
        arguments: Option<&Arguments>,
        aliases: &mut Vec<(At<String>, Alias)>,
    ) -> Option<Versions> {
        let model_id = section.string("model_id");
        let versions = section.take("versions");
        let revision = arguments.and_then(|arguments| arguments.model().revision.clone());
        if let (Some(revision), Some(At { at, .. })) = (&revision, &versions) {
            let what = "does not say which version it is for: set it in each [[models.versions]]";
            section.problem(*at, format_args!("revision: `{revision}` {what}"));
        }
        match (model_id, versions) {
            (Some(model_id), None) => {
                let version = self.version(section, arguments, ONLY.to_owned(), model_id, revision)?;
                Some(Versions::Listed(vec![version]))
            }
            (None, Some(At { at, value: DeValue::String(folder) })) => {
                let folder = self.base.join(&*folder);
                folders_in(&folder)
                    .map_err(|what| section.problem(at, format_args!("versions: {what}")))
                    .is_ok()
                    .then_some(Versions::In(folder))
            }
            (None, Some(At { value: DeValue::Array(list), .. })) => {
                let sections = section.tables("versions", list);
                let mut names = BTreeSet::new();
                let read = |section| self.listed(section, arguments, aliases, &mut names);
                let versions: Option<Vec<_>> = sections.into_iter().map(read).collect();
                Some(Versions::Listed(versions?))
            }
            (None, Some(At { at, value })) => {
                section.wrong_type(at, "versions", "a folder or sections `[[models.versions]]`", &value);
                None
            }
            (Some(At { at, .. }), Some(_)) => {
                section.problem(at, "model_id: given beside `versions`, expected only one of the two");
                None
            }
            (None, None) => {
                section.problem(
                    section.at(),
                    "models: neither `model_id` nor `versions` says where the model is",
                );
                None
            }
        }
    }

    /// A section `[[models.versions]]`.
    fn listed(
        &self,
        mut section: Section<'_>,
        arguments: Option<&Arguments>,
        aliases: &mut Vec<(At<String>, Alias)>,
        names: &mut BTreeSet<String>,
    ) -> Option<Version> {
        let name = section.required("version").filter(|At { at, value }| {
            if value.contains('/') || value == LATEST {
                let expected = "expected a name without `/` other than `latest`";
                section.problem(*at, format_args!("version: {expected}, got \"{value}\""));
                return false;
            }
            let is_new = names.insert(value.clone());
            if !is_new {
                section.problem(*at, format_args!("version: `{value}` names two versions"));
            }
            is_new
        });
        let model_id = section.required("model_id");
        let revision = section.string("revision").map(|revision| revision.value);
        for alias in section.strings("aliases") {
            let version = name.as_ref().map(|name| name.value.clone());
            let pinned = Alias { name: alias.value.clone(), version };
            aliases.push((alias, pinned));
        }
        let version = name
            .zip(model_id)
            .and_then(|(name, model_id)| self.version(&section, arguments, name.value, model_id, revision));
        section.done(|_| None);
        version
    }

    fn version(
        &self,
        section: &Section<'_>,
        arguments: Option<&Arguments>,
        name: String,
        At { at, value }: At<String>,
        revision: Option<String>,
    ) -> Option<Version> {
        let models = &arguments?.model().turbo_models_dir;
        match there(&value, self.base, models, revision.as_deref()) {
            Ok(place) => {
                let path = self.base.join(&value);
                let is_a_path = matches!(&place, Place::Folder(folder) if *folder == path);
                let model_id = if is_a_path { path.to_string_lossy().into_owned() } else { value };
                Some(Version { name, model_id, place, revision })
            }
            Err(what) => {
                section.problem(at, format_args!("model_id: {what}"));
                None
            }
        }
    }
}

impl Versions {
    /// Their names; those of folders as they are now.
    ///
    /// # Errors
    /// Why there are none, in one line.
    pub(super) fn names(&self) -> Result<Vec<String>, String> {
        match self {
            Self::Listed(versions) => Ok(versions.iter().map(|version| version.name.clone()).collect()),
            Self::In(folder) => folders_in(folder),
        }
    }
}

/// Their names, and where they come from.
impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listed(versions) => {
                let shown = |version: &Version| format!("{} from {}", version.name, version.place);
                f.write_str(&versions.iter().map(shown).collect::<Vec<_>>().join(", "))
            }
            Self::In(folder) => {
                write!(f, "{} from {}", self.names().unwrap_or_default().join(", "), folder.display())
            }
        }
    }
}

/// No model's name: KServe's path of its metadata is that of the statistics of all models.
const STATS: &str = "stats";

/// A name goes into paths, and what follows its `/` is a version.
pub(super) fn name_is_sound(section: &Section<'_>, At { at, value }: &At<String>) -> bool {
    let sound = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let is_sound = value.chars().all(sound) && !value.starts_with('.');
    if !is_sound {
        let expected = "expected letters, digits, `-`, `_` and `.` (aliases may be any text)";
        section.problem(*at, format_args!("name: {expected}, got \"{value}\""));
    } else if value == STATS {
        let is = "names the statistics of all models (`/v2/models/stats`), expected another name";
        section.problem(*at, format_args!("name: `{value}` {is}"));
    }
    is_sound && value != STATS
}

pub(super) fn load_when(section: &mut Section<'_>) -> LoadWhen {
    let Some(At { at, value }) = section.string("load") else { return LoadWhen::Start };
    match value.as_str() {
        "start" => LoadWhen::Start,
        "request" => LoadWhen::Request,
        other => {
            section.problem(at, format_args!("load: expected \"start\" or \"request\", got \"{other}\""));
            LoadWhen::Start
        }
    }
}

/// The device that a model chooses, beside what the server's flag says for all.
fn device(section: &mut Section<'_>) -> Option<Wish> {
    let At { at, value } = section.string("device")?;
    let wish = value.parse();
    wish.map_err(|what| section.problem(at, format_args!("device: {value} cannot be used: {what}"))).ok()
}

/// The names of the model folders in a folder; others may be on their way to become some.
fn folders_in(folder: &Path) -> Result<Vec<String>, String> {
    let cannot = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).filter(|&name| name != LATEST);
        names.extend(name.filter(|_| path.join(CONFIG).is_file()).map(str::to_owned));
    }
    names.sort();
    if names.is_empty() {
        return Err(format!("{}: no model folder in it, expected one for each version", folder.display()));
    }
    Ok(names)
}

/// What makes a folder one of a model.
const CONFIG: &str = "config.json";

/// Where a model is that a file in the folder `base` names, as far as that can be told without opening it.
fn there(model_id: &str, base: &Path, models: &Path, revision: Option<&str>) -> Result<Place, String> {
    match model_id::place(model_id, base, models) {
        Err(error) => Err(error.to_string().trim_start_matches("--model-id ").to_owned()),
        Ok(Place::Folder(folder)) if revision.is_some() => {
            Err(format!("{} is a folder, and only the Hub has revisions", folder.display()))
        }
        Ok(Place::Folder(folder)) if !folder.join(CONFIG).is_file() => {
            Err(format!("{}: no {CONFIG} in it, expected a model folder", folder.display()))
        }
        Ok(Place::Hub(name)) => match folder_of_owner(&name, base) {
            Some(owner) if revision.is_none() => Err(format!(
                "{name}: no such folder, and there is a folder {owner} beside the file: if you mean the model on the Hub, \
                 set its `revision`, such as `{MAIN}`"
            )),
            _ => Ok(Place::Hub(name)),
        },
        Ok(place) => Ok(place),
    }
}

/// The first part of a name on the Hub, where that is a folder in `base`: then the whole is more likely a path with a
/// mistake in it.
fn folder_of_owner<'a>(name: &'a str, base: &Path) -> Option<&'a str> {
    let (owner, _) = name.split_once('/')?;
    base.join(owner).is_dir().then_some(owner)
}
