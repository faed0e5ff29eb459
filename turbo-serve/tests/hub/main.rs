//! Models from the Hub, against a stand-in for it: what is fetched and how often, what is resumed, and error messages.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod server;

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, SystemTime},
};

use turbo_models::Checkpoint;
use turbo_serve::hub::{Hub, HubError, HubModel, HubSettings, MAIN, Snapshot, Watch};

use server::{Model, NAME, OLD_NAME, Server};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const LATER_COMMIT: &str = "89abcdef0123456789abcdef0123456789abcdef";
const WEIGHTS: &str = "model.safetensors";
/// The variable that forbids contacting the Hub.
const OFFLINE: Option<&str> = Some("TRANSFORMERS_OFFLINE");

fn tiny() -> BTreeMap<String, Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data/tiny-sentence");
    let files = [
        "config.json",
        "tokenizer.json",
        "modules.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
        WEIGHTS,
    ];
    let read = |file: &str| (file.to_owned(), fs::read(folder.join(file)).unwrap());
    let unread = [("README.md", "text"), ("pytorch_model.bin", "weights"), ("onnx/model.onnx", "graph")];
    files.map(read).into_iter().chain(unread.map(|(file, text)| (file.into(), text.into()))).collect()
}

fn model() -> Model {
    Model { commit: COMMIT.into(), files: tiny(), ..Model::default() }
}

struct Rig {
    server: Server,
    cache: tempfile::TempDir,
}

impl Rig {
    fn new(model: Model) -> Self {
        Self { server: Server::start(model), cache: tempfile::tempdir().unwrap() }
    }

    fn settings(&self) -> HubSettings {
        HubSettings {
            endpoint: self.server.address.clone(),
            token: None,
            cache: self.cache.path().to_owned(),
            offline: None,
            patience: Duration::from_secs(30),
            pause: Duration::from_millis(5),
        }
    }

    fn fetch(&self) -> Result<Snapshot, HubError> {
        self.fetch_as(NAME, MAIN, self.settings())
    }

    fn fetch_as(&self, name: &str, revision: &str, settings: HubSettings) -> Result<Snapshot, HubError> {
        Hub::new(settings).model(HubModel { name, revision, module: None }, &mut ())
    }

    fn paths(&self) -> Vec<String> {
        self.server.requests().into_iter().map(|request| request.path).collect()
    }

    /// The one line that fetching fails with.
    fn error(&self) -> String {
        let error = self.fetch().unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
        error
    }
}

fn assert_whole(snapshot: &Snapshot) {
    let checkpoint = Checkpoint::open(&snapshot.folder).unwrap();
    assert!(checkpoint.tokenizer().is_some() && checkpoint.pooling().is_some());
    for (file, bytes) in tiny() {
        let path = snapshot.folder.join(&file);
        let expected =
            (!["README.md", "pytorch_model.bin", "onnx/model.onnx"].contains(&&*file)).then_some(bytes);
        assert_eq!(fs::read(path).ok(), expected, "{file}");
    }
}

#[derive(Default)]
struct Seen {
    expected: u64,
    came: u64,
    ended: bool,
}

impl Watch for Seen {
    fn begin(&mut self, _: usize, bytes: u64) {
        self.expected += bytes;
    }

    fn advance(&mut self, bytes: u64) {
        self.came += bytes;
    }

    fn end(&mut self) {
        self.ended = true;
    }
}

#[test]
fn the_files_that_are_read_come_once_into_the_usual_cache() {
    let rig = Rig::new(model());
    let mut seen = Seen::default();
    let snapshot = Hub::new(rig.settings())
        .model(HubModel { name: NAME, revision: MAIN, module: None }, &mut seen)
        .unwrap();
    assert_whole(&snapshot);
    assert_eq!((snapshot.commit.as_str(), snapshot.stale.is_none()), (COMMIT, true));
    assert!(
        seen.ended && seen.expected > 10_000 && seen.came == seen.expected,
        "{} of {}",
        seen.came,
        seen.expected
    );
    let folder = rig.cache.path().join("models--owner--tiny");
    assert_eq!(fs::read_to_string(folder.join("refs/main")).unwrap(), COMMIT);
    assert_eq!(snapshot.folder, folder.join("snapshots").join(COMMIT));
    rig.paths();
    // The second time only the commit is asked for, with the commit's name or offline nothing at all.
    assert_whole(&rig.fetch().unwrap());
    assert_eq!(rig.paths(), [format!("/api/models/{NAME}/revision/main?blobs=true")]);
    assert_whole(&rig.fetch_as(NAME, COMMIT, rig.settings()).unwrap());
    assert_whole(&rig.fetch_as(NAME, MAIN, HubSettings { offline: OFFLINE, ..rig.settings() }).unwrap());
    assert!(rig.paths().is_empty());
}

