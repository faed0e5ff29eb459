//! One `[[ensembles]]` of a file: models that answer as one, step by step.

use std::sync::Arc;

use turbo_serve::models::{
    Alias, Declared,
    ensemble::{Does, Ensemble, PlanError, Step},
};

use super::{
    document::{At, Places, Section},
    model::{load_when, name_is_sound},
};

/// An ensemble as its section says.
pub(super) struct EnsembleConfig {
    pub(super) name: At<String>,
    pub(super) aliases: Vec<At<String>>,
    pub(super) declared: Declared,
    /// The models that its steps name.
    pub(super) models: Vec<At<String>>,
}

/// Most texts of one request by default: one that is retrieved from has many, and its members see a part at a time.
const MAX_CLIENT_BATCH_SIZE: usize = 1000;

/// How sure [`Does::Nearest`] is by default: what sentence embeddings are commonly trained with.
const SCALE: f64 = 20.0;

/// The ensemble of a section; `None` where something is wrong with it, which is told.
pub(super) fn ensemble(mut section: Section<'_>) -> Option<EnsembleConfig> {
    let name = section.required("name").filter(|name| name_is_sound(&section, name));
    let aliases = section.strings("aliases");
    let load = load_when(&mut section);
    let most = section.count("max_client_batch_size");
    if let Some(At { at, value: 0 }) = most {
        section.problem(at, "max_client_batch_size: expected at least 1, got 0");
    }
    let most = most.map_or(MAX_CLIENT_BATCH_SIZE, |most| most.value);
    let output = section.required("output");
    let sections = section.sections("steps");
    let declared = sections.len();
    let mut models = Vec::new();
    let steps: Vec<(Step, Places)> =
        sections.into_iter().filter_map(|section| step(section, &mut models)).collect();
    let places = section.places();
    let (name, output) = (name?, output?);
    let read = steps.len() == declared;
    let (steps, of_steps): (Vec<Step>, Vec<Places>) = steps.into_iter().unzip();
    let ensemble = read.then(|| Ensemble::new(&name.value, &steps, &output.value, most));
    let ensemble = match ensemble.transpose() {
        Ok(ensemble) => ensemble,
        Err(wrong) => {
            for PlanError { step, field, what } in wrong {
                let of = steps.iter().position(|declared| step.as_deref() == Some(&declared.name));
                let at = of.map_or(&places, |of| &of_steps[of]).of(field);
                section.problem(at, format_args!("{field}: {what}"));
            }
            None
        }
    };
    section.done(|_| None);
    let declared = Declared {
        name: name.value.clone(),
        aliases: aliases.iter().map(|alias| Alias { name: alias.value.clone(), version: None }).collect(),
        version: None,
        load,
        source: Arc::new(ensemble?),
    };
    Some(EnsembleConfig { name, aliases, declared, models })
}

/// A section `[[ensembles.steps]]`, and where its keys stand; the model that it names is added to `models`.
fn step(mut section: Section<'_>, models: &mut Vec<At<String>>) -> Option<(Step, Places)> {
    let name = section.required("name");
    let does = section.required("do").and_then(|does| {
        let known = ["embed", "retrieve", "rerank", "classify", "nearest", "mean"];
        if !known.contains(&does.value.as_str()) {
            let expected = known.join(", ");
            section.problem(does.at, format_args!("do: expected one of {expected}, got \"{}\"", does.value));
            return None;
        }
        self::does(&mut section, &does.value, models)
    });
    let places = section.places();
    // Of a step of which it is not known what it does, no key is wrong.
    if does.is_some() {
        section.done(|_| None);
    }
    Some((Step { name: name?.value, does: does? }, places))
}

/// What a step does, by the keys that belong to that.
fn does(section: &mut Section<'_>, does: &str, models: &mut Vec<At<String>>) -> Option<Does> {
    let mut model = |section: &mut Section<'_>| {
        let model = section.required("model")?;
        models.push(model.clone());
        Some(model.value)
    };
    let text = |section: &mut Section<'_>, key| section.required(key).map(|text| text.value);
    let prompt = |section: &mut Section<'_>, key| section.string(key).map(|text| text.value);
    // All keys are read before the first that is missing ends this.
    Some(match does {
        "embed" => {
            let (model, texts) = (model(section), text(section, "texts"));
            let prompt = prompt(section, "prompt");
            Does::Embed { model: model?, texts: texts?, prompt }
        }
        "retrieve" => {
            let (model, query, texts) = (model(section), text(section, "query"), text(section, "texts"));
            let keep = section.required_count("keep");
            let (query_prompt, texts_prompt) =
                (prompt(section, "query_prompt"), prompt(section, "texts_prompt"));
            let keep = keep?.value;
            Does::Retrieve { model: model?, query: query?, texts: texts?, keep, query_prompt, texts_prompt }
        }
        "rerank" => {
            let (model, query, texts) = (model(section), text(section, "query"), text(section, "texts"));
            Does::Rerank { model: model?, query: query?, texts: texts? }
        }
        "classify" => {
            let (model, texts) = (model(section), text(section, "texts"));
            Does::Classify { model: model?, texts: texts? }
        }
        "nearest" => {
            let (vectors, labels) = (text(section, "vectors"), section.texts("labels"));
            let scale = section.float("scale").map_or(SCALE, |scale| scale.value);
            Does::Nearest { vectors: vectors?, labels: labels?, scale: scale as f32 }
        }
        _ => Does::Mean { of: section.strings("of").into_iter().map(|of| of.value).collect() },
    })
}
