//! Models that answer as one, over members whose answers are known: each text of the fake models is a number.

use std::{
    future::Future,
    ops::Range,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::sync::Semaphore;
use turbo_serve::{
    engine::{
        AnswerRoom, DecodeRequest, EngineError, EngineInfo, Health, HoldAnswers, Infer, InferRequest,
        InferResponse, Input, ModelInfo, OutputKind, Pending, Pooling, Prompts, Row, RowLens, Task, Timings,
        TokenizeRequest, Tokenized, Usage,
    },
    models::{
        Declared, Load, LoadWhen, Loaded, Models, Source, SourceError, Stop, Wanted,
        ensemble::{Does, Ensemble, QUERY, Step, TEXTS},
    },
};

use crate::fake::{info, run};

/// What a fake member computes.
#[derive(Clone, Copy, PartialEq)]
enum Member {
    /// The unit vector at an angle of that number of degrees.
    Embedder,
    /// The product of both numbers, plus this.
    Ranker(f32),
    /// The number for the first label, minus it for the second.
    Classifier,
}

/// Most inputs of a request to a member.
const MOST: usize = 3;

struct Fake {
    member: Member,
    info: EngineInfo,
    seen: Arc<Seen>,
}

/// What all members have seen.
#[derive(Default)]
struct Seen {
    inputs: AtomicUsize,
    /// Requests that are being answered now, and the most that ever were.
    inside: AtomicUsize,
    most_inside: AtomicUsize,
    /// While set, no request is answered.
    closed: AtomicBool,
    /// The number of requests to rankers, and the range of them that are refused for want of slots.
    ranked: AtomicUsize,
    full: Mutex<Range<usize>>,
    /// Slots for this many inputs, if set.
    room: OnceLock<Semaphore>,
    /// Set when a member was stopped.
    stopped: AtomicBool,
}

/// Room for answers of any size: the values that it holds.
#[derive(Debug, Default)]
struct Holder(AtomicUsize);

impl HoldAnswers for Holder {
    fn hold(&self, values: usize) -> Result<(), EngineError> {
        self.0.fetch_add(values, SeqCst);
        Ok(())
    }

    fn let_go(&self, values: usize) {
        self.0.fetch_sub(values, SeqCst);
    }
}

struct Shelf {
    name: &'static str,
    member: Member,
    labels: Arc<Mutex<Vec<&'static str>>>,
    seen: Arc<Seen>,
}

impl Source for Shelf {
    fn versions(&self) -> Result<Vec<String>, SourceError> {
        Ok(vec!["1".to_owned()])
    }

    fn load(&self, _: Load<'_>) -> Result<Loaded, SourceError> {
        self.seen.stopped.store(false, SeqCst);
        let labels = self.labels.lock().unwrap().clone();
        let member = self.member;
        let task =
            if member == Member::Embedder { Pooling::Mean.into() } else { Task::SequenceClassification };
        let info = info(self.name);
        let model = ModelInfo {
            task,
            labels: labels.iter().map(|&label| label.to_owned()).collect(),
            prompts: Prompts {
                named: [("query".to_owned(), "find: ".to_owned())].into(),
                ..Prompts::default()
            },
            rows: RowLens { pooled: Some(2), tokens: None, selected: None },
            ..info.model.clone()
        };
        let info = EngineInfo { model, max_client_batch_size: MOST, ..info };
        let fake = Arc::new(Fake { member, info, seen: Arc::clone(&self.seen) });
        Ok(Loaded { stop: Some(Arc::clone(&fake) as Arc<dyn Stop>), ..fake.into() })
    }
}

impl Fake {
    /// An embedder takes no empty text, and a ranker no `-0`.
    fn refuses(&self, input: &Input) -> bool {
        match (self.member, input) {
            (Member::Embedder, Input::Text(text)) => text.is_empty(),
            (Member::Ranker(_), Input::Pair(_, text)) => text == "-0",
            _ => false,
        }
    }

    fn row(&self, input: &Input) -> Row {
        let number = |text: &str| text.parse::<f32>().unwrap();
        let values = match (self.member, input) {
            (Member::Embedder, Input::Text(text)) => {
                let angle = number(text).to_radians();
                vec![angle.cos(), angle.sin()]
            }
            (Member::Ranker(more), Input::Pair(query, text)) => vec![number(query) * number(text) + more],
            (Member::Classifier, Input::Text(text)) => vec![number(text), -number(text)],
            (_, other) => panic!("{} was asked {other:?}", self.info.model.name),
        };
        Row { row_len: values.len(), values, tokens: 2 }
    }
}

impl Stop for Fake {
    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async { self.seen.stopped.store(true, SeqCst) })
    }

    fn abandon(&self) {
        self.seen.stopped.store(true, SeqCst);
    }
}