/// The cache may be one that others have filled, and that only they write to.
#[test]
fn what_the_cache_says_already_is_not_written_again() {
    let rig = Rig::new(model());
    rig.fetch().unwrap();
    let named = rig.cache.path().join("models--owner--tiny/refs/main");
    let named = fs::File::options().write(true).open(named).unwrap();
    let before = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    named.set_modified(before).unwrap();
    rig.fetch().unwrap();
    assert_eq!(named.metadata().unwrap().modified().unwrap(), before);
}

#[test]
fn a_later_commit_brings_only_what_changed() {
    let rig = Rig::new(model());
    rig.fetch().unwrap();
    rig.paths();
    {
        let mut model = rig.server.model.lock().unwrap();
        model.commit = LATER_COMMIT.into();
        model.files.get_mut("tokenizer.json").unwrap().push(b'\n');
    }
    let snapshot = rig.fetch().unwrap();
    assert_eq!(snapshot.commit, LATER_COMMIT);
    assert!(Checkpoint::open(&snapshot.folder).unwrap().tokenizer().is_some());
    let whole: Vec<_> = rig
        .server
        .requests()
        .into_iter()
        .filter(|request| request.range.as_deref() == Some("bytes=0-"))
        .collect();
    assert_eq!(whole.len(), 1, "{whole:?}");
    assert!(whole[0].path.ends_with("tokenizer.json"));
}

#[test]
fn a_broken_transfer_is_taken_up_where_it_broke() {
    let breaks =
        HashMap::from([(WEIGHTS.to_owned(), vec![1000, 500, 0]), ("tokenizer.json".to_owned(), vec![7])]);
    let rig = Rig::new(Model { breaks, ..model() });
    let mut seen = Seen::default();
    assert_whole(
        &Hub::new(rig.settings())
            .model(HubModel { name: NAME, revision: MAIN, module: None }, &mut seen)
            .unwrap(),
    );
    assert_eq!(seen.came, seen.expected);
    let ranges: Vec<_> = rig
        .server
        .requests()
        .into_iter()
        .filter(|request| request.path.starts_with("/elsewhere/"))
        .filter_map(|request| request.range.filter(|range| range != "bytes=0-0"))
        .collect();
    assert_eq!(ranges, ["bytes=0-", "bytes=1000-", "bytes=1500-", "bytes=1500-"]);
}

#[test]
fn what_arrived_in_an_earlier_run_is_kept() {
    let rig =
        Rig::new(Model { breaks: HashMap::from([(WEIGHTS.to_owned(), vec![1000, 0, 0, 0, 0])]), ..model() });
    let error = rig.error();
    assert!(error.contains("out of reach (model.safetensors: "), "{error}");
    rig.server.model.lock().unwrap().breaks.clear();
    rig.server.requests();
    assert_whole(&rig.fetch().unwrap());
    let ranges: Vec<_> = rig.server.requests().into_iter().filter_map(|request| request.range).collect();
    assert!(ranges.contains(&"bytes=1000-".to_owned()), "{ranges:?}");
}

#[test]
fn a_hub_that_ignores_ranges_does_not_spoil_the_file() {
    let breaks = HashMap::from([(WEIGHTS.to_owned(), vec![1000])]);
    let rig = Rig::new(Model { breaks, no_ranges: true, ..model() });
    assert_whole(&rig.fetch().unwrap());
}

#[test]
fn a_silent_hub_is_given_up() {
    let breaks = HashMap::from([(WEIGHTS.to_owned(), vec![1000])]);
    let rig = Rig::new(Model { breaks, silent: true, ..model() });
    let settings = HubSettings { patience: Duration::from_millis(300), ..rig.settings() };
    let error = rig.fetch_as(NAME, MAIN, settings).unwrap_err().to_string();
    assert!(error.contains("it sent nothing for 0 s"), "{error}");
}

