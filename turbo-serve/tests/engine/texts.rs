//! Texts: made into tokens off the caller's thread, all of a request or none.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use turbo_serve::engine::{
    DecodeRequest, Encoded, Encoding, Engine, EngineConfig, EngineError, Extent, Infer, InferRequest, Input,
    Prompt, Prompts, SpecialTokens, Text, Texts, Tokenize, TokenizeError, TokenizeRequest, Truncation,
};

use crate::fake::{Control, config, eventually, firsts, hold, model, request, wait, warm};

/// Texts are numbers separated by spaces, which are their ids. It refuses some texts, and takes its time over long
/// ones. Between the two texts of a pair it puts a 0.
struct Numbers {
    limit: usize,
}

/// While a test holds it, the tokenizer does not finish long texts.
static LONG_TEXTS: Mutex<()> = Mutex::new(());

impl Numbers {
    fn ids(text: &str) -> Result<Vec<u32>, TokenizeError> {
        assert_ne!(text, "panic");
        if text.len() > 10_000 {
            drop(LONG_TEXTS.lock().unwrap_or_else(PoisonError::into_inner));
        }
        let parse =
            |word: &str| word.parse().map_err(|_| TokenizeError::Failed(format!("no number: {word}")));
        text.split_whitespace().map(parse).collect()
    }

    fn all(text: Text<'_>) -> Result<Vec<u32>, TokenizeError> {
        match text {
            Text::One(text) => Self::ids(text),
            Text::Pair(first, second) => Ok([Self::ids(first)?, vec![0], Self::ids(second)?].concat()),
        }
    }
}

impl Tokenize for Numbers {
    fn encode(&self, text: Text<'_>, truncation: Truncation) -> Result<Encoded, TokenizeError> {
        let mut input_ids = Self::all(text)?;
        let (tokens, limit) = (input_ids.len(), self.limit);
        if truncation == Truncation::Off && tokens > limit {
            return Err(TokenizeError::TooLong { tokens, limit });
        }
        input_ids.truncate(limit);
        Ok(Encoded { input_ids, ..Encoded::default() })
    }

    fn tokens(&self, text: Text<'_>, extent: Extent) -> Result<Vec<Encoding>, TokenizeError> {
        let of = |ids: &[u32]| Encoding { input_ids: ids.to_vec(), ..Encoding::default() };
        let ids = Self::all(text)?;
        Ok(match extent {
            Extent::Windows { max_len, .. } => ids.chunks(max_len).map(of).collect(),
            Extent::Whole(_) | Extent::Word | Extent::Input(_) => vec![of(&ids)],
        })
    }

    fn decode(&self, ids: &[u32], _: SpecialTokens) -> Result<String, TokenizeError> {
        Ok(ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))
    }

    fn limited_to(&self, limit: usize) -> Arc<dyn Tokenize> {
        Arc::new(Self { limit })
    }

    fn with_instruction(&self, instruction: &str) -> Result<Arc<dyn Tokenize>, TokenizeError> {
        Ok(Arc::new(Told { instruction: Self::ids(instruction)?, of: Self { limit: self.limit } }))
    }
}

/// Numbers behind those of an instruction.
struct Told {
    instruction: Vec<u32>,
    of: Numbers,
}

impl Tokenize for Told {
    fn encode(&self, text: Text<'_>, truncation: Truncation) -> Result<Encoded, TokenizeError> {
        let mut encoded = self.of.encode(text, truncation)?;
        encoded.input_ids.splice(0..0, self.instruction.iter().copied());
        encoded.input_ids.truncate(self.of.limit);
        Ok(encoded)
    }

    fn tokens(&self, text: Text<'_>, extent: Extent) -> Result<Vec<Encoding>, TokenizeError> {
        self.of.tokens(text, extent)
    }

    fn decode(&self, ids: &[u32], special: SpecialTokens) -> Result<String, TokenizeError> {
        self.of.decode(ids, special)
    }