impl Infer for Fake {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn infer(&self, request: InferRequest) -> Pending<'_, InferResponse> {
        Box::pin(async move {
            if self.seen.stopped.load(SeqCst) {
                return Err(EngineError::Stopping);
            }
            let full = || EngineError::Overloaded { retry_after: Duration::from_secs(60) };
            let ranks = matches!(self.member, Member::Ranker(_));
            if ranks && self.seen.full.lock().unwrap().contains(&self.seen.ranked.fetch_add(1, SeqCst)) {
                return Err(full());
            }
            let InferRequest { inputs, output, room: answers, .. } = request;
            answers.hold(inputs.len())?;
            let room = self.seen.room.get().map(|room| room.try_acquire_many(inputs.len() as u32));
            let _taken = room.transpose().map_err(|_| full())?;
            assert!((1..=MOST).contains(&inputs.len()), "{} inputs", inputs.len());
            if let Some(input) = inputs.iter().position(|input| self.refuses(input)) {
                return Err(EngineError::EmptyInput { input });
            }
            assert_eq!(
                matches!(output, OutputKind::Pooled { normalize: true, .. }),
                self.member == Member::Embedder
            );
            let inside = self.seen.inside.fetch_add(1, SeqCst) + 1;
            self.seen.most_inside.fetch_max(inside, SeqCst);
            self.seen.inputs.fetch_add(inputs.len(), SeqCst);
            tokio::time::sleep(Duration::from_millis(5)).await;
            while self.seen.closed.load(SeqCst) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            self.seen.inside.fetch_sub(1, SeqCst);
            let rows: Vec<Row> = inputs.iter().map(|input| self.row(input)).collect();
            let timings = Timings { inference: Duration::from_millis(5), ..Timings::default() };
            Ok(InferResponse { usage: Usage { timings, characters: 0, tokens: 2 * rows.len() }, rows })
        })
    }

    fn tokenize(&self, _: TokenizeRequest) -> Pending<'_, Vec<Tokenized>> {
        unreachable!("no step asks for tokens")
    }

    fn decode(&self, _: DecodeRequest) -> Pending<'_, Vec<String>> {
        unreachable!("no step asks for texts")
    }

    fn has_room(&self, inputs: usize) -> bool {
        self.seen.room.get().is_none_or(|room| room.available_permits() >= inputs)
    }

    fn health(&self) -> Health {
        Health::Ready
    }
}

/// A server with the members `embedder`, `ranker`, `other` (a ranker) and `classifier`, and the ensemble `it`.
struct World {
    models: Models,
    seen: Arc<Seen>,
    /// Labels that `classifier` has when it is loaded next.
    labels: Arc<Mutex<Vec<&'static str>>>,
}

impl World {
    fn new(steps: &[Step], output: &str) -> Self {
        let (seen, labels) = (Arc::new(Seen::default()), Arc::new(Mutex::new(vec!["plus", "minus"])));
        let member = |name, member, labels: &Arc<Mutex<_>>| {
            let source = Shelf { name, member, labels: Arc::clone(labels), seen: Arc::clone(&seen) };
            declared(name, Arc::new(source))
        };
        let one = Arc::new(Mutex::new(vec!["fits"]));
        let models = vec![
            member("embedder", Member::Embedder, &Arc::default()),
            member("ranker", Member::Ranker(0.0), &one),
            member("other", Member::Ranker(10.0), &one),
            member("classifier", Member::Classifier, &labels),
            declared("it", Arc::new(Ensemble::new("it", steps, output, 50).unwrap())),
        ];
        Self { models: Models::new(models, None).unwrap(), seen, labels }
    }

    async fn started(steps: &[Step], output: &str) -> Self {
        let world = Self::new(steps, output);
        world.models.start().await.unwrap();
        world
    }

    /// The rows of these inputs.
    async fn ask(&self, inputs: Vec<Input>) -> Result<Vec<Vec<f32>>, EngineError> {
        let it = self.models.find(Wanted::named("it")).unwrap();
        let answer = it.engine().infer(InferRequest::new(inputs, OutputKind::RAW)).await?;
        Ok(answer.rows.into_iter().map(|row| row.values).collect())
    }
}