#[test]
fn a_hub_out_of_reach_leaves_what_the_cache_has() {
    let rig = Rig::new(model());
    rig.fetch().unwrap();
    let gone = HubSettings { endpoint: "http://127.0.0.1:9".into(), ..rig.settings() };
    let snapshot = rig.fetch_as(NAME, MAIN, gone.clone()).unwrap();
    assert_whole(&snapshot);
    assert!(matches!(snapshot.stale, Some(HubError::Unreachable { .. })));
    rig.server.model.lock().unwrap().refuse = Some((429, ""));
    let snapshot = rig.fetch().unwrap();
    assert_whole(&snapshot);
    assert!(matches!(snapshot.stale, Some(HubError::Busy { .. })));
    let error = rig.fetch_as("owner/other", MAIN, gone).unwrap_err().to_string();
    assert!(error.starts_with("owner/other: http://127.0.0.1:9 is out of reach ("), "{error}");
    let offline = HubSettings { offline: OFFLINE, ..rig.settings() };
    let error = rig.fetch_as("owner/other", MAIN, offline).unwrap_err().to_string();
    assert!(
        error.starts_with("owner/other: TRANSFORMERS_OFFLINE is set, and ")
            && error.contains("does not have all its files"),
        "{error}"
    );
}

#[test]
fn an_unfinished_fetch_is_no_model_offline() {
    let rig =
        Rig::new(Model { breaks: HashMap::from([(WEIGHTS.to_owned(), vec![9, 0, 0, 0, 0])]), ..model() });
    rig.error();
    for revision in [MAIN, COMMIT] {
        let offline = HubSettings { offline: OFFLINE, ..rig.settings() };
        assert!(matches!(rig.fetch_as(NAME, revision, offline), Err(HubError::Offline { .. })), "{revision}");
    }
}

/// As fetched by another tool or an older version: weights, but not the files that say how to pool.
#[test]
fn a_commit_of_which_a_part_is_there_is_completed_once() {
    let rig = Rig::new(model());
    let snapshot = rig.fetch_as(NAME, COMMIT, rig.settings()).unwrap();
    let cache = rig.cache.path().join("models--owner--tiny");
    fs::remove_dir_all(cache.join(".no_exist")).unwrap();
    for file in ["tokenizer.json", "1_Pooling/config.json"] {
        let path = snapshot.folder.join(file);
        fs::remove_file(fs::canonicalize(&path).unwrap()).unwrap();
        fs::remove_file(path).unwrap();
    }
    let gone = HubSettings { endpoint: "http://127.0.0.1:9".into(), ..rig.settings() };
    assert!(rig.fetch_as(NAME, COMMIT, gone).unwrap().stale.is_some(), "the Hub may have more");
    rig.paths();
    assert_whole(&rig.fetch_as(NAME, COMMIT, rig.settings()).unwrap());
    assert!(!rig.paths().is_empty());
    assert_whole(&rig.fetch_as(NAME, COMMIT, rig.settings()).unwrap());
    assert!(rig.paths().is_empty(), "all is known of it");
}

#[test]
fn weights_come_behind_all_that_says_how_to_read_them() {
    let breaks = HashMap::from([("1_Pooling/config.json".to_owned(), vec![0; 4])]);
    let rig = Rig::new(Model { breaks, ..model() });
    rig.error();
    let offline = HubSettings { offline: OFFLINE, ..rig.settings() };
    assert!(matches!(rig.fetch_as(NAME, COMMIT, offline), Err(HubError::Offline { .. })));
    rig.server.model.lock().unwrap().breaks.clear();
    assert_whole(&rig.fetch_as(NAME, COMMIT, rig.settings()).unwrap());
}

/// As when a token has expired, the owner has set conditions since, or the model is gone: a server still starts.
#[test]
fn what_is_there_is_taken_though_the_hub_refuses() {
    let rig = Rig::new(model());
    rig.fetch().unwrap();
    fs::remove_dir_all(rig.cache.path().join("models--owner--tiny/.no_exist")).unwrap();
    let with_token = HubSettings { token: Some("hf_old".into()), ..rig.settings() };
    for refuse in [(401, ""), (401, "RepoNotFound"), (403, ""), (403, "GatedRepo"), (404, ""), (429, "")] {
        rig.server.model.lock().unwrap().refuse = Some(refuse);
        for revision in [COMMIT, MAIN] {
            for settings in [rig.settings(), with_token.clone()] {
                let snapshot = rig.fetch_as(NAME, revision, settings).unwrap();
                assert_whole(&snapshot);
                assert!(snapshot.stale.is_some(), "{refuse:?}");
            }
        }
    }
    // Unlike these, a model that is shown, but no longer has the branch, is an error.
    rig.server.model.lock().unwrap().refuse = Some((404, "RevisionNotFound"));
    assert!(matches!(rig.fetch(), Err(HubError::Revision { .. })));
}

