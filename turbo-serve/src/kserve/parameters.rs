//! What a request says beside its tensors.

use std::fmt;

use crate::{
    engine::{EngineInfo, Truncation},
    http::ApiError,
};

/// A value of a parameter, of those types that both protocols have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Parameter {
    Bool(bool),
    Integer(i64),
    Text(String),
    /// Of any other type.
    Other,
}

impl Parameter {
    /// How many it says.
    pub(crate) fn count(&self) -> Option<usize> {
        match self {
            &Self::Integer(count) => usize::try_from(count).ok(),
            _ => None,
        }
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Text(value) => write!(f, "`{value}`"),
            Self::Other => f.write_str("of another type"),
        }
    }
}

/// The parameters that are heeded.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Parameters {
    truncate: Option<bool>,
    left: bool,
    pub(super) prompt_name: Option<String>,
    pub(super) normalize: Option<bool>,
    pub(super) dimensions: Option<usize>,
}

impl Parameters {
    pub(super) fn read(parameters: Vec<(String, Parameter)>) -> Result<Self, ApiError> {
        let mut read = Self::default();
        for (name, value) in parameters {
            read.set(&name, &value).map_err(|expected| {
                ApiError::validation(format!("parameter `{name}` is {value}, expected {expected}"))
            })?;
        }
        Ok(read)
    }

    /// Sets one, or says what was expected.
    fn set(&mut self, name: &str, value: &Parameter) -> Result<(), &'static str> {
        match (name, value) {
            ("truncate", &Parameter::Bool(value)) => self.truncate = Some(value),
            ("normalize", &Parameter::Bool(value)) => self.normalize = Some(value),
            ("truncate" | "normalize", _) => return Err("a boolean"),
            ("truncation_direction", Parameter::Text(side)) if side.eq_ignore_ascii_case("left") => {
                self.left = true;
            }
            ("truncation_direction", Parameter::Text(side)) if side.eq_ignore_ascii_case("right") => {
                self.left = false;
            }
            ("truncation_direction", _) => return Err("`left` or `right`"),
            ("prompt_name", Parameter::Text(value)) => self.prompt_name = Some(value.clone()),
            ("prompt_name", _) => return Err("a string"),
            ("dimensions", value) => {
                self.dimensions = Some(value.count().ok_or("a number that is not negative")?);
            }
            _ => {} // of other servers
        }
        Ok(())
    }

    pub(super) fn truncation(&self, info: &EngineInfo) -> Truncation {
        match (self.truncate.unwrap_or(info.auto_truncate), self.left) {
            (false, _) => Truncation::Off,
            (true, true) => Truncation::Left,
            (true, false) => Truncation::Right,
        }
    }
}