fn declared(name: &str, source: Arc<dyn Source>) -> Declared {
    Declared { name: name.to_owned(), aliases: Vec::new(), version: None, load: LoadWhen::Start, source }
}

fn step(name: &str, does: Does) -> Step {
    Step { name: name.to_owned(), does }
}

fn retrieve(keep: usize) -> Step {
    retrieve_with(keep, None)
}

/// The prompt stands before the texts.
fn retrieve_with(keep: usize, prompt: Option<&str>) -> Step {
    let does = Does::Retrieve {
        model: "embedder".to_owned(),
        query: QUERY.to_owned(),
        texts: TEXTS.to_owned(),
        keep,
        query_prompt: Some("query".to_owned()),
        texts_prompt: prompt.map(str::to_owned),
    };
    step("near", does)
}

fn rerank(name: &str, model: &str, texts: &str) -> Step {
    step(name, Does::Rerank { model: model.to_owned(), query: QUERY.to_owned(), texts: texts.to_owned() })
}

fn pairs(query: &str, texts: &[&str]) -> Vec<Input> {
    texts.iter().map(|&text| Input::Pair(query.to_owned(), text.to_owned())).collect()
}

fn texts(texts: &[&str]) -> Vec<Input> {
    texts.iter().map(|&text| Input::Text(text.to_owned())).collect()
}

#[test]
fn the_nearest_are_reranked_and_the_others_come_last() {
    run(async {
        let world = World::started(&[retrieve(2), rerank("ranked", "ranker", "near")], "ranked").await;
        let it = world.models.find(Wanted::named("it")).unwrap();
        let info = it.engine().info();
        assert_eq!((info.model.task, info.model.labels.len()), (Task::SequenceClassification, 1));
        assert_eq!((info.max_client_batch_size, info.model.model_id.as_str()), (50, "it (embedder, ranker)"));
        let inputs = pairs("10", &["90", "20", "180", "5", "-40"]);
        let answer = it.engine().infer(InferRequest::new(inputs, OutputKind::RAW)).await.unwrap();
        let rows: Vec<f32> = answer.rows.iter().map(|row| row.values[0]).collect();
        assert_eq!(rows, [f32::MIN, 200.0, f32::MIN, 50.0, f32::MIN]);
        // A query, five texts in parts of three, and two pairs.
        assert_eq!((world.seen.inputs.load(SeqCst), answer.usage.tokens), (8, 16));
        assert_eq!(answer.usage.characters, 2 + 11);
        assert!(answer.usage.timings.total >= Duration::from_millis(10), "{:?}", answer.usage.timings);
        // Each query has its own texts, whatever their order.
        let both = [pairs("10", &["90", "20"]), pairs("80", &["20", "90"]), pairs("10", &["5"])].concat();
        let rows: Vec<f32> = world.ask(both).await.unwrap().into_iter().flatten().collect();
        assert_eq!(rows, [f32::MIN, 200.0, 1600.0, 7200.0, 50.0]);
    });
}

#[test]
fn nothing_is_chosen_by_vectors_that_are_no_numbers() {
    run(async {
        let world = World::started(&[retrieve(1), rerank("ranked", "ranker", "near")], "ranked").await;
        for (query, text) in [("1", "NaN"), ("NaN", "2")] {
            let error = world.ask(pairs(query, &[text, "1"])).await.unwrap_err();
            let said = "model `embedder` gave a vector with a value that is not a finite number";
            assert_eq!(error, EngineError::Backend(said.to_owned()), "{query}, {text}");
        }
        assert_eq!(world.seen.ranked.load(SeqCst), 0);
    });
}

#[test]
fn what_members_answer_is_held_where_the_whole_is() {
    run(async {
        let world = World::started(&[retrieve(2), rerank("ranked", "ranker", "near")], "ranked").await;
        let holder = Arc::new(Holder::default());
        let room = AnswerRoom::of(holder.clone());
        let inputs = pairs("10", &["90", "20", "180"]);
        let request = InferRequest { room, ..InferRequest::new(inputs, OutputKind::RAW) };
        world.models.find(Wanted::named("it")).unwrap().engine().infer(request).await.unwrap();
        // Three texts, the query, and two that were retrieved.
        assert_eq!(holder.0.load(SeqCst), 6);
    });
}