/// The page of a gated model is open to all: a later commit is seen, but its files cannot be fetched.
#[test]
fn a_later_commit_whose_files_are_refused_leaves_the_one_before() {
    let rig = Rig::new(model());
    rig.fetch().unwrap();
    {
        let mut model = rig.server.model.lock().unwrap();
        model.commit = LATER_COMMIT.into();
        model.refuse_files = Some((401, "GatedRepo"));
    }
    let snapshot = rig.fetch().unwrap();
    assert_whole(&snapshot);
    assert_eq!(snapshot.commit, COMMIT);
    assert!(matches!(snapshot.stale, Some(HubError::Gated { .. })));
}

#[test]
fn a_later_commit_that_lacks_a_file_it_lists_is_told() {
    let rig = Rig::new(model());
    rig.fetch().unwrap();
    {
        let mut model = rig.server.model.lock().unwrap();
        model.commit = LATER_COMMIT.into();
        model.refuse_files = Some((404, "EntryNotFound"));
    }
    let error = rig.fetch().err().unwrap();
    assert!(matches!(error, HubError::Broken { .. }), "{error}");
    assert!(error.to_string().ends_with("it is listed, but not there (404)"), "{error}");
}

/// Its weights are those of the commit before, and are taken from there.
#[test]
fn a_later_commit_that_breaks_leaves_the_one_before() {
    let rig = Rig::new(model());
    rig.fetch().unwrap();
    {
        let mut model = rig.server.model.lock().unwrap();
        model.commit = LATER_COMMIT.into();
        model.files.get_mut("1_Pooling/config.json").unwrap().push(b'\n');
        model.breaks.insert("1_Pooling/config.json".to_owned(), vec![0; 4]);
    }
    let snapshot = rig.fetch().unwrap();
    assert_whole(&snapshot);
    assert_eq!(snapshot.commit, COMMIT);
    assert!(matches!(snapshot.stale, Some(HubError::Unreachable { .. })));
    let offline = HubSettings { offline: OFFLINE, ..rig.settings() };
    assert!(matches!(rig.fetch_as(NAME, LATER_COMMIT, offline), Err(HubError::Offline { .. })));
}

#[test]
fn a_commit_of_which_another_tool_left_a_part_is_no_model_while_the_rest_is_out_of_reach() {
    let rig = Rig::new(model());
    let snapshot = rig.fetch().unwrap();
    let pooling = snapshot.folder.join("1_Pooling/config.json");
    fs::remove_file(fs::canonicalize(&pooling).unwrap()).unwrap();
    fs::remove_file(&pooling).unwrap();
    rig.server.model.lock().unwrap().breaks.insert("1_Pooling/config.json".to_owned(), vec![0; 4]);
    assert!(matches!(rig.fetch(), Err(HubError::Unreachable { .. })));
}

/// The process with the lock may be suspended, or wait for a silent Hub.
#[test]
fn who_stands_still_is_waited_for_no_longer_than_the_hub() {
    let rig = Rig::new(model());
    let folder = rig.cache.path().join(".locks/models--owner--tiny");
    fs::create_dir_all(&folder).unwrap();
    let lock = fs::File::create(folder.join("turbo.lock")).unwrap();
    lock.lock().unwrap();
    let settings = HubSettings { patience: Duration::from_secs(2), ..rig.settings() };
    assert_whole(&rig.fetch_as(NAME, MAIN, settings).unwrap());
}

#[test]
fn a_module_that_the_model_does_not_name_comes_when_it_is_asked_for() {
    let mut files = tiny();
    for file in ["config.json", WEIGHTS] {
        files.insert(format!("2_Dense_8/{file}"), b"{}".to_vec());
    }
    let rig = Rig::new(Model { files, ..model() });
    let fetch =
        |module| Hub::new(rig.settings()).model(HubModel { name: NAME, revision: COMMIT, module }, &mut ());
    let module = fetch(None).unwrap().folder.join("2_Dense_8");
    assert!(!module.exists());
    assert!(fetch(Some("2_Dense_8")).unwrap().folder.join("2_Dense_8").join(WEIGHTS).is_file());
    rig.paths();
    fetch(Some("2_Dense_8")).unwrap();
    assert!(rig.paths().is_empty());
    let error = fetch(Some("2_Dense_9")).unwrap_err().to_string();
    assert!(error.contains("it has no 2_Dense_9/config.json: check --dense-path"), "{error}");
}

