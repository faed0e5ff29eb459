//! Puts declared steps into an order in which each step's inputs are computed before it, or reports all errors in them.
//! Pure: no model is consulted.

use std::{collections::HashMap, fmt};

/// One step of an ensemble, as it is declared. It reads [`QUERY`], [`TEXTS`] or the result of another step, by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The name by which other steps refer to its result.
    pub name: String,
    /// What it does.
    pub does: Does,
}

/// The query of a request.
pub const QUERY: &str = "request.query";
/// The texts of a request.
pub const TEXTS: &str = "request.texts";

/// What a step does, with which model.
#[derive(Clone, Debug, PartialEq)]
pub enum Does {
    /// Gives each text a vector of norm 1.
    Embed {
        /// An embedding model.
        model: String,
        /// What it reads.
        texts: String,
        /// The model's prompt that is put before the texts.
        prompt: Option<String>,
    },
    /// Keeps the texts that are nearest to the query.
    Retrieve {
        /// An embedding model.
        model: String,
        /// The query that the texts should be near to.
        query: String,
        /// The texts that it chooses from.
        texts: String,
        /// How many it keeps.
        keep: usize,
        /// The model's prompt for the query.
        query_prompt: Option<String>,
        /// The model's prompt for the texts.
        texts_prompt: Option<String>,
    },
    /// Scores how well each text fits the query.
    Rerank {
        /// A sequence classifier with one label.
        model: String,
        /// The query that the texts should fit.
        query: String,
        /// What is scored.
        texts: String,
    },
    /// Gives each text a logit per label.
    Classify {
        /// A sequence classifier with several labels.
        model: String,
        /// What is classified.
        texts: String,
    },
    /// Gives each vector a logit per label: its cosine to the vector of a text that stands for the label, times `scale`.
    Nearest {
        /// A step that embeds; its model embeds these texts, too.
        vectors: String,
        /// Labels, and the text that stands for each.
        labels: Vec<(String, String)>,
        /// The larger it is, the higher the score of the best label.
        scale: f32,
    },
    /// The mean of the logits of several steps, for the texts that all of them have.
    Mean {
        /// Steps that give the same: scores, or logits of the same labels.
        of: Vec<String>,
    },
}

/// The type of a step's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One text.
    Query,
    /// Texts.
    Texts,
    /// A vector per text.
    Vectors,
    /// A logit per text.
    Scores,
    /// A logit per label, for each text.
    Labels,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Query => "a query",
            Self::Texts => "texts",
            Self::Vectors => "vectors",
            Self::Scores => "scores",
            Self::Labels => "labels",
        })
    }
}

/// What is wrong with a declaration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{field}: {what}", .step.as_ref().map(|step| format!("step `{step}`: ")).unwrap_or_default())]
pub struct PlanError {
    /// The step that is wrong; `None`: the ensemble as a whole.
    pub step: Option<String>,
    /// The field that is wrong.
    pub field: &'static str,
    /// What is wrong with it, and what was expected.
    pub what: String,
}

/// Steps in an order in which they can run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    /// Wave by wave; the last is the result.
    pub(super) steps: Vec<Planned>,
    /// What the result is.
    pub(super) gives: Kind,
}

/// A step, with the places of its inputs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Planned {
    pub(super) step: Step,
    /// Where each input comes from, in the order of [`Does::reads`].
    pub(super) reads: Vec<Read>,
    /// Steps of the same wave read only results of earlier waves, and run concurrently.
    pub(super) wave: usize,
}

/// Where a step's input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Query,
    Texts,
    /// The result of the step in this place.
    Step(usize),
}