#[test]
fn nothing_is_held_of_an_answer_that_was_refused() {
    run(async {
        let mean = Does::Mean { of: vec!["first".to_owned(), "second".to_owned()] };
        let steps = [step("both", mean), rerank("first", "ranker", TEXTS), rerank("second", "other", TEXTS)];
        let world = World::started(&steps, "both").await;
        let holder = Arc::new(Holder::default());
        let it = world.models.find(Wanted::named("it")).unwrap();
        let ask = || {
            let room = AnswerRoom::of(holder.clone());
            it.engine()
                .infer(InferRequest { room, ..InferRequest::new(pairs("2", &["1", "3"]), OutputKind::RAW) })
        };
        // The first one is asked, and the second one has no room.
        *world.seen.full.lock().unwrap() = 1..2;
        assert!(matches!(ask().await, Err(EngineError::Overloaded { .. })));
        assert_eq!(holder.0.load(SeqCst), 0, "he may come again");
        ask().await.unwrap();
        assert_eq!(holder.0.load(SeqCst), 4, "until it is written");
    });
}

#[test]
fn errors_name_the_input_of_the_request() {
    run(async {
        let world = World::started(&[retrieve(1), rerank("ranked", "ranker", "near")], "ranked").await;
        for (texts, input) in [(["90", "20", "30", ""], 4), (["90", "180", "-0", "170"], 3)] {
            let inputs = [pairs("80", &["85"]), pairs("10", &texts)].concat();
            assert_eq!(world.ask(inputs).await, Err(EngineError::EmptyInput { input }), "{texts:?}");
        }
        let query = [pairs("80", &["85"]), pairs("", &["85"])].concat();
        assert_eq!(
            world.ask(query).await,
            Err(EngineError::EmptyInput { input: 1 }),
            "the first of its query"
        );
    });
}

#[test]
fn there_is_room_where_the_models_of_the_first_steps_have_some() {
    run(async {
        let world = World::started(&[rerank("ranked", "ranker", TEXTS)], "ranked").await;
        let it = world.models.find(Wanted::named("it")).unwrap();
        world.seen.room.set(Semaphore::new(MOST)).unwrap();
        assert!(it.engine().has_room(50), "a member is asked for three at a time");
        let taken = world.seen.room.get().unwrap().try_acquire_many(2).unwrap();
        assert_eq!([1, 2].map(|inputs| it.engine().has_room(inputs)), [true, false]);
        drop(taken);
        world.models.unload("ranker").await.unwrap();
        assert!(it.engine().has_room(1), "who asks is told what is wrong");
    });
}

#[test]
fn steps_that_do_not_wait_for_each_other_run_side_by_side() {
    run(async {
        let mean = Does::Mean { of: vec!["first".to_owned(), "second".to_owned()] };
        let steps = [step("both", mean), rerank("first", "ranker", TEXTS), rerank("second", "other", TEXTS)];
        let world = World::started(&steps, "both").await;
        let rows = world.ask(pairs("2", &["1", "3"])).await.unwrap();
        assert_eq!(rows, [[7.0], [11.0]]);
        assert_eq!(world.seen.most_inside.load(SeqCst), 2);
    });
}

#[test]
fn queries_are_answered_side_by_side() {
    run(async {
        let world = World::started(&[rerank("ranked", "ranker", TEXTS)], "ranked").await;
        let queries = ["1", "2", "3", "4"].map(|query| pairs(query, &["5"])).concat();
        assert_eq!(world.ask(queries).await.unwrap(), [[5.0], [10.0], [15.0], [20.0]]);
        assert_eq!(world.seen.most_inside.load(SeqCst), 2);
    });
}

#[test]
fn a_text_gets_the_label_whose_text_is_nearest() {
    run(async {
        let embed = Does::Embed { model: "embedder".to_owned(), texts: TEXTS.to_owned(), prompt: None };
        let labels = [("right", "0"), ("up", "90")].map(|(label, text)| (label.to_owned(), text.to_owned()));
        let nearest = Does::Nearest { vectors: "vector".to_owned(), labels: labels.to_vec(), scale: 10.0 };
        let world = World::started(&[step("vector", embed), step("label", nearest)], "label").await;
        let it = world.models.find(Wanted::named("it")).unwrap();
        assert_eq!(&*it.engine().info().model.labels, ["right", "up"]);
        for _ in 0..2 {
            let rows = world.ask(texts(&["0", "90", "60"])).await.unwrap();
            let close = |row: &[f32], expected: [f32; 2]| {
                row.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-3)
            };
            assert!(close(&rows[0], [10.0, 0.0]) && close(&rows[1], [0.0, 10.0]), "{rows:?}");
            assert!(close(&rows[2], [5.0, 8.660]), "{rows:?}");
        }
        assert_eq!(world.seen.inputs.load(SeqCst), 3 + 2 + 3, "the labels' vectors are made once");
        drop(it);
        world.models.unload("embedder").await.unwrap();
        world.models.load("embedder").await.unwrap();
        world.ask(texts(&["0"])).await.unwrap();
        assert_eq!(world.seen.inputs.load(SeqCst), 8 + 1 + 2, "and again for another load");
    });
}