#[test]
fn a_dense_module_without_safetensors_is_refused_before_any_weights_are_fetched() {
    let mut files = tiny();
    let list = r#"[{"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]"#;
    files.insert("modules.json".into(), list.into());
    for file in ["2_Dense/config.json", "2_Dense/pytorch_model.bin", "2_Dense_8/config.json"] {
        files.insert(file.into(), b"{}".to_vec());
    }
    files.insert(format!("2_Dense_8/{WEIGHTS}"), b"{}".to_vec());
    let rig = Rig::new(Model { files, ..model() });
    let fetch =
        |module| Hub::new(rig.settings()).model(HubModel { name: NAME, revision: MAIN, module }, &mut ());
    let said = "owner/tiny/2_Dense: it has no safetensors weights (but 2_Dense/pytorch_model.bin): look for a revision or \
                a copy that has them";
    for module in [None, Some("2_Dense")] {
        assert_eq!(fetch(module).unwrap_err().to_string(), said, "{module:?}");
    }
    let paths = rig.paths();
    assert!(!paths.iter().any(|path| path.ends_with(WEIGHTS)), "{paths:?}");
    // Another module takes its place.
    assert!(fetch(Some("2_Dense_8")).unwrap().folder.join(WEIGHTS).is_file());
}

#[test]
fn who_shares_a_cache_fetches_nothing_twice() {
    let rig = Rig::new(Model { pause: Duration::from_millis(300), ..model() });
    thread::scope(|scope| {
        let both = [(), ()].map(|()| scope.spawn(|| assert_whole(&rig.fetch().unwrap())));
        both.into_iter().for_each(|one| one.join().unwrap());
    });
    let requests = rig.server.requests().into_iter();
    let mut whole: Vec<_> =
        requests.filter(|it| it.range.as_deref() == Some("bytes=0-")).map(|it| it.path).collect();
    whole.sort();
    let times = whole.len();
    whole.dedup();
    assert_eq!((times, whole.len()), (7, 7), "six files, one of which lies elsewhere: {whole:?}");
}

#[test]
fn each_refusal_says_what_to_do() {
    let cases: [(Option<(u16, &str)>, &str); 7] = [
        (Some((401, "RepoNotFound")), "has no such model, or it is private: check the name"),
        (Some((401, "")), "has no such model, or it is private: check the name"),
        (Some((404, "")), "has no such model, or it is private: check the name"),
        (Some((403, "")), "its owner has set conditions: accept them at http://127.0.0.1:"),
        (Some((401, "GatedRepo")), "its owner has set conditions"),
        (Some((429, "")), "asks to wait (429)"),
        (Some((503, "")), "out of reach (it answers with status 503)"),
    ];
    for (refuse, said) in cases {
        let error = Rig::new(Model { refuse, ..model() }).error();
        assert!(error.starts_with("owner/tiny: ") && error.contains(said), "{said:?} is not in {error:?}");
    }
    // The page of a gated model is open to all, its files are not.
    for status in [401, 403] {
        let error = Rig::new(Model { refuse_files: Some((status, "GatedRepo")), ..model() }).error();
        assert!(error.contains("its owner has set conditions: accept them at"), "{error}");
    }
    let rig = Rig::new(Model { refuse: Some((401, "")), ..model() });
    let settings = HubSettings { token: Some("hf_wrong".into()), ..rig.settings() };
    let error = rig.fetch_as(NAME, MAIN, settings).unwrap_err().to_string();
    assert!(error.contains("does not know the token"), "{error}");
    let rig = Rig::new(model());
    let error = rig.fetch_as(NAME, "missing", rig.settings()).unwrap_err().to_string();
    assert!(error.contains("it has no revision \"missing\""), "{error}");
}

#[test]
fn a_token_goes_with_every_request() {
    let rig = Rig::new(model());
    let settings = HubSettings { token: Some("hf_right".into()), ..rig.settings() };
    rig.fetch_as(NAME, MAIN, settings).unwrap();
    let requests = rig.server.requests();
    assert!(requests.len() > 6);
    assert!(requests.iter().all(|request| request.authorization.as_deref() == Some("Bearer hf_right")));
}

