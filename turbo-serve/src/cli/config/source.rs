//! From a file's model to what a registry loads.

use std::sync::Arc;

use turbo_serve::models::{Declared, Load, Loaded, Source, SourceError};

use super::model::{ModelConfig, Version, Versions};
use crate::cli::{
    model_id::Place,
    serve::{self, Among, Arguments, Host},
};

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
    /// Its arguments as a version's: one on the Hub under its revision, or one in a folder.
    fn arguments(&self, version: &str) -> Option<Arguments> {
        let arguments = self.arguments.clone();
        match &self.versions {
            Versions::Listed(versions) => {
                let Version { model_id, place, revision, .. } =
                    versions.iter().find(|it| it.name == version)?;
                Some(arguments.of(model_id.clone(), place.clone(), revision.clone()))
            }
            Versions::In(folder) => {
                let folder = folder.join(version);
                Some(arguments.of(folder.to_string_lossy().into_owned(), Place::Folder(folder), None))
            }
        }
    }
}

impl Source for OnHost {
    fn versions(&self) -> Result<Vec<String>, SourceError> {
        Ok(self.versions.names()?)
    }

    fn load(&self, Load { version, label, .. }: Load<'_>) -> Result<Loaded, SourceError> {
        let arguments = self.arguments(version).ok_or_else(|| format!("there is no version `{version}`"))?;
        let among = Among { name: Some(self.name.clone()), label: label.map(str::to_owned) };
        Ok(serve::open(&arguments, self.host.clone(), among)?.into())
    }
}
