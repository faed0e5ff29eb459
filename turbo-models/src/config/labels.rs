//! What the logits of a classifier mean: the labels in `config.json`, and how logits become scores.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::{ModelError, ScoreFunction, error::one_line, json::JsonObject};

/// Number of labels of a model whose file says nothing about them, as in the transformers library.
const DEFAULT_LABELS: u32 = 2;
/// Most labels that are numbered without being named; named labels are bounded by the names in the file.
const MOST_UNNAMED: u32 = 1 << 16;

/// The labels of a model's head, in the order of its logits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Labels {
    pub(crate) names: Vec<String>,
    /// How logits become the scores of a classifier.
    pub(crate) score_function: ScoreFunction,
    /// The score function that the file of a cross-encoder names, if any.
    pub(crate) activation: Option<ScoreClass>,
}

/// The Python class that a file of the sentence-transformers library names as a cross-encoder's score function. It is
/// looked up late: no other model needs to know what it does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScoreClass {
    file: PathBuf,
    field: &'static str,
    class: String,
}

/// What the sentence-transformers library adds to the file of a cross-encoder.
#[derive(Deserialize)]
struct SentenceTransformers {
    /// Path of a Python class.
    activation_fn: Option<String>,
}

impl Labels {
    /// Reads names and score functions. Invalid names are read as none: that stops a classifier, but no other model.
    pub(crate) fn read(json: &JsonObject) -> Result<Self, ModelError> {
        let names = names(json).unwrap_or_default();
        let score_function = score_function(json, names.len())?;
        Ok(Self { names, score_function, activation: asked_activation(json)? })
    }

    /// The only label of a model whose score comes from a module. Of the file's labels, only the score function that
    /// the file names is kept.
    pub(crate) fn one(of_file: &Self) -> Self {
        Self {
            names: vec!["LABEL_0".to_owned()],
            score_function: ScoreFunction::Sigmoid,
            activation: of_file.activation.clone(),
        }
    }
}

/// Reads `id2label`, or else numbers `num_labels` labels: at least one. If both are given and disagree, `num_labels`
/// counts, as in version 5 of the reference.
///
/// # Errors
/// [`ModelError`], naming the field.
pub(crate) fn names(json: &JsonObject) -> Result<Vec<String>, ModelError> {
    match json.get("id2label")? {
        _ if is_discriminator(json)? => Ok(vec!["REPLACED".to_owned()]),
        Some(named) if contradiction(json)?.is_none() => in_order(json, named),
        _ => numbered(json),
    }
}

/// The value of `num_labels` and the number of names, if both are given and differ.
pub(crate) fn contradiction(json: &JsonObject) -> Result<Option<(u32, usize)>, ModelError> {
    let names = json.get::<BTreeMap<String, Value>>("id2label")?.map(|names| names.len());
    let both = json.get::<u32>("num_labels")?.zip(names);
    Ok(both.filter(|(count, names)| *count as usize != *names))
}

/// Whether a token's only logit says that the token was replaced: such a model has no labels of its own, only the
/// default two.
fn is_discriminator(json: &JsonObject) -> Result<bool, ModelError> {
    let classes: Vec<String> = json.get("architectures")?.unwrap_or_default();
    Ok(classes.iter().any(|class| class == "ElectraForPreTraining"))
}

fn in_order(json: &JsonObject, named: BTreeMap<String, Value>) -> Result<Vec<String>, ModelError> {
    let mut names = vec![None; named.len()];
    for (id, name) in named {
        let place = id.parse().ok().and_then(|id: usize| names.get_mut(id));
        let place =
            place.ok_or_else(|| json.wrong("id2label", format!("{id:?} is not one of 0, 1, 2, …")))?;
        *place = Some(match name {
            Value::String(name) => name,
            // stars, grades
            Value::Number(name) => name.to_string(),
            other => return Err(json.wrong("id2label", one_line(format!("{other} is no label")))),
        });
    }
    let names: Option<Vec<String>> = names.into_iter().collect();
    match names {
        Some(names) if !names.is_empty() => Ok(names),
        _ => Err(json.wrong("id2label", "its keys are not 0, 1, 2, …")),
    }
}

fn numbered(json: &JsonObject) -> Result<Vec<String>, ModelError> {
    match json.get("num_labels")?.unwrap_or(DEFAULT_LABELS) {
        count @ 1..=MOST_UNNAMED => Ok((0..count).map(|index| format!("LABEL_{index}")).collect()),
        count => {
            Err(json
                .wrong("num_labels", format!("is {count}, expected at least 1 and at most {MOST_UNNAMED}")))
        }
    }
}

/// The score function that `problem_type` calls for, as in the pipeline of the transformers library; a single label is
/// right or wrong by itself.
fn score_function(json: &JsonObject, labels: usize) -> Result<ScoreFunction, ModelError> {
    let problem: Option<String> = json.get("problem_type")?;
    Ok(match problem.as_deref() {
        Some("regression") => ScoreFunction::Identity,
        Some("multi_label_classification") => ScoreFunction::Sigmoid,
        _ if labels == 1 => ScoreFunction::Sigmoid,
        _ => ScoreFunction::Softmax,
    })
}

/// The class that a cross-encoder's `config.json` names; later versions of the library write it to a file of their own.
fn asked_activation(json: &JsonObject) -> Result<Option<ScoreClass>, ModelError> {
    const OLD: &str = "sbert_ce_default_activation_function";
    const NEW: &str = "sentence_transformers";
    let (field, class) = match json.get::<SentenceTransformers>(NEW)?.and_then(|added| added.activation_fn) {
        Some(class) => (NEW, Some(class)),
        None => (OLD, json.get::<String>(OLD)?),
    };
    Ok(class.map(|class| ScoreClass::new(json, field, class)))
}