#[test]
fn a_model_that_was_renamed_is_found() {
    let rig = Rig::new(model());
    assert_whole(&rig.fetch_as(OLD_NAME, MAIN, rig.settings()).unwrap());
}

#[test]
fn shards_come_as_their_index_says() {
    let mut files = tiny();
    files.remove(WEIGHTS);
    let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    files.insert("model.safetensors.index.json".into(), index.into());
    files.insert("model-1.safetensors".into(), b"one".to_vec());
    let rig = Rig::new(Model { files: files.clone(), ..model() });
    assert!(rig.error().contains("does not have all the weights that the model's index lists"));
    files.insert("model-2.safetensors".into(), b"two".to_vec());
    rig.server.model.lock().unwrap().files = files;
    let snapshot = rig.fetch().unwrap();
    assert_eq!(fs::read(snapshot.folder.join("model-2.safetensors")).unwrap(), b"two");
}

#[test]
fn what_turbo_cannot_load_is_not_fetched() {
    let without = |file: &str| {
        let mut files = tiny();
        files.remove(file);
        Rig::new(Model { files, ..model() })
    };
    let rig = without(WEIGHTS);
    assert!(rig.error().contains("no safetensors weights (but pytorch_model.bin)"));
    assert_eq!(rig.paths().len(), 1);
    assert!(without("config.json").error().contains("it has no config.json"));
}

#[test]
fn no_name_leads_out_of_the_cache() {
    let mut files = tiny();
    files.remove(WEIGHTS);
    let index = r#"{"weight_map": {"a": "../../../../stolen.safetensors"}}"#;
    files.insert("model.safetensors.index.json".into(), index.into());
    files.insert("../../../../stolen.safetensors".into(), b"gotcha".to_vec());
    let rig = Rig::new(Model { files, ..model() });
    assert!(rig.error().contains("its name leads out of the folder"));
    let odd = Rig::new(Model { commit: "../../..".into(), ..model() });
    assert!(odd.error().contains("where a commit is expected"));
}

/// The binary as a user meets it; the variables are those of the Hub's other tools.
#[test]
fn the_commands_take_names_on_the_hub() {
    let rig = Rig::new(model());
    let input = rig.cache.path().join("in.txt");
    fs::write(&input, "the cat\n").unwrap();
    let embed = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut turbo = Command::new(env!("CARGO_BIN_EXE_turbo"));
        turbo.env_clear().env("HF_HOME", rig.cache.path()).envs(variables.iter().copied());
        let output = turbo.arg("embed").arg("--quiet").args(arguments).arg(&input).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let here = [("HF_ENDPOINT", &*rig.server.address)];
    let (code, answers, errors) = embed(&["--model-id", NAME], &here);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(answers.starts_with("{\"index\":0,\"embedding\":["), "{answers}");
    assert!(rig.cache.path().join("hub/models--owner--tiny/refs/main").is_file());

    let offline = [("HF_HUB_OFFLINE", "1")];
    assert_eq!(embed(&["--model-id", NAME, "--revision", COMMIT], &offline).1, answers);
    let gone = [("HF_ENDPOINT", "http://127.0.0.1:9")];
    let (code, again, warning) = embed(&["--model-id", NAME], &gone);
    assert_eq!((code, again), (Some(0), answers));
    assert!(
        warning.starts_with("warning: using the cached files: ") && warning.lines().count() == 1,
        "{warning}"
    );
    // A server says it in its log; this one ends as soon as it has read the model.
    let mut serve = Command::new(env!("CARGO_BIN_EXE_turbo"));
    serve.env_clear().env("HF_HOME", rig.cache.path()).env("DEVICE", "cpu").envs(gone);
    serve.args(["serve", "--hostname=127.0.0.1", "--port=0", "--json-output", "--default-prompt-name=none"]);
    let said = String::from_utf8(serve.args(["--model-id", NAME]).output().unwrap().stderr).unwrap();
    let line = said.lines().find(|line| line.contains("using the cached files: "));
    let line: serde_json::Value = serde_json::from_str(line.unwrap()).unwrap();
    assert_eq!(line["level"], "WARN", "{said}");

    let (code, _, error) = embed(&["--model-id", "owner/other"], &gone);
    assert_eq!((code, error.lines().count()), (Some(1), 1), "{error}");
    assert!(
        error.starts_with("error: --model-id owner/other: no such folder, so the Hub was asked: "),
        "{error}"
    );
}