    fn limited_to(&self, limit: usize) -> Arc<dyn Tokenize> {
        Arc::new(Self { instruction: self.instruction.clone(), of: Numbers { limit } })
    }
}

fn failed(input: usize, why: &str) -> EngineError {
    EngineError::Tokenizer { input, why: why.into() }
}

fn with_workers(tokenization_workers: usize) -> (Engine, Arc<Control>) {
    start(&EngineConfig { tokenization_workers, ..config() })
}

/// An engine that takes numbers as text.
pub(crate) fn start(config: &EngineConfig) -> (Engine, Arc<Control>) {
    let control = Arc::new(Control::default());
    let mut model = model(&control);
    model.tokenizer = Some(Arc::new(Numbers { limit: usize::MAX }));
    model.info.prompts = prompts();
    let engine = Engine::start(model, config).unwrap();
    warm(&control);
    (engine, control)
}

/// The default one is for plain texts.
fn prompts() -> Prompts {
    let named = [("nine", "9 "), ("none", "")].map(|(name, text)| (name.into(), text.into()));
    Prompts { named: named.into(), default: None }
}

fn texts<const N: usize>(texts: [&str; N]) -> InferRequest {
    InferRequest { inputs: texts.map(|text| Input::Text(text.into())).to_vec(), ..request([]) }
}

#[test]
fn texts_and_ids_share_a_request_and_a_batch() {
    for workers in [1, 4] {
        let (engine, control) = with_workers(workers);
        let mut mixed = texts(["7 7 7", "5", "3 4"]);
        mixed.inputs.insert(1, Input::Ids(vec![9]));
        let response = wait(engine.infer(mixed)).unwrap();
        assert_eq!(firsts(&response), [7, 9, 5, 3]);
        // an id counts as a character
        assert_eq!((response.usage.tokens, response.usage.characters), (7, 10));
        assert_eq!(control.batches(), [[7, 9, 5, 3]]);
    }
}

#[test]
fn a_request_may_want_its_inputs_shorter_than_the_model_takes() {
    let (engine, _) = with_workers(2);
    let asked = |truncation, limit| {
        let mut mixed = texts(["1 2 3 4 5 6 7 8 9 10", "5"]);
        mixed.inputs.push(Input::Ids(vec![1, 2, 3, 4, 5]));
        wait(engine.infer(InferRequest { truncation: Some(truncation), max_input_length: limit, ..mixed }))
    };
    // Of these the model takes 8.
    for (limit, expected) in [
        (None, [8, 1, 5]),
        (Some(3), [3, 1, 3]),
        (Some(1), [1, 1, 1]),
        (Some(8), [8, 1, 5]),
        (Some(99), [8, 1, 5]),
    ] {
        let response = asked(Truncation::Right, limit).unwrap();
        let tokens: Vec<usize> = response.rows.iter().map(|row| row.tokens).collect();
        assert_eq!(tokens, expected, "{limit:?}");
    }
    let too_long = EngineError::TooLong { input: 0, tokens: 10, limit: 3 };
    assert_eq!(asked(Truncation::Off, Some(3)), Err(too_long));
}

#[test]
fn one_bad_text_fails_its_request_before_anything_is_computed() {
    let (engine, control) = with_workers(2);
    let long = "1 ".repeat(9);
    let failed = |why: &str| failed(1, why);
    for (bad, expected) in [
        ("x", failed("no number: x")),
        ("panic", failed("it panicked on this text")),
        ("", EngineError::EmptyInput { input: 1 }),
        ("1000", EngineError::InvalidId { input: 1, id: 1000, vocab_size: 1000 }),
        (&long, EngineError::TooLong { input: 1, tokens: 9, limit: 8 }),
    ] {
        let request = InferRequest { truncation: Some(Truncation::Off), ..texts(["1", bad, "2"]) };
        assert_eq!(wait(engine.infer(request)), Err(expected), "{bad:?}");
    }
    assert!(control.batches().is_empty());
    assert_eq!(firsts(&wait(engine.infer(texts(["6"]))).unwrap()), [6]);
}

