//! Resolving the names in requests to a model and a version.

use std::collections::HashMap;

use super::{DeclareError, Declared, NotServed, versions::Which};

/// How a request names its model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// `name`, `name/version` or an alias; `None` is the default model.
    pub name: Option<&'a str>,
    /// A version, or `latest`; takes precedence over one in `name`. `None` is the model's usual one.
    pub version: Option<&'a str>,
}

impl<'a> Wanted<'a> {
    /// A model by name alone.
    #[must_use]
    pub fn named(name: &'a str) -> Self {
        Self { name: Some(name), version: None }
    }
}

/// All names of all models.
#[derive(Debug)]
pub(super) struct Names {
    /// The models' own, in the order of their declaration.
    models: Vec<String>,
    /// Names and aliases, each with its model and the version that it pins.
    known: HashMap<String, (usize, Option<String>)>,
    /// The name or alias that is meant where a request names none.
    default: String,
}

impl Names {
    pub(super) fn new(declared: &[Declared], default: Option<&str>) -> Result<Self, DeclareError> {
        let models: Vec<String> = declared.iter().map(|model| model.name.clone()).collect();
        if models.is_empty() {
            return Err(DeclareError::Nothing);
        }
        let mut known = HashMap::new();
        for (index, model) in declared.iter().enumerate() {
            if model.name.is_empty() || model.name.contains('/') {
                return Err(DeclareError::Name(model.name.clone()));
            }
            let aliases = model.aliases.iter().map(|alias| (&alias.name, alias.version.clone()));
            for (name, version) in std::iter::once((&model.name, None)).chain(aliases) {
                if known.insert(name.clone(), (index, version)).is_some() {
                    return Err(DeclareError::Twice(name.clone()));
                }
            }
        }
        let default = default.unwrap_or(&models[0]).to_owned();
        if !known.contains_key(&default) {
            return Err(DeclareError::Default { name: default, known: models });
        }
        Ok(Self { models, known, default })
    }

    /// The names of a single model.
    pub(super) fn single(name: &str) -> Self {
        let known = HashMap::from([(name.to_owned(), (0, None))]);
        Self { models: vec![name.to_owned()], known, default: name.to_owned() }
    }

    /// A model's own name.
    pub(super) fn of(&self, model: usize) -> &str {
        &self.models[model]
    }

    /// The model that a request is for. If there is only one, any name stands for it.
    pub(super) fn resolve<'a>(&'a self, wanted: Wanted<'a>) -> Result<(usize, Which<'a>), NotServed> {
        let name = wanted.name.unwrap_or(&self.default);
        let (model, named) = match self.known(name) {
            Some(known) => known,
            None if self.models.len() == 1 => (0, None),
            None => return Err(self.unknown(name)),
        };
        Ok((model, wanted.version.or(named).into()))
    }

    /// The model of exactly this name, even if there is only one model.
    pub(super) fn exactly<'a>(&'a self, name: &'a str) -> Result<(usize, Which<'a>), NotServed> {
        let (model, version) = self.known(name).ok_or_else(|| self.unknown(name))?;
        Ok((model, version.into()))
    }

    fn known<'a>(&'a self, name: &'a str) -> Option<(usize, Option<&'a str>)> {
        if let Some((model, version)) = self.known.get(name) {
            return Some((*model, version.as_deref()));
        }
        let (name, version) = name.rsplit_once('/')?;
        self.known.get(name).map(|(model, _)| (*model, Some(version)))
    }

    fn unknown(&self, name: &str) -> NotServed {
        NotServed::UnknownModel { name: name.to_owned(), known: self.models.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{
        super::{Alias, Load, LoadWhen, Loaded, Source, SourceError},
        *,
    };

    struct Nowhere;

    impl Source for Nowhere {
        fn versions(&self) -> Result<Vec<String>, SourceError> {
            Ok(Vec::new())
        }

        fn load(&self, _: Load<'_>) -> Result<Loaded, SourceError> {
            Err("nothing is here".into())
        }
    }

    fn declared(name: &str, aliases: &[(&str, Option<&str>)]) -> Declared {
        let alias = |(name, version): &(&str, Option<&str>)| Alias {
            name: (*name).to_owned(),
            version: version.map(str::to_owned),
        };
        Declared {
            name: name.to_owned(),
            aliases: aliases.iter().map(alias).collect(),
            version: None,
            load: LoadWhen::Start,
            source: Arc::new(Nowhere),
        }
    }

    fn two() -> Names {
        let models = [declared("a", &[("org/a", None), ("stable", Some("1"))]), declared("b", &[])];
        Names::new(&models, Some("b")).unwrap()
    }

    #[test]
    fn names_versions_and_aliases_lead_to_a_model() {
        let names = two();
        for (name, version, expected) in [
            (None, None, (1, Which::Usual)),
            (None, Some("3"), (1, Which::Exactly("3"))),
            (Some("a"), None, (0, Which::Usual)),
            (Some("a"), Some("latest"), (0, Which::Latest)),
            (Some("a/2"), None, (0, Which::Exactly("2"))),
            (Some("a/2"), Some("3"), (0, Which::Exactly("3"))),
            (Some("a/latest"), None, (0, Which::Latest)),
            (Some("org/a"), None, (0, Which::Usual)),
            (Some("org/a/2"), None, (0, Which::Exactly("2"))),
            (Some("stable"), None, (0, Which::Exactly("1"))),
            (Some("stable"), Some("2"), (0, Which::Exactly("2"))),
        ] {
            assert_eq!(names.resolve(Wanted { name, version }), Ok(expected), "{name:?} {version:?}");
        }
    }

    #[test]
    fn several_models_answer_to_their_names_alone_and_one_to_any() {
        let unknown = |name: &str| NotServed::UnknownModel {
            name: name.to_owned(),
            known: vec!["a".to_owned(), "b".to_owned()],
        };
        for name in ["c", "", "A", "c/1", "org"] {
            assert_eq!(two().resolve(Wanted::named(name)), Err(unknown(name)));
        }
        let one = Names::single("a");
        for name in ["c", "", "org/c", "a"] {
            assert_eq!(one.resolve(Wanted::named(name)), Ok((0, Which::Usual)), "{name:?}");
        }
        assert_eq!(one.resolve(Wanted::named("a/2")), Ok((0, Which::Exactly("2"))));
        assert!(one.exactly("c").is_err());
    }

    #[test]
    fn a_name_stands_for_one_thing() {
        let twice = |names: &[Declared]| Names::new(names, None).unwrap_err();
        let cases = [
            [declared("a", &[]), declared("a", &[])],
            [declared("a", &[("b", None)]), declared("b", &[])],
            [declared("a", &[("b", None)]), declared("c", &[("b", Some("1"))])],
        ];
        for (case, name) in cases.iter().zip(["a", "b", "b"]) {
            assert_eq!(twice(case), DeclareError::Twice(name.to_owned()));
        }
        assert_eq!(twice(&[declared("a/1", &[])]), DeclareError::Name("a/1".to_owned()));
        assert_eq!(twice(&[]), DeclareError::Nothing);
        let default = Names::new(&[declared("a", &[])], Some("b")).unwrap_err();
        assert_eq!(default.to_string(), "default model `b` is not declared: expected `a`");
    }
}
