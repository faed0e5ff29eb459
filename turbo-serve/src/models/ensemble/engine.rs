//! An ensemble as an engine: its callers cannot tell it from a model.

use std::{collections::HashMap, sync::Arc, time::Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use turbo_models::{RowLens, ScoreFunction, Task};

use super::{
    labels::LabelVectors,
    plan::{Does, Kind, Plan, Read},
    run::{Run, Value},
};
use crate::{
    engine::{
        DecodeRequest, EngineError, EngineInfo, Health, Infer, InferRequest, InferResponse, Input, ModelInfo,
        OutputKind, Pending, PromptName, Prompts, Row, TokenizeRequest, Tokenized, Truncation, Usage,
    },
    models::{Served, Wanted, WeakModels, health::worst},
    tasks::{AT_ONCE, IfFull},
};

/// The logit of a text that was not retrieved: the least there is, so that its score is 0.
pub(super) const NOT_RETRIEVED: f32 = f32::MIN;

/// Steps over models of the same server.
pub(super) struct EnsembleEngine {
    plan: Plan,
    info: EngineInfo,
    /// For each step, the vectors of its labels; empty for steps without labels of their own.
    labels: Vec<LabelVectors>,
    models: WeakModels,
}

type Members = HashMap<String, Served>;

impl EnsembleEngine {
    /// An ensemble of this name over `members`, the models of its plan.
    ///
    /// # Errors
    /// If a member is not for what its step does.
    pub(super) fn new(
        name: &str,
        plan: Plan,
        max_client_batch_size: usize,
        members: &Members,
        models: WeakModels,
    ) -> Result<Self, String> {
        plan.steps.iter().try_for_each(|planned| fits(&planned.step.does, members))?;
        let labels = labels_of(&plan, plan.steps.len() - 1, members)?;
        let info = info(name, &plan, labels, max_client_batch_size, members);
        let texts = |does: &Does| match does {
            Does::Nearest { labels, .. } => labels.iter().map(|(_, text)| text.clone()).collect(),
            _ => Vec::new(),
        };
        let labels = plan.steps.iter().map(|planned| LabelVectors::new(texts(&planned.step.does))).collect();
        Ok(Self { plan, info, labels, models })
    }

    async fn answer(&self, request: InferRequest) -> Result<InferResponse, EngineError> {
        let started = Instant::now();
        if request.max_input_length.is_some() {
            let why =
                "each model of an ensemble counts its own tokens: inputs cannot be cut to a number of tokens";
            return Err(EngineError::InvalidInput { input: 0, why: why.to_owned() });
        }
        if request.instruction.is_some() {
            return Err(EngineError::NoInstruction);
        }
        let InferRequest {
            inputs, output, truncation, prompt_name, urgency, room, retries, continues, ..
        } = request;
        self.check(inputs.len(), output, prompt_name)?;
        // Leased before the first step, so that no member is unloaded between two steps.
        let mut members = self.members()?;
        // Nor is any engine stopped meanwhile. A part of a request that has begun is covered by that request.
        let begins = members.values().next().filter(|_| !continues);
        let _begun = begins.map(Served::begin).transpose()?;
        self.check_labels(&members)?;
        // The caller may retry, and then what a member has held would count a second time.
        let (attempt, room) = room.attempt();
        for member in members.values_mut() {
            *member = member.clone().urgent(urgency).held_in(room.clone());
        }
        let mut rows: Vec<Option<Row>> = vec![None; inputs.len()];
        let mut usage = Usage::default();
        let (groups, members) = (self.groups(inputs)?, &members);
        let mut done = stream::iter(groups.into_iter().enumerate())
            .map(|(nth, group)| async move {
                // A request that was accepted with its first query is not refused with a later one.
                let if_full = if nth == 0 { IfFull::Fails } else { IfFull::Waits };
                let done = self.run(&group, members, truncation, (if_full, retries)).await?;
                Ok::<_, EngineError>((group, done))
            })
            .buffered(AT_ONCE);
        while let Some((group, (value, took))) = done.try_next().await? {
            usage.characters += group.query.chars().count()
                + group.texts.iter().map(|text| text.chars().count()).sum::<usize>();
            usage.add_work(&took);
            for (place, row) in value.of.into_iter().zip(value.rows) {
                rows[group.inputs[place]] = Some(row);
            }
        }
        let width = self.info.model.labels.len();
        let unanswered = || Row { values: vec![NOT_RETRIEVED; width], row_len: width, tokens: 0 };
        let rows = rows.into_iter().map(|row| row.unwrap_or_else(unanswered)).collect();
        usage.timings.total = started.elapsed();
        attempt.answered();
        Ok(InferResponse { rows, usage })
    }

    async fn run(
        &self,
        group: &Group,
        members: &Members,
        truncation: Option<Truncation>,
        (if_full, retries): (IfFull, bool),
    ) -> Result<(Value, Usage), EngineError> {
        let Self { plan, labels, .. } = self;
        let Group { query, texts, inputs: numbers } = group;
        Run { plan, members, labels, query, texts, numbers, truncation, if_full, retries }.run().await
    }

    fn check(&self, got: usize, output: OutputKind, prompt_name: PromptName) -> Result<(), EngineError> {
        let (limit, task) = (self.info.max_client_batch_size, self.info.model.task);
        let dimensions = match output {
            OutputKind::Pooled { dimensions, .. } => dimensions,
            OutputKind::Tokens | OutputKind::Selected => {
                return Err(EngineError::NoSuchRows { task, rows: output.rows_name() });
            }
        };
        match (got, dimensions, prompt_name) {
            (0, ..) => Err(EngineError::Empty),
            (got, ..) if got > limit => Err(EngineError::TooManyInputs { got, limit }),
            (_, Some(got), _) => {
                let limit = self.info.model.rows.pooled.unwrap_or(1);
                if got == limit { Ok(()) } else { Err(EngineError::InvalidDimensions { got, limit }) }
            }
            (.., PromptName::Named(name)) => Err(EngineError::UnknownPrompt { name, known: Vec::new() }),
            _ => Ok(()),
        }
    }

    /// Checks that members loaded since the ensemble still have the labels that were reported.
    fn check_labels(&self, members: &Members) -> Result<(), EngineError> {
        let (told, last) = (&self.info.model.labels, self.plan.steps.len() - 1);
        let now = labels_of(&self.plan, last, members).map_err(EngineError::Backend)?;
        if now == *told || (now.len(), told.len()) == (1, 1) {
            return Ok(());
        }
        let why = "a model has other labels than when the ensemble was loaded: load the ensemble again";
        Err(EngineError::Backend(why.to_owned()))
    }

    /// A lease on every model of the plan.
    fn members(&self) -> Result<Members, EngineError> {
        let models = self.models.upgrade().ok_or(EngineError::Stopping)?;
        let lease = |name: &str| {
            let lease = models.find(Wanted::named(name));
            lease
                .map(|model| (name.to_owned(), model))
                .map_err(|error| EngineError::Backend(error.to_string()))
        };
        self.plan.models().into_iter().map(lease).collect()
    }

    /// The inputs in groups that are answered together: the texts of each query, or all texts where there is no query.
    fn groups(&self, inputs: Vec<Input>) -> Result<Vec<Group>, EngineError> {
        let mut groups: Vec<Group> = Vec::new();
        for (input, content) in inputs.into_iter().enumerate() {
            let (query, text) = match (self.plan.gives, content) {
                (Kind::Scores, Input::Pair(query, text)) => (query, text),
                (Kind::Labels, Input::Text(text)) => (String::new(), text),
                (gives, _) => {
                    let expected = if gives == Kind::Scores { "a query and a text" } else { "a text" };
                    let why = format!("this is an ensemble that reads {expected}, and nothing else");
                    return Err(EngineError::InvalidInput { input, why });
                }
            };
            match groups.iter_mut().find(|group| group.query == query) {
                Some(group) => group.add(input, text),
                None => groups.push(Group { query, texts: vec![text], inputs: vec![input] }),
            }
        }
        Ok(groups)
    }
}

/// The texts of one query, with the numbers of their inputs in the request.
struct Group {
    query: String,
    texts: Vec<String>,
    inputs: Vec<usize>,
}

impl Group {
    fn add(&mut self, input: usize, text: String) {
        self.inputs.push(input);
        self.texts.push(text);
    }
}

/// Checks that the member of a step is for what the step does, and has the prompts that the step names.
fn fits(does: &Does, members: &Members) -> Result<(), String> {
    let Some(name) = does.model() else { return Ok(()) };
    let model = &members[name].engine().info().model;
    let classes = (model.task == Task::SequenceClassification).then_some(model.labels.len());
    let (fits, expected) = match does {
        Does::Embed { .. } | Does::Retrieve { .. } => {
            (matches!(model.task, Task::Embedding { .. }), "an embedding model")
        }
        Does::Rerank { .. } => (classes == Some(1), "a sequence classifier with one label"),
        _ => (classes.is_some_and(|classes| classes > 1), "a sequence classifier with several labels"),
    };
    if !fits {
        let is_for = match classes {
            Some(labels) => format!("{} (labels: {labels})", model.task),
            None => model.task.to_string(),
        };
        return Err(format!("model `{name}` is for {is_for}, expected {expected}"));
    }
    match does.prompts().find(|prompt| !model.prompts.named.contains_key(*prompt)) {
        Some(prompt) => {
            let known: Vec<&str> = model.prompts.named.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Err(format!("model `{name}` has no prompt `{prompt}`: it has {known}"))
        }
        None => Ok(()),
    }
}

/// The labels of a step's result.
fn labels_of(plan: &Plan, place: usize, members: &Members) -> Result<Arc<[String]>, String> {
    let planned = &plan.steps[place];
    match &planned.step.does {
        Does::Nearest { labels, .. } => Ok(labels.iter().map(|(label, _)| label.clone()).collect()),
        Does::Mean { .. } => {
            let of = |read: &Read| match read {
                Read::Step(at) => labels_of(plan, *at, members),
                Read::Query | Read::Texts => unreachable!("a request has no logits"),
            };
            let all = planned.reads.iter().map(of).collect::<Result<Vec<_>, _>>()?;
            // Scores have a single label, whatever each model calls it.
            match all
                .iter()
                .find(|labels| labels.len() > 1 && **labels != all[0] || labels.len() != all[0].len())
            {
                Some(other) => {
                    let (first, other) = (all[0].join(", "), other.join(", "));
                    Err(format!(
                        "step `{}`: expected the same labels from all steps, got {first} and {other}",
                        planned.step.name
                    ))
                }
                None => Ok(Arc::clone(&all[0])),
            }
        }
        other => {
            let name = other.model().expect("other steps have a model");
            Ok(Arc::clone(&members[name].engine().info().model.labels))
        }
    }
}

fn info(
    name: &str,
    plan: &Plan,
    labels: Arc<[String]>,
    max_client_batch_size: usize,
    members: &Members,
) -> EngineInfo {
    // By their names, so that two loads say the same.
    let all = || plan.models().into_iter().map(|name| members[name].engine().info());
    let least = |of: fn(&EngineInfo) -> usize| all().map(of).min().unwrap_or(1);
    let any = all().next();
    EngineInfo {
        model: ModelInfo {
            model_id: format!("{name} ({})", plan.models().join(", ")),
            sha: None,
            name: name.to_owned(),
            dtype: any.map_or("float32", |any| any.model.dtype),
            device: any.map_or_else(|| "cpu".to_owned(), |any| any.model.device.clone()),
            task: Task::SequenceClassification,
            pair_score_function: ScoreFunction::Sigmoid,
            score_function: if labels.len() == 1 { ScoreFunction::Sigmoid } else { ScoreFunction::Softmax },
            rows: RowLens { pooled: Some(labels.len()), tokens: None, selected: None },
            labels,
            mask_token: None,
            prompts: Prompts::default(),
            takes_instruction: false,
            max_input_length: least(|info| info.model.max_input_length),
            vocab_size: 0,
            type_vocab_size: 0,
        },
        max_input_length: least(|info| info.max_input_length),
        max_batch_tokens: least(|info| info.max_batch_tokens),
        max_batch_requests: None,
        max_client_batch_size,
        max_concurrent_requests: least(|info| info.max_concurrent_requests),
        auto_truncate: all().all(|info| info.auto_truncate),
        tokenization_workers: 0,
        // Its members keep their own answers.
        cache_bytes: None,
        version: env!("CARGO_PKG_VERSION"),
    }
}

impl Infer for EnsembleEngine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn infer(&self, request: InferRequest) -> Pending<'_, InferResponse> {
        Box::pin(self.answer(request))
    }

    fn tokenize(&self, _: TokenizeRequest) -> Pending<'_, Vec<Tokenized>> {
        Box::pin(async { Err(EngineError::NoTokenizer) })
    }

    fn decode(&self, _: DecodeRequest) -> Pending<'_, Vec<String>> {
        Box::pin(async { Err(EngineError::NoTokenizer) })
    }

    /// Whether the members of the first wave have room; a request waits for the others. `true` where a member is not
    /// served: the request itself reports that.
    fn has_room(&self, inputs: usize) -> bool {
        let Ok(members) = self.members() else { return true };
        let first = self.plan.steps.iter().filter(|planned| planned.wave == 0);
        first.filter_map(|planned| planned.step.does.model()).all(|name| {
            let member = members[name].engine();
            member.has_room(inputs.min(member.info().max_client_batch_size))
        })
    }

    /// The worst health among the members; failing if one is not served.
    fn health(&self) -> Health {
        let Ok(members) = self.members() else { return Health::Failing };
        worst(members.values().map(|member| member.engine().health())).unwrap_or(Health::Ready)
    }
}