#[test]
fn a_long_text_does_not_hold_up_short_ones() {
    let (engine, _control) = with_workers(1);
    let hold = LONG_TEXTS.lock().unwrap();
    let long = "7 ".repeat(10_000);
    let mut pending = crate::fake::begin(&engine, texts(["1", &long]));
    for _ in 0..3 {
        assert_eq!(firsts(&wait(engine.infer(texts(["2", "3"]))).unwrap()), [2, 3]);
    }
    std::thread::sleep(Duration::from_millis(10));
    assert!(!crate::fake::is_ready(&mut pending));
    drop(hold);
    assert_eq!(firsts(&wait(pending).unwrap()), [1, 7]);
}

/// Whatever waits for the tokenizer threads is told, however long they still take over what they have begun.
#[test]
fn who_waits_for_tokens_of_an_engine_that_is_abandoned_is_told() {
    let (engine, control) = with_workers(1);
    let hold = LONG_TEXTS.lock().unwrap();
    let long = "7 ".repeat(10_000);
    let one_text = |extent| TokenizeRequest::new(vec![Texts::One(long.clone())], extent);
    let (whole, special) = (Extent::Whole(SpecialTokens::With), SpecialTokens::Without);
    let begun = crate::fake::begin(&engine, texts([&long]));
    let waiting = crate::fake::begin(&engine, texts(["1", &long]));
    let mut tokens = engine.tokenize(one_text(whole));
    let mut decoded = engine.decode(DecodeRequest::new(vec![vec![1; 20_000]], special));
    // This text is not looked at before the engine stops: it is rejected like the others, and not as a bad text.
    let bad = format!("{long} x");
    let unseen = crate::fake::begin(&engine, texts([&bad]));
    assert!(!crate::fake::is_ready(&mut tokens) && !crate::fake::is_ready(&mut decoded));
    let mut stop = Box::pin(engine.stop());
    assert!(!crate::fake::is_ready(&mut stop));
    engine.abandon();
    for pending in [begun, waiting] {
        assert_eq!(wait(pending), Err(EngineError::Stopping));
    }
    assert_eq!(wait(tokens), Err(EngineError::Stopping));
    assert_eq!(wait(decoded), Err(EngineError::Stopping));
    drop(hold);
    wait(stop);
    assert_eq!(wait(unseen), Err(EngineError::Stopping));
    assert!(control.batches().is_empty());
}

#[test]
fn texts_accepted_before_a_stop_are_answered() {
    let (engine, control) = with_workers(1);
    control.close();
    let pending = crate::fake::begin(&engine, texts(["1", "2", "3"]));
    let mut stop = Box::pin(engine.stop());
    assert!(!crate::fake::is_ready(&mut stop));
    control.open();
    wait(stop);
    assert_eq!(firsts(&wait(pending).unwrap()), [1, 2, 3]);
    assert_eq!(wait(engine.infer(texts(["4"]))), Err(EngineError::Stopping));
}

#[test]
fn pairs_and_texts_share_a_request() {
    let (engine, control) = with_workers(2);
    let mut mixed = texts(["7 7"]);
    mixed.inputs.push(Input::Pair("5 6".into(), "4 x".replace('x', "3")));
    let response = wait(engine.infer(mixed)).unwrap();
    assert_eq!(response.rows[1].values, [5.0, 5.0, 18.0]);
    assert_eq!((response.usage.tokens, response.usage.characters), (7, 9));
    assert_eq!(control.batches(), [[7, 5]]);
}

