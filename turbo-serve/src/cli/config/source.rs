//! From a file's model to what a registry loads.

use std::{path::Path, sync::Arc};

use turbo_serve::{
    engine::DeviceTurns,
    models::{Declared, Loaded, Source, SourceError},
};

use super::model::{ModelConfig, Version, Versions};
use crate::cli::{
    device::Chosen,
    serve::{self, Among, Arguments},
};

/// A model on a device.
struct OnDevice {
    name: String,
    versions: Versions,
    arguments: Arguments,
    device: Chosen,
    turns: DeviceTurns,
}

/// What is served of a model, on a device whose turns it takes with others.
pub(super) fn declared(model: ModelConfig, device: &Chosen, turns: &DeviceTurns) -> Declared {
    let ModelConfig { name, aliases, version, load, versions, arguments } = model;
    let (device, turns) = (device.clone(), turns.clone());
    let source = OnDevice { name: name.value.clone(), versions, arguments, device, turns };
    Declared {
        name: name.value,
        aliases: aliases.into_iter().map(|(_, alias)| alias).collect(),
        version,
        load,
        source: Arc::new(source),
    }
}

impl OnDevice {
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

impl Source for OnDevice {
    fn versions(&self) -> Result<Vec<String>, SourceError> {
        Ok(self.versions.names()?)
    }

    fn load(&self, version: &str, label: Option<&str>) -> Result<Loaded, SourceError> {
        let place = self.place(version).ok_or_else(|| format!("there is no version `{version}`"))?;
        let arguments = self.arguments.clone().of(place);
        let among = Among {
            name: Some(self.name.clone()),
            label: label.map(str::to_owned),
            turns: self.turns.clone(),
        };
        Ok(serve::open(&arguments, self.device.clone(), among)?.into())
    }
}
