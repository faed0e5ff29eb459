//! Texts: made into tokens off the caller's thread, all of a request or none.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use turbo_serve::engine::{
    EmbedRequest, Embedder, Encoded, Engine, EngineConfig, EngineError, Input, Tokenize, TokenizeError,
    Truncation,
};

use crate::fake::{Control, MAX_INPUT_LENGTH, config, firsts, model, request, wait, warm};

/// Numbers separated by spaces are the ids; it dislikes some texts, and takes its time over long ones.
struct Numbers;

/// While a test holds it, long texts are worked on.
static LONG_TEXTS: Mutex<()> = Mutex::new(());

impl Tokenize for Numbers {
    fn encode(&self, text: &str, truncation: Truncation) -> Result<Encoded, TokenizeError> {
        assert_ne!(text, "panic");
        if text.len() > 10_000 {
            drop(LONG_TEXTS.lock().unwrap_or_else(PoisonError::into_inner));
        }
        let parse =
            |word: &str| word.parse().map_err(|_| TokenizeError::Failed(format!("no number: {word}")));
        let mut input_ids = text.split_whitespace().map(parse).collect::<Result<Vec<u32>, _>>()?;
        let (tokens, limit) = (input_ids.len(), MAX_INPUT_LENGTH);
        if truncation == Truncation::Off && tokens > limit {
            return Err(TokenizeError::TooLong { tokens, limit });
        }
        input_ids.truncate(limit);
        Ok(Encoded { input_ids, token_type_ids: Vec::new() })
    }
}

fn with_workers(tokenization_workers: usize) -> (Engine, Arc<Control>) {
    start(&EngineConfig { tokenization_workers, ..config() })
}

/// An engine that takes numbers as text.
pub(crate) fn start(config: &EngineConfig) -> (Engine, Arc<Control>) {
    let control = Arc::new(Control::default());
    let mut model = model(&control);
    model.tokenizer = Some(Arc::new(Numbers));
    let engine = Engine::start(model, config).unwrap();
    warm(&control);
    (engine, control)
}

fn texts<const N: usize>(texts: [&str; N]) -> EmbedRequest {
    EmbedRequest { inputs: texts.map(|text| Input::Text(text.into())).to_vec(), ..request([]) }
}

#[test]
fn texts_and_ids_share_a_request_and_a_batch() {
    for workers in [1, 4] {
        let (engine, control) = with_workers(workers);
        let mut mixed = texts(["7 7 7", "5", "3 4"]);
        mixed.inputs.insert(1, Input::Ids(vec![9]));
        let response = wait(engine.embed(mixed)).unwrap();
        assert_eq!(firsts(&response), [7, 9, 5, 3]);
        assert_eq!((response.tokens, response.characters), (7, 9));
        assert_eq!(control.batches(), [[7, 9, 5, 3]]);
    }
}

#[test]
fn one_bad_text_fails_its_request_before_anything_is_computed() {
    let (engine, control) = with_workers(2);
    let long = "1 ".repeat(9);
    let failed = |why: &str| EngineError::Tokenizer(why.into());
    for (bad, expected) in [
        ("x", failed("no number: x")),
        ("panic", failed("it panicked on this text")),
        ("", EngineError::EmptyInput { input: 1 }),
        ("1000", EngineError::InvalidId { input: 1, id: 1000, vocab_size: 1000 }),
        (&long, EngineError::TooLong { input: 1, tokens: 9, limit: 8 }),
    ] {
        let request = EmbedRequest { truncation: Some(Truncation::Off), ..texts(["1", bad, "2"]) };
        assert_eq!(wait(engine.embed(request)), Err(expected), "{bad:?}");
    }
    assert!(control.batches().is_empty());
    assert_eq!(firsts(&wait(engine.embed(texts(["6"]))).unwrap()), [6]);
}

#[test]
fn a_long_text_does_not_hold_up_short_ones() {
    let (engine, _control) = with_workers(1);
    let hold = LONG_TEXTS.lock().unwrap();
    let long = "7 ".repeat(10_000);
    let mut pending = crate::fake::begin(&engine, texts(["1", &long]));
    for _ in 0..3 {
        assert_eq!(firsts(&wait(engine.embed(texts(["2", "3"]))).unwrap()), [2, 3]);
    }
    std::thread::sleep(Duration::from_millis(10));
    assert!(!crate::fake::is_ready(&mut pending));
    drop(hold);
    assert_eq!(firsts(&wait(pending).unwrap()), [1, 7]);
}

#[test]
fn texts_accepted_before_a_stop_are_answered() {
    let (engine, _control) = with_workers(1);
    let pending = crate::fake::begin(&engine, texts(["1", "2", "3"]));
    wait(engine.stop());
    assert_eq!(firsts(&wait(pending).unwrap()), [1, 2, 3]);
    assert_eq!(wait(engine.embed(texts(["4"]))), Err(EngineError::Stopping));
}