#[test]
fn prompts_are_put_before_texts_and_nothing_else() {
    let control = Arc::new(Control::default());
    let mut model = model(&control);
    model.tokenizer = Some(Arc::new(Numbers { limit: 8 }));
    model.info.prompts = Prompts { default: Some("8 ".into()), ..prompts() };
    let engine = Engine::start(model, &config()).unwrap();
    warm(&control);
    let ask = |inputs: Vec<Input>, name: Option<&str>| {
        let prompt_name = name.map(str::to_owned).into();
        wait(engine.infer(InferRequest { inputs, prompt_name, ..request([]) }))
            .map(|response| firsts(&response))
    };
    let all = || vec![Input::Text("1".into()), Input::Pair("2".into(), "3".into()), Input::Ids(vec![4])];
    assert_eq!(ask(all(), None), Ok(vec![8, 2, 4]));
    assert_eq!(ask(vec![Input::Text("1".into())], Some("nine")), Ok(vec![9]));
    assert_eq!(ask(vec![Input::Text("1".into())], Some("none")), Ok(vec![1]));
    assert_eq!(ask(all(), Some("nine")), Err(EngineError::PromptNeedsText { input: 1 }));
    let known = vec!["nine".into(), "none".into()];
    assert_eq!(ask(all(), Some("ten")), Err(EngineError::UnknownPrompt { name: "ten".into(), known }));
}

#[test]
fn an_instruction_is_for_pairs_and_for_models_that_take_one() {
    let start = |takes_instruction| {
        let control = Arc::new(Control::default());
        let mut model = model(&control);
        model.tokenizer = Some(Arc::new(Numbers { limit: 8 }));
        model.info.takes_instruction = takes_instruction;
        let engine = Engine::start(model, &config()).unwrap();
        warm(&control);
        engine
    };
    let pair = |first: &str| Input::Pair(first.into(), "3".into());
    let ask = |engine: &Engine, inputs: Vec<Input>, instruction: &str, max_input_length| {
        let instruction = Some(instruction.to_owned().into());
        wait(engine.infer(InferRequest { inputs, instruction, max_input_length, ..request([]) }))
    };
    let engine = start(true);
    let response = ask(&engine, vec![pair("1"), pair("2")], "9 9", None).unwrap();
    assert_eq!((firsts(&response), response.usage.tokens), (vec![9, 9], 10));
    let response = ask(&engine, vec![pair("1"), pair("2")], "9 9", Some(4)).unwrap();
    assert_eq!((firsts(&response), response.usage.tokens), (vec![9, 9], 8));
    assert_eq!(
        firsts(&wait(engine.infer(InferRequest { inputs: vec![pair("1")], ..request([]) })).unwrap()),
        [1]
    );
    for (inputs, instruction, error) in [
        (vec![pair("1"), Input::Text("2".into())], "9", EngineError::InstructionNeedsPair { input: 1 }),
        (vec![Input::Ids(vec![4])], "9", EngineError::InstructionNeedsPair { input: 0 }),
        (vec![pair("1"), pair("2")], "x", EngineError::InvalidInstruction("no number: x".into())),
        (vec![pair("1")], "panic", EngineError::InvalidInstruction("it panicked on this text".into())),
    ] {
        assert_eq!(ask(&engine, inputs, instruction, None), Err(error));
    }
    assert_eq!(ask(&start(false), vec![pair("1")], "9", None), Err(EngineError::NoInstruction));
}

fn tokenize(engine: &Engine, texts: Vec<Texts>, extent: Extent) -> Result<Vec<Vec<Vec<u32>>>, EngineError> {
    let request = TokenizeRequest::new(texts, extent);
    let ids = |encoding: &Encoding| encoding.input_ids.clone();
    let tokenized = wait(engine.tokenize(request))?;
    Ok(tokenized.iter().map(|it| it.encodings.iter().map(ids).collect()).collect())
}

#[test]
fn tokens_are_given_without_the_model() {
    let (engine, control) = with_workers(2);
    let one = |text: &str| Texts::One(text.into());
    let whole = Extent::Whole(SpecialTokens::With);
    let long = "1 ".repeat(20);
    let all = tokenize(&engine, vec![one("1 2"), one(&long)], whole).unwrap();
    assert_eq!(all, [vec![vec![1, 2]], vec![vec![1; 20]]]);
    let pair = Texts::Pair("1 2".into(), "3 4 5".into());
    let windows = tokenize(&engine, vec![pair], Extent::Windows { max_len: 4, stride: 0 }).unwrap();
    assert_eq!(windows, [[vec![1, 2, 0, 3], vec![4, 5]]]);
    let named =
        TokenizeRequest { prompt: Prompt::Named("9 ".into()), ..TokenizeRequest::new(vec![one("1")], whole) };
    assert_eq!(wait(engine.tokenize(named)).unwrap()[0].texts, one("9 1"));
    let ids = DecodeRequest::new(vec![vec![1, 2], vec![]], SpecialTokens::Without);
    assert_eq!(wait(engine.decode(ids)).unwrap(), ["1 2", ""]);
    assert!(control.batches().is_empty());
}