#[test]
fn what_an_ensemble_does_not_read_is_refused() {
    run(async {
        let world = World::started(&[rerank("ranked", "ranker", TEXTS)], "ranked").await;
        let error = world.ask([pairs("1", &["1"]), texts(&["2"])].concat()).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "input 1: this is an ensemble that reads a query and a text, and nothing else"
        );
        assert_eq!(world.ask(Vec::new()).await, Err(EngineError::Empty));
        let many = pairs("1", &["1"; 51]);
        assert_eq!(world.ask(many).await, Err(EngineError::TooManyInputs { got: 51, limit: 50 }));
        let it = world.models.find(Wanted::named("it")).unwrap();
        let tokens = InferRequest::new(pairs("1", &["1"]), OutputKind::Tokens);
        assert!(matches!(it.engine().infer(tokens).await, Err(EngineError::NoSuchRows { .. })));
        assert_eq!(world.seen.inputs.load(SeqCst), 0);
    });
}

#[test]
fn members_are_for_what_their_steps_do() {
    run(async {
        for (steps, output, expected) in [
            (
                vec![rerank("ranked", "embedder", TEXTS)],
                "ranked",
                "model `embedder` is for embedding, expected a sequence classifier with one label",
            ),
            (
                vec![step("label", Does::Classify { model: "ranker".to_owned(), texts: TEXTS.to_owned() })],
                "label",
                "model `ranker` is for sequence-classification (labels: 1), expected a sequence classifier with several labels",
            ),
            (vec![rerank("ranked", "nobody", TEXTS)], "ranked", "no model `nobody` is served"),
            (
                vec![retrieve_with(1, Some("passage")), rerank("ranked", "ranker", "near")],
                "ranked",
                "model `embedder` has no prompt `passage`: it has query",
            ),
        ] {
            let error = World::new(&steps, output).models.start().await.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    });
}

#[test]
fn a_member_that_goes_fails_later_requests_and_no_accepted_one() {
    run(async {
        let world = World::started(&[retrieve(1), rerank("ranked", "ranker", "near")], "ranked").await;
        let it = world.models.find(Wanted::named("it")).unwrap();
        world.seen.closed.store(true, SeqCst);
        let asked = tokio::spawn({
            let it = it.clone();
            async move { it.engine().infer(InferRequest::new(pairs("1", &["5"]), OutputKind::RAW)).await }
        });
        crate::fake::eventually(|| world.seen.inside.load(SeqCst) > 0).await;
        let unloading = tokio::spawn({
            let models = world.models.clone();
            async move { models.unload("ranker").await }
        });
        crate::fake::eventually(|| world.models.find(Wanted::named("ranker")).is_err()).await;
        world.seen.closed.store(false, SeqCst);
        assert_eq!(asked.await.unwrap().unwrap().rows[0].values, [5.0], "its second step has its model");
        unloading.await.unwrap().unwrap();
        let error = world.ask(pairs("1", &["5"])).await.unwrap_err();
        let why = "model `ranker/1` is not loaded: load it with `POST /v2/repository/models/ranker/1/load`";
        assert_eq!(error, EngineError::Backend(why.to_owned()));
        assert_eq!(it.engine().health(), Health::Failing);
        assert_eq!(world.models.health(), Some(Health::Ready), "the other models answer");
        // An ensemble that could not answer is not loaded either; it is once its models are there.
        drop(it);
        world.models.unload("it").await.unwrap();
        let error = world.models.load("it").await.unwrap_err().to_string();
        assert_eq!(error, format!("model `it/1` could not be loaded: {why}"));
        world.models.load("ranker").await.unwrap();
        world.models.load("it").await.unwrap();
        let it = world.models.find(Wanted::named("it")).unwrap();
        assert_eq!(
            (world.ask(pairs("1", &["5"])).await.unwrap(), it.engine().health()),
            (vec![vec![5.0]], Health::Ready)
        );
    });
}

#[test]
fn a_server_that_stops_lets_a_request_take_its_last_step() {
    run(async {
        let world = World::started(&[retrieve(1), rerank("ranked", "ranker", "near")], "ranked").await;
        world.seen.closed.store(true, SeqCst);
        let it = world.models.find(Wanted::named("it")).unwrap();
        let asked = tokio::spawn(async move {
            it.engine().infer(InferRequest::new(pairs("1", &["5"]), OutputKind::RAW)).await
        });
        crate::fake::eventually(|| world.seen.inside.load(SeqCst) > 0).await;
        let stopping = tokio::spawn({
            let models = world.models.clone();
            async move { models.stop().await }
        });
        let member = world.models.find(Wanted::named("ranker")).unwrap();
        crate::fake::eventually(|| member.begin().is_err()).await;
        assert_eq!(world.ask(pairs("1", &["5"])).await, Err(EngineError::Stopping), "it is no accepted one");
        world.seen.closed.store(false, SeqCst);
        assert_eq!(asked.await.unwrap().unwrap().rows[0].values, [5.0]);
        stopping.await.unwrap();
        assert!(world.seen.stopped.load(SeqCst));
    });
}

#[test]
fn a_request_is_refused_before_its_first_step_or_waits_for_room() {
    run(async {
        let world = World::started(&[rerank("ranked", "ranker", TEXTS)], "ranked").await;
        *world.seen.full.lock().unwrap() = 0..1;
        let refused = EngineError::Overloaded { retry_after: Duration::from_secs(60) };
        assert_eq!(world.ask(pairs("1", &["5"])).await, Err(refused));
        let world = World::started(&[retrieve(1), rerank("ranked", "ranker", "near")], "ranked").await;
        *world.seen.full.lock().unwrap() = 0..2;
        assert_eq!(world.ask(pairs("1", &["5"])).await.unwrap(), [[5.0]]);
        assert_eq!(world.seen.ranked.load(SeqCst), 3);
        // A second query is part of a request that was accepted with its first one.
        let world = World::started(&[rerank("ranked", "ranker", TEXTS)], "ranked").await;
        *world.seen.full.lock().unwrap() = 1..3;
        let both = [pairs("1", &["5"]), pairs("2", &["5"])].concat();
        assert_eq!(world.ask(both).await.unwrap(), [[5.0], [10.0]]);
    });
}

#[test]
fn a_request_that_fits_alone_is_answered_be_it_that_its_steps_do_not_fit_together() {
    run(async {
        let mean = Does::Mean { of: vec!["first".to_owned(), "second".to_owned()] };
        let same = [rerank("first", "ranker", TEXTS), rerank("second", "ranker", TEXTS), step("both", mean)];
        for (steps, output, expected) in [
            (vec![retrieve(3), rerank("ranked", "ranker", "near")], "ranked", [[1.0], [2.0], [3.0]]),
            (same.to_vec(), "both", [[1.0], [2.0], [3.0]]),
        ] {
            let world = World::started(&steps, output).await;
            world.seen.room.set(Semaphore::new(MOST)).unwrap();
            for _ in 0..3 {
                assert_eq!(world.ask(pairs("1", &["1", "2", "3"])).await.unwrap(), expected, "{output}");
            }
        }
    });
}

#[test]
fn a_classifier_with_other_labels_than_before_is_noticed() {
    run(async {
        let classify = Does::Classify { model: "classifier".to_owned(), texts: TEXTS.to_owned() };
        let world = World::started(&[step("label", classify)], "label").await;
        assert_eq!(world.ask(texts(&["4"])).await.unwrap(), [[4.0, -4.0]]);
        *world.labels.lock().unwrap() = vec!["other", "labels"];
        world.models.unload("classifier").await.unwrap();
        world.models.load("classifier").await.unwrap();
        let error = world.ask(texts(&["4"])).await.unwrap_err();
        assert!(error.to_string().contains("other labels than when the ensemble was loaded"), "{error}");
        world.models.unload("it").await.unwrap();
        world.models.load("it").await.unwrap();
        assert_eq!(world.ask(texts(&["4"])).await.unwrap(), [[4.0, -4.0]]);
    });
}