impl Does {
    /// Its inputs: the field, the name in it, and the type that it must have; `None` for a mean, whose inputs only have
    /// to be of the same type.
    fn reads(&self) -> Vec<(&'static str, &str, Option<Kind>)> {
        match self {
            Self::Embed { texts, .. } | Self::Classify { texts, .. } => {
                vec![("texts", texts, Some(Kind::Texts))]
            }
            Self::Retrieve { query, texts, .. } | Self::Rerank { query, texts, .. } => {
                vec![("query", query, Some(Kind::Query)), ("texts", texts, Some(Kind::Texts))]
            }
            Self::Nearest { vectors, .. } => vec![("vectors", vectors, Some(Kind::Vectors))],
            Self::Mean { of } => of.iter().map(|of| ("of", of.as_str(), None)).collect(),
        }
    }

    /// The type of its result, if that does not depend on its inputs.
    fn gives(&self) -> Option<Kind> {
        match self {
            Self::Embed { .. } => Some(Kind::Vectors),
            Self::Retrieve { .. } => Some(Kind::Texts),
            Self::Rerank { .. } => Some(Kind::Scores),
            Self::Classify { .. } | Self::Nearest { .. } => Some(Kind::Labels),
            Self::Mean { .. } => None,
        }
    }

    /// The model that it names.
    pub(super) fn model(&self) -> Option<&str> {
        match self {
            Self::Embed { model, .. }
            | Self::Retrieve { model, .. }
            | Self::Rerank { model, .. }
            | Self::Classify { model, .. } => Some(model),
            Self::Nearest { .. } | Self::Mean { .. } => None,
        }
    }

    /// The prompts of its model that it names.
    pub(super) fn prompts(&self) -> impl Iterator<Item = &str> {
        let named = match self {
            Self::Embed { prompt, .. } => [prompt.as_deref(), None],
            Self::Retrieve { query_prompt, texts_prompt, .. } => {
                [query_prompt.as_deref(), texts_prompt.as_deref()]
            }
            _ => [None, None],
        };
        named.into_iter().flatten()
    }

    /// What is wrong with its own numbers and lists, if anything, whatever its inputs are.
    fn mistake(&self) -> Option<(&'static str, String)> {
        let again = |names: Vec<&String>| {
            let is_again = |&at: &usize| names[..at].contains(&names[at]);
            let at = (0..names.len()).find(is_again)?;
            Some(format!("expected each once, but `{}` is there twice", names[at]))
        };
        match self {
            Self::Retrieve { keep: 0, .. } => Some(("keep", "expected at least 1, got 0".to_owned())),
            Self::Nearest { labels, .. } if labels.len() < 2 => {
                Some(("labels", format!("expected at least 2 labels, got {}", labels.len())))
            }
            Self::Nearest { scale, .. } if !(scale.is_finite() && *scale > 0.0) => {
                Some(("scale", format!("expected a number above 0, got {scale}")))
            }
            Self::Mean { of } if of.len() < 2 => {
                Some(("of", format!("expected at least 2 steps, got {}", of.len())))
            }
            Self::Nearest { labels, .. } => {
                again(labels.iter().map(|(label, _)| label).collect()).map(|what| ("labels", what))
            }
            Self::Mean { of } => again(of.iter().collect()).map(|what| ("of", what)),
            _ => None,
        }
    }
}

impl Plan {
    /// An order of `steps` in which the last gives `output`.
    ///
    /// # Errors
    /// All errors in them: unknown or repeated names, types that do not fit, cycles, unused steps.
    pub(super) fn new(steps: &[Step], output: &str) -> Result<Self, Vec<PlanError>> {
        let declared = Declared::new(steps)?;
        let mut wrong = declared.wrong_in_themselves();
        let order =
            declared.order(output).map_err(|error| [std::mem::take(&mut wrong), vec![error]].concat())?;
        let planned = declared.planned(&order, &mut wrong);
        let used: Vec<&str> = planned.iter().map(|(planned, _)| planned.step.name.as_str()).collect();
        let unused = steps.iter().filter(|step| !used.contains(&step.name.as_str()));
        wrong.extend(unused.map(|step| PlanError {
            step: Some(step.name.clone()),
            field: "name",
            what: format!("no step on the way to `{output}` reads it"),
        }));
        let gives = planned.last().map_or(Kind::Texts, |(_, kind)| *kind);
        let reads_query = planned.iter().any(|(planned, _)| planned.reads.contains(&Read::Query));
        let of_the_whole = |what| PlanError { step: None, field: "output", what };
        match gives {
            Kind::Scores => {}
            Kind::Labels if reads_query => wrong.push(of_the_whole(format!(
                "`{output}` gives labels, and requests for labels have no query: no step may read `{QUERY}`"
            ))),
            Kind::Labels => {}
            // If the output step is itself wrong, its type is not known.
            other if !wrong.iter().any(|it| it.step.as_deref() == Some(output)) => {
                wrong.push(of_the_whole(format!("expected scores or labels, `{output}` gives {other}")));
            }
            _ => {}
        }
        if wrong.is_empty() {
            Ok(Self { steps: planned.into_iter().map(|(planned, _)| planned).collect(), gives })
        } else {
            Err(wrong)
        }
    }