#[test]
fn what_asks_for_tokens_has_the_limits_of_what_asks_the_model() {
    let limits = EngineConfig { max_client_batch_size: 3, max_concurrent_requests: 4, ..config() };
    let (engine, _control) = start(&limits);
    let whole = Extent::Whole(SpecialTokens::With);
    let ask = |texts: &[&str]| {
        tokenize(&engine, texts.iter().map(|&text| Texts::One(text.into())).collect(), whole)
    };
    assert_eq!(ask(&[]), Err(EngineError::Empty));
    assert_eq!(ask(&["1"; 4]), Err(EngineError::TooManyInputs { got: 4, limit: 3 }));
    assert_eq!(ask(&["1", "panic"]), Err(failed(1, "it panicked on this text")));
    assert_eq!(ask(&["1", "x", "y"]), Err(failed(1, "no number: x")));
    let hold = LONG_TEXTS.lock().unwrap();
    let long = Texts::One("7 ".repeat(10_000));
    let request = TokenizeRequest::new(vec![long; 2], whole);
    let mut pending = engine.tokenize(request);
    assert!(!crate::fake::is_ready(&mut pending));
    assert!(matches!(ask(&["1"; 3]), Err(EngineError::Overloaded { .. })), "two of four slots are taken");
    assert_eq!(ask(&["1"; 2]).unwrap().len(), 2);
    drop(hold);
    assert_eq!(wait(pending).unwrap().len(), 2);
    assert_eq!(ask(&["1"; 3]).unwrap().len(), 3);
    wait(engine.stop());
    assert_eq!(ask(&["1"]), Err(EngineError::Stopping));
    let ids = DecodeRequest::new(vec![vec![1]], SpecialTokens::Without);
    assert_eq!(wait(engine.decode(ids)), Err(EngineError::Stopping));
}

#[test]
fn who_asks_for_tokens_stands_back_for_who_waits() {
    let (engine, control) = start(&EngineConfig { max_concurrent_requests: 4, ..config() });
    let held = hold(&engine, &control, 1);
    let ask = |retries| {
        let whole = Extent::Whole(SpecialTokens::With);
        let tokens = TokenizeRequest { retries, ..TokenizeRequest::new(vec![Texts::One("1".into())], whole) };
        let texts = DecodeRequest { retries, ..DecodeRequest::new(vec![vec![1]], SpecialTokens::With) };
        assert!(!engine.has_room(4), "a request waits for all slots");
        (wait(engine.tokenize(tokens)).map(drop), wait(engine.decode(texts)).map(drop))
    };
    let is_refused =
        |got| matches!(got, (Err(EngineError::Overloaded { .. }), Err(EngineError::Overloaded { .. })));
    eventually(|| is_refused(ask(false)));
    assert_eq!(ask(true), (Ok(()), Ok(())), "these have waited, too");
    eventually(|| is_refused(ask(false)));
    control.open();
    wait(held).unwrap();
}

#[test]
fn without_a_tokenizer_there_are_no_tokens() {
    let (engine, _control) = crate::fake::start(&config());
    let whole = Extent::Whole(SpecialTokens::With);
    assert_eq!(tokenize(&engine, vec![Texts::One("1".into())], whole), Err(EngineError::NoTokenizer));
    let ids = DecodeRequest::new(vec![vec![1]], SpecialTokens::Without);
    assert_eq!(wait(engine.decode(ids)), Err(EngineError::NoTokenizer));
}
