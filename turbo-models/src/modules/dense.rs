//! A dense module behind the pooled vector, in a folder of its own.

use std::path::{Path, PathBuf};

use turbo_graph::Activation;

use super::check_names;
use crate::{ModelError, json::JsonObject};

/// `activation(x · Wᵀ + b)` of a pooled vector `x`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dense {
    /// The folder of its weights: `linear.weight` `[out_features, in_features]`, `linear.bias` `[out_features]`.
    pub(crate) path: PathBuf,
    /// Width of its input.
    pub(crate) in_features: usize,
    /// Width of its output.
    pub(crate) out_features: usize,
    /// Whether there is a `b`.
    pub(crate) bias: bool,
    /// `None`: the identity.
    pub(crate) activation: Option<Activation>,
}

impl Dense {
    /// Reads `config.json` of the module's folder `path`. The weights are not read.
    ///
    /// # Errors
    /// [`ModelError`] naming file and field.
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let json = JsonObject::open_existing(path.join("config.json"))?;
        check_names(&json)?;
        if json.get("use_residual")? == Some(true) {
            return Err(json.unsupported("use_residual", "true", "false"));
        }
        Ok(Self {
            path: path.to_owned(),
            in_features: width(&json, "in_features")?,
            out_features: width(&json, "out_features")?,
            bias: json.get("bias")?.unwrap_or(true),
            activation: activation(&json)?,
        })
    }
}

/// A width. It is not trusted before the weights were found to match it: nothing is allocated by it.
fn width(json: &JsonObject, field: &'static str) -> Result<usize, ModelError> {
    match json.get::<u32>(field)? {
        None => Err(json.wrong(field, "is missing")),
        Some(0) => Err(json.wrong(field, "is 0, expected at least 1")),
        Some(width) => Ok(width as usize),
    }
}

/// The activation that the path of a Python class names; the hyperbolic tangent if none is named, as in the library.
fn activation(json: &JsonObject) -> Result<Option<Activation>, ModelError> {
    const FIELD: &str = "activation_function";
    let Some(class) = json.get::<String>(FIELD)? else { return Ok(Some(Activation::Tanh)) };
    match class.rsplit('.').next() {
        Some("Identity") => Ok(None),
        Some("Tanh") => Ok(Some(Activation::Tanh)),
        Some("ReLU") => Ok(Some(Activation::Relu)),
        Some("GELU") => Ok(Some(Activation::GeluErf)),
        Some("SiLU") => Ok(Some(Activation::Silu)),
        Some("Sigmoid") => Ok(Some(Activation::Sigmoid)),
        _ => Err(json.unsupported(FIELD, class, "GELU, Identity, ReLU, Sigmoid, SiLU, Tanh")),
    }
}