    /// The models that its steps name, each once.
    pub(super) fn models(&self) -> Vec<&str> {
        let mut models: Vec<&str> =
            self.steps.iter().filter_map(|planned| planned.step.does.model()).collect();
        models.sort_unstable();
        models.dedup();
        models
    }

    /// Whether a step chooses among all texts of a request.
    pub(super) fn retrieves(&self) -> bool {
        self.steps.iter().any(|planned| matches!(planned.step.does, Does::Retrieve { .. }))
    }
}

/// Steps by their names.
struct Declared<'a> {
    steps: &'a [Step],
    places: HashMap<&'a str, usize>,
}

impl<'a> Declared<'a> {
    fn new(steps: &'a [Step]) -> Result<Self, Vec<PlanError>> {
        let (mut places, mut wrong) = (HashMap::new(), Vec::new());
        for (place, step) in steps.iter().enumerate() {
            let what = if step.name.is_empty() || step.name.contains('.') {
                "expected a name without `.`"
            } else if places.insert(step.name.as_str(), place).is_some() {
                "another step has this name"
            } else {
                continue;
            };
            wrong.push(PlanError { step: Some(step.name.clone()), field: "name", what: what.to_owned() });
        }
        if wrong.is_empty() { Ok(Self { steps, places }) } else { Err(wrong) }
    }

    fn wrong_in_themselves(&self) -> Vec<PlanError> {
        let wrong = |step: &Step| {
            let (field, what) = step.does.mistake()?;
            Some(PlanError { step: Some(step.name.clone()), field, what })
        };
        self.steps.iter().filter_map(wrong).collect()
    }

    /// The steps that `output` needs, with their waves, each after those that it reads.
    fn order(&self, output: &str) -> Result<Vec<(usize, usize)>, PlanError> {
        let Some(&output) = self.places.get(output) else {
            let what = format!("no step `{output}`: expected one of {}", self.names());
            return Err(PlanError { step: None, field: "output", what });
        };
        let mut walk = Walk { declared: self, way: Vec::new(), waves: Vec::new() };
        walk.visit(output)?;
        walk.waves.sort_by_key(|(_, wave)| *wave);
        Ok(walk.waves)
    }

    fn names(&self) -> String {
        self.steps.iter().map(|step| format!("`{}`", step.name)).collect::<Vec<_>>().join(", ")
    }

    fn unknown(&self, step: &Step, field: &'static str, name: &str) -> PlanError {
        let what = format!("no step `{name}`: expected `{QUERY}`, `{TEXTS}` or one of {}", self.names());
        PlanError { step: Some(step.name.clone()), field, what }
    }