impl ScoreClass {
    /// The class that `field` of a file names.
    pub(crate) fn new(json: &JsonObject, field: &'static str, class: String) -> Self {
        Self { file: json.file().to_owned(), field, class }
    }

    /// What the class computes.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`].
    pub(crate) fn function(&self) -> Result<ScoreFunction, ModelError> {
        match self.class.rsplit('.').next() {
            Some("Sigmoid") => Ok(ScoreFunction::Sigmoid),
            Some("Identity") => Ok(ScoreFunction::Identity),
            Some("Softmax") => Ok(ScoreFunction::Softmax),
            _ => Err(ModelError::Unsupported {
                file: self.file.clone(),
                field: self.field,
                value: one_line(&self.class),
                supported: "Identity, Sigmoid, Softmax".to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: &str) -> Result<Labels, String> {
        read_with(config, Labels::read)
    }

    fn read_with<T>(config: &str, read: impl Fn(&JsonObject) -> Result<T, ModelError>) -> Result<T, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        let json = JsonObject::open(dir.path().join("config.json")).unwrap().unwrap();
        let prefix = format!("{}/", dir.path().display());
        read(&json).map_err(|error| error.to_string().replace(&prefix, ""))
    }

    #[test]
    fn labels_are_named_or_numbered() {
        let cases: [(&str, &[&str]); 7] = [
            ("{}", &["LABEL_0", "LABEL_1"]),
            (r#"{"id2label": {"0": 1, "1": 2}}"#, &["1", "2"]),
            (r#"{"num_labels": 1}"#, &["LABEL_0"]),
            (r#"{"id2label": {"1": "b", "0": "a", "2": "c"}}"#, &["a", "b", "c"]),
            (r#"{"num_labels": 2, "id2label": {"0": "a", "1": "b"}}"#, &["a", "b"]),
            (r#"{"num_labels": 3, "id2label": {"0": "a", "1": "b"}}"#, &["LABEL_0", "LABEL_1", "LABEL_2"]),
            (r#"{"architectures": ["ElectraForPreTraining"]}"#, &["REPLACED"]),
        ];
        for (config, expected) in cases {
            assert_eq!(read(config).unwrap().names, expected);
        }
        let many: String = (0..12).map(|id| format!(r#","{id}": "name {id}""#)).collect();
        let many = read(&format!(r#"{{"id2label": {{{}}}}}"#, &many[1..])).unwrap();
        assert_eq!(many.names[10], "name 10", "in the order of numbers, not of letters");
    }

    /// Only if they are needed; everything else can be read.
    #[test]
    fn odd_labels_are_refused() {
        let cases = [
            (r#"{"id2label": {}}"#, "id2label: its keys are not 0, 1, 2, …"),
            (r#"{"id2label": {"0": "a", "00": "b"}}"#, "id2label: its keys are not 0, 1, 2, …"),
            (r#"{"id2label": {"1": "a"}}"#, r#"id2label: "1" is not one of 0, 1, 2, …"#),
            (r#"{"id2label": {"x": "a"}}"#, r#"id2label: "x" is not one of 0, 1, 2, …"#),
            (r#"{"id2label": {"0": ["a"]}}"#, r#"id2label: ["a"] is no label"#),
            (r#"{"id2label": {"0": null}}"#, "id2label: null is no label"),
            (r#"{"num_labels": 0}"#, "num_labels: is 0, expected at least 1 and at most 65536"),
            (
                r#"{"num_labels": 4294967295}"#,
                "num_labels: is 4294967295, expected at least 1 and at most 65536",
            ),
        ];
        for (config, why) in cases {
            assert_eq!(read_with(config, names).unwrap_err(), format!("config.json: {why}"));
            assert_eq!(read(config).unwrap().names, [""; 0], "{config}");
        }
    }

    #[test]
    fn scores_are_what_the_file_asks_for() {
        use ScoreFunction::{Identity, Sigmoid, Softmax};
        let cases = [
            ("{}", Softmax, None),
            (r#"{"num_labels": 1}"#, Sigmoid, None),
            (r#"{"problem_type": "single_label_classification"}"#, Softmax, None),
            (r#"{"problem_type": "multi_label_classification"}"#, Sigmoid, None),
            (r#"{"problem_type": "regression", "num_labels": 1}"#, Identity, None),
            (r#"{"sentence_transformers": {"version": "4.1.0"}}"#, Softmax, None),
            (
                r#"{"num_labels": 3, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}"#,
                Softmax,
                Some(Identity),
            ),
            (
                r#"{"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}"#,
                Softmax,
                Some(Sigmoid),
            ),
        ];
        for (config, of_a_classifier, of_a_cross_encoder) in cases {
            let labels = read(config).unwrap();
            let expected = (of_a_classifier, of_a_cross_encoder);
            let asked = labels.activation.map(|class| class.function().unwrap());
            assert_eq!((labels.score_function, asked), expected, "{config}");
        }
        let unknown = r#"{"sentence_transformers": {"activation_fn": "torch.nn.Mish"}}"#;
        let expected =
            r#"config.json: sentence_transformers is "torch.nn.Mish", supported: Identity, Sigmoid, Softmax"#;
        let function = |json: &JsonObject| asked_activation(json)?.expect("one is named").function();
        assert_eq!(read_with(unknown, function).unwrap_err(), expected);
        assert!(read(unknown).is_ok(), "nobody may need it");
    }
}
