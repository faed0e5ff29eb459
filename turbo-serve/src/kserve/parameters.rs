//! The parameters of a request.

use std::{
    fmt,
    time::{Duration, Instant},
};

use crate::{
    engine::{EngineInfo, Priority, Truncation, Urgency},
    http::ApiError,
};

/// The value of a parameter, of one of the types that both transports have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Parameter {
    Bool(bool),
    Integer(i64),
    Text(String),
    /// Of any other type.
    Other,
}

impl Parameter {
    /// Its value as a count.
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

/// Reads a boolean parameter, which may be absent.
pub(crate) fn flag(name: &str, value: Option<&Parameter>) -> Result<Option<bool>, ApiError> {
    match value {
        None => Ok(None),
        Some(&Parameter::Bool(value)) => Ok(Some(value)),
        Some(value) => {
            Err(ApiError::validation(format!("parameter `{name}` is {value}, expected a boolean")))
        }
    }
}

/// Refuses a tensor, `input` or `output`, whose parameters say that its elements are in shared memory.
pub(crate) fn check_memory<'a>(
    tensor: &str,
    name: &str,
    mut parameters: impl Iterator<Item = &'a String>,
) -> Result<(), ApiError> {
    match parameters.find(|parameter| parameter.starts_with("shared_memory_")) {
        None => Ok(()),
        Some(parameter) => Err(ApiError::validation(format!(
            "{tensor} `{name}`: shared memory is not available here: leave out `{parameter}`, so that its data is sent"
        ))),
    }
}

/// The parameters that have an effect.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Parameters {
    truncate: Option<bool>,
    left: bool,
    pub(super) prompt_name: Option<String>,
    pub(super) normalize: Option<bool>,
    pub(super) dimensions: Option<usize>,
    pub(super) urgency: Urgency,
}

impl Parameters {
    /// The parameters of a request that arrived at `received`: its timeout counts from then.
    pub(super) fn read(parameters: Vec<(String, Parameter)>, received: Instant) -> Result<Self, ApiError> {
        let mut read = Self::default();
        for (name, value) in parameters {
            read.set(&name, &value, received).map_err(|expected| {
                ApiError::validation(format!("parameter `{name}` is {value}, expected {expected}"))
            })?;
        }
        Ok(read)
    }

    /// Sets one, or says what was expected.
    fn set(&mut self, name: &str, value: &Parameter, received: Instant) -> Result<(), &'static str> {
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
            // Triton's: 0 is the default, and 1 goes before 2.
            ("priority", Parameter::Integer(0)) => {}
            ("priority", Parameter::Integer(1)) => self.urgency.priority = Priority::High,
            ("priority", Parameter::Integer(2)) => self.urgency.priority = Priority::Normal,
            ("priority", Parameter::Integer(3..)) => self.urgency.priority = Priority::Low,
            ("priority", _) => return Err("a number that is not negative"),
            ("timeout", value) => {
                let micros = value.count().ok_or("a number of microseconds that is not negative")?;
                let time = Duration::from_micros(micros as u64);
                self.urgency.deadline = received.checked_add(time).filter(|_| micros > 0);
            }
            _ => {} // of other servers
        }
        Ok(())
    }

    /// How inputs that are too long are truncated. `None` leaves it to the engine: each model of an ensemble may have a
    /// default of its own.
    pub(super) fn truncation(&self, info: &EngineInfo) -> Option<Truncation> {
        if self.truncate.is_none() && !self.left {
            return None;
        }
        Some(match (self.truncate.unwrap_or(info.auto_truncate), self.left) {
            (false, _) => Truncation::Off,
            (true, true) => Truncation::Left,
            (true, false) => Truncation::Right,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: Parameter) -> Result<Parameters, String> {
        read_then(name, value, Instant::now())
    }

    fn read_then(name: &str, value: Parameter, received: Instant) -> Result<Parameters, String> {
        let read = Parameters::read(vec![(name.to_owned(), value)], received);
        read.map_err(|error| error.message().to_owned())
    }

    #[test]
    fn urgency_is_said_in_tritons_words() {
        for (said, expected) in
            [(0, Priority::Normal), (1, Priority::High), (2, Priority::Normal), (9, Priority::Low)]
        {
            assert_eq!(
                read("priority", Parameter::Integer(said)).unwrap().urgency.priority,
                expected,
                "{said}"
            );
        }
        let received = Instant::now();
        let read_all = read_then("timeout", Parameter::Integer(5_000_000), received).unwrap();
        assert_eq!(read_all.urgency.deadline, Some(received + Duration::from_secs(5)));
        assert_eq!(read("timeout", Parameter::Integer(0)).unwrap(), Parameters::default());
        for name in ["priority", "timeout"] {
            for value in [Parameter::Integer(-1), Parameter::Text("soon".to_owned()), Parameter::Other] {
                let error = read(name, value).unwrap_err();
                assert!(error.contains("that is not negative"), "{error}");
            }
        }
    }
}
