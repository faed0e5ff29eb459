//! From a file's model to what a registry loads.

use std::{path::Path, sync::Arc};

use turbo_serve::models::{Declared, Load, Loaded, Source, SourceError};

use super::model::{ModelConfig, Version, Versions};
use crate::cli::serve::{self, Among, Arguments, Host};

/// A model on a host.
struct OnHost {
    name: String,
    versions: Versions,
    arguments: Arguments,
    host: Host,
}

/// What is served of a model, on `host`.
pub(super) fn declared(model: ModelConfig, host: &Host) -> Declared {
    let ModelConfig { name, aliases, version, load, versions, arguments } = model;
    let source = OnHost { name: name.value.clone(), versions, arguments, host: host.clone() };
    Declared {
        name: name.value,
        aliases: aliases.into_iter().map(|(_, alias)| alias).collect(),
        version,
        load,
        source: Arc::new(source),
    }
}

impl OnHost {
    /// Where a version is: on the Hub under its revision, or in a folder.
    fn place(&self, version: &str) -> Option<(String, Option<String>)> {
        match &self.versions {
            Versions::Listed(versions) => {
                let Version { model_id, revision, .. } = versions.iter().find(|it| it.name == version)?;
                Some((model_id.clone(), revision.clone()))
            }
            Versions::In(folder) => Some((Path::join(folder, version).to_string_lossy().into_owned(), None)),
        }
    }
}

impl Source for OnHost {
    fn versions(&self) -> Result<Vec<String>, SourceError> {
        Ok(self.versions.names()?)
    }

    fn load(&self, Load { version, label, .. }: Load<'_>) -> Result<Loaded, SourceError> {
        let place = self.place(version).ok_or_else(|| format!("there is no version `{version}`"))?;
        let arguments = self.arguments.clone().of(place);
        let among = Among { name: Some(self.name.clone()), label: label.map(str::to_owned) };
        Ok(serve::open(&arguments, self.host.clone(), among)?.into())
    }
}