    /// These steps with their inputs and result types; errors are added to `wrong`.
    fn planned(&self, order: &[(usize, usize)], wrong: &mut Vec<PlanError>) -> Vec<(Planned, Kind)> {
        let mut planned: Vec<(Planned, Kind)> = Vec::new();
        for &(place, wave) in order {
            let step = &self.steps[place];
            let (mut reads, mut kinds) = (Vec::new(), Vec::new());
            for (field, name, expected) in step.does.reads() {
                let read = match name {
                    QUERY => Read::Query,
                    TEXTS => Read::Texts,
                    name => {
                        let at = order.iter().position(|&(place, _)| self.steps[place].name == name);
                        Read::Step(at.expect("the walk has found it"))
                    }
                };
                let got = match read {
                    Read::Query => Kind::Query,
                    Read::Texts => Kind::Texts,
                    Read::Step(at) => planned[at].1,
                };
                if let Some(expected) = expected.filter(|&expected| expected != got) {
                    let what = format!("expected {expected}, `{name}` gives {got}");
                    wrong.push(PlanError { step: Some(step.name.clone()), field, what });
                }
                reads.push(read);
                kinds.push(got);
            }
            let alike =
                kinds.iter().all(|kind| *kind == kinds[0] && matches!(kind, Kind::Scores | Kind::Labels));
            if step.does.gives().is_none() && !alike {
                let got = kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let what = format!("expected scores from all or labels from all, got {got}");
                wrong.push(PlanError { step: Some(step.name.clone()), field: "of", what });
            }
            let gives = step.does.gives().unwrap_or(kinds.first().copied().unwrap_or(Kind::Scores));
            planned.push((Planned { step: step.clone(), reads, wave }, gives));
        }
        planned
    }
}

/// A depth-first walk from the output to its inputs.
struct Walk<'a> {
    declared: &'a Declared<'a>,
    /// The path from the output to the current step.
    way: Vec<usize>,
    /// Visited steps with their waves: one more than the greatest wave among their inputs.
    waves: Vec<(usize, usize)>,
}

impl Walk<'_> {
    /// The wave of the step in this place.
    fn visit(&mut self, place: usize) -> Result<usize, PlanError> {
        if let Some((_, wave)) = self.waves.iter().find(|(visited, _)| *visited == place) {
            return Ok(*wave);
        }
        let step = &self.declared.steps[place];
        if let Some(begin) = self.way.iter().position(|&on_the_way| on_the_way == place) {
            let circle = self.way[begin..].iter().chain([&place]);
            let names: Vec<&str> = circle.map(|&place| self.declared.steps[place].name.as_str()).collect();
            let what = format!("steps wait for each other: {}", names.join(" reads "));
            return Err(PlanError { step: Some(step.name.clone()), field: "name", what });
        }
        self.way.push(place);
        let mut wave = 0;
        for (field, name, _) in step.does.reads() {
            if name == QUERY || name == TEXTS {
                continue;
            }
            let &read =
                self.declared.places.get(name).ok_or_else(|| self.declared.unknown(step, field, name))?;
            wave = wave.max(self.visit(read)? + 1);
        }
        self.way.pop();
        self.waves.push((place, wave));
        Ok(wave)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn step(name: &str, does: Does) -> Step {
        Step { name: name.to_owned(), does }
    }

    fn embed(texts: &str) -> Does {
        Does::Embed { model: "e".to_owned(), texts: texts.to_owned(), prompt: None }
    }

    fn retrieve(texts: &str, keep: usize) -> Does {
        Does::Retrieve {
            model: "e".to_owned(),
            query: QUERY.to_owned(),
            texts: texts.to_owned(),
            keep,
            query_prompt: None,
            texts_prompt: None,
        }
    }

    fn rerank(query: &str, texts: &str) -> Does {
        Does::Rerank { model: "r".to_owned(), query: query.to_owned(), texts: texts.to_owned() }
    }

    fn classify(texts: &str) -> Does {
        Does::Classify { model: "c".to_owned(), texts: texts.to_owned() }
    }

    fn nearest(vectors: &str, labels: &[&str], scale: f32) -> Does {
        let labels = labels.iter().map(|&label| (label.to_owned(), label.to_owned())).collect();
        Does::Nearest { vectors: vectors.to_owned(), labels, scale }
    }

    fn mean(of: &[&str]) -> Does {
        Does::Mean { of: of.iter().map(|&of| of.to_owned()).collect() }
    }

    #[test]
    fn steps_stand_behind_what_they_read_whatever_their_order_in_the_file() {
        let steps = [
            step("both", mean(&["first", "second"])),
            step("second", rerank(QUERY, "near")),
            step("near", retrieve("wide", 5)),
            step("first", rerank(QUERY, "near")),
            step("wide", retrieve(TEXTS, 50)),
        ];
        let plan = Plan::new(&steps, "both").unwrap();
        let order: Vec<_> = plan.steps.iter().map(|it| (it.step.name.as_str(), it.wave)).collect();
        assert_eq!(order, [("wide", 0), ("near", 1), ("first", 2), ("second", 2), ("both", 3)]);
        assert_eq!(plan.steps[2].reads, [Read::Query, Read::Step(1)]);
        assert_eq!((plan.gives, plan.models()), (Kind::Scores, vec!["e", "r"]));
        let labels = [step("v", embed(TEXTS)), step("l", nearest("v", &["a", "b"], 20.0))];
        assert_eq!(Plan::new(&labels, "l").unwrap().gives, Kind::Labels);
    }

    #[test]
    fn what_need_not_wait_is_in_one_wave() {
        let chain = |name: &str| {
            let wide = format!("{name} wide");
            [step(name, rerank(QUERY, &wide)), step(&wide, retrieve(TEXTS, 9))]
        };
        let steps =
            [chain("a"), chain("b"), [step("m", mean(&["a", "b", "c"])), step("c", rerank(QUERY, TEXTS))]];
        let plan = Plan::new(&steps.concat(), "m").unwrap();
        let order: Vec<_> = plan.steps.iter().map(|it| (it.step.name.as_str(), it.wave)).collect();
        assert_eq!(order, [("a wide", 0), ("b wide", 0), ("c", 0), ("a", 1), ("b", 1), ("m", 2)]);
        assert_eq!(plan.steps[5].reads, [Read::Step(3), Read::Step(4), Read::Step(2)]);
    }

    #[test]
    fn what_cannot_be_done_is_told() {
        let near = || step("near", retrieve(TEXTS, 5));
        let circle =
            [step("a", rerank(QUERY, "b")), step("b", retrieve("c", 1)), step("c", retrieve("b", 1))];
        for (steps, output, expected) in [
            (&[near()][..], "x", "output: no step `x`: expected one of `near`"),
            (&[near()], "near", "output: expected scores or labels, `near` gives texts"),
            (&[near(), near()], "near", "step `near`: name: another step has this name"),
            (&[step("a.b", embed(TEXTS))], "a.b", "step `a.b`: name: expected a name without `.`"),
            (
                &[step("r", rerank(QUERY, "nera")), near()],
                "r",
                "step `r`: texts: no step `nera`: expected `request.query`, `request.texts` or one of `r`, `near`",
            ),
            (
                &[step("r", rerank(TEXTS, TEXTS))],
                "r",
                "step `r`: query: expected a query, `request.texts` gives texts",
            ),
            (
                &[step("v", embed(TEXTS)), step("r", rerank(QUERY, "v"))],
                "r",
                "step `r`: texts: expected texts, `v` gives vectors",
            ),
            (&circle, "a", "step `b`: name: steps wait for each other: b reads c reads b"),
            (
                &[step("r", rerank(QUERY, TEXTS)), near()],
                "r",
                "step `near`: name: no step on the way to `r` reads it",
            ),
            (
                &[near(), step("c", classify("near"))],
                "c",
                "output: `c` gives labels, and requests for labels have no query: no step may read `request.query`",
            ),
            (
                &[step("c", classify(TEXTS)), step("r", rerank(QUERY, TEXTS)), step("m", mean(&["c", "r"]))],
                "m",
                "step `m`: of: expected scores from all or labels from all, got labels, scores",
            ),
            (
                &[step("c", classify(TEXTS)), step("m", mean(&["c"]))],
                "m",
                "step `m`: of: expected at least 2 steps, got 1",
            ),
            (
                &[step("near", retrieve(TEXTS, 0)), step("r", rerank(QUERY, "near"))],
                "r",
                "step `near`: keep: expected at least 1, got 0",
            ),
            (
                &[step("v", embed(TEXTS)), step("l", nearest("v", &["a"], 20.0))],
                "l",
                "step `l`: labels: expected at least 2 labels, got 1",
            ),
            (
                &[step("v", embed(TEXTS)), step("l", nearest("v", &["a", "b", "a"], 20.0))],
                "l",
                "step `l`: labels: expected each once, but `a` is there twice",
            ),
            (
                &[step("c", classify(TEXTS)), step("m", mean(&["c", "c"]))],
                "m",
                "step `m`: of: expected each once, but `c` is there twice",
            ),
            (
                &[step("v", embed(TEXTS)), step("l", nearest("v", &["a", "b"], f32::NAN))],
                "l",
                "step `l`: scale: expected a number above 0, got NaN",
            ),
        ] {
            let wrong: Vec<_> =
                Plan::new(steps, output).unwrap_err().iter().map(ToString::to_string).collect();
            assert_eq!(wrong[0], expected);
        }
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let steps = [
            step("v", embed("near")),
            step("near", retrieve(TEXTS, 0)),
            step("l", nearest("near", &[], 1.0)),
            step("m", mean(&["v", "l"])),
        ];
        let wrong = Plan::new(&steps, "m").unwrap_err();
        assert_eq!(wrong.iter().map(|it| it.field).collect::<Vec<_>>(), ["keep", "labels", "vectors", "of"]);
    }

    /// Rankers, whose mean is the result, over chains of retrievals. Each retrieval reads one of a greater number, or
    /// the request where there is none of that number. Retrievals that no step reads are left out.
    fn sound(retrievals: &[usize], rankers: &[usize]) -> Vec<Step> {
        let read = |number: usize| match number < retrievals.len() {
            true => format!("near {number}"),
            false => TEXTS.to_owned(),
        };
        let mut is_read: Vec<bool> = (0..retrievals.len()).map(|near| rankers.contains(&near)).collect();
        for (near, more) in retrievals.iter().enumerate() {
            if let (true, Some(next)) = (is_read[near], is_read.get_mut(near + 1 + more)) {
                *next = true;
            }
        }
        let near = |(near, more): (usize, &usize)| step(&read(near), retrieve(&read(near + 1 + more), 1));
        let retrievals = retrievals.iter().enumerate().filter(|(near, _)| is_read[*near]).map(near);
        let names: Vec<String> = (0..rankers.len()).map(|ranker| format!("ranked {ranker}")).collect();
        let ranked = names.iter().zip(rankers).map(|(name, &near)| step(name, rerank(QUERY, &read(near))));
        let mean = mean(&names.iter().map(String::as_str).collect::<Vec<_>>());
        retrievals.chain(ranked).chain([step("mean", mean)]).collect()
    }

    proptest! {
        #[test]
        fn what_is_sound_is_planned_and_steps_find_what_they_read(
            steps in (vec(0..4_usize, 0..6), vec(0..8_usize, 2..4))
                .prop_map(|(retrievals, rankers)| sound(&retrievals, &rankers))
                .prop_shuffle(),
        ) {
            let plan = Plan::new(&steps, "mean").unwrap();
            prop_assert_eq!(plan.steps.len(), steps.len());
            prop_assert_eq!(&plan.steps.last().unwrap().step.name, "mean");
            for planned in &plan.steps {
                let reads = planned.step.does.reads();
                prop_assert_eq!(reads.len(), planned.reads.len());
                for ((_, name, _), read) in reads.iter().zip(&planned.reads) {
                    match read {
                        Read::Query => prop_assert_eq!(*name, QUERY),
                        Read::Texts => prop_assert_eq!(*name, TEXTS),
                        Read::Step(at) => {
                            prop_assert_eq!(*name, &plan.steps[*at].step.name);
                            prop_assert!(plan.steps[*at].wave < planned.wave);
                        }
                    }
                }
            }
        }
    }
}
