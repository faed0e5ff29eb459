//! What a client gets back.

use std::sync::Arc;

use turbo_serve::engine::{
    Encoded, Engine, EngineConfig, EngineError, Infer, InferRequest, Input, OutputKind, RowLens, Task,
    Truncation,
};

use crate::fake::{Control, HIDDEN_SIZE, config, embed, firsts, model, request, start, wait};

#[test]
fn rows_come_in_the_order_of_the_inputs() {
    // Batches of at most two: the answers of one request arrive in pieces.
    let (engine, control) = start(&EngineConfig { max_batch_requests: Some(2), ..config() });
    let response = embed(&engine, [&[5, 5, 5], &[1], &[4, 4], &[2], &[3; 8]]).unwrap();
    assert_eq!(firsts(&response), [5, 1, 4, 2, 3]);
    assert_eq!(response.usage.tokens, 15);
    assert_eq!(response.rows.iter().map(|row| row.tokens).collect::<Vec<_>>(), [3, 1, 2, 1, 8]);
    assert!(control.batches().len() >= 3);
}

#[test]
fn a_pooled_row_is_cut_first_and_normalised_then() {
    let (engine, _control) = start(&config());
    let ask = |normalize, dimensions| {
        let output = OutputKind::Pooled { normalize, dimensions };
        wait(engine.infer(InferRequest { output, ..request([&[8, 1, 3, 2, 2, 2]]) })).unwrap().rows.remove(0)
    };
    assert_eq!(ask(false, None).values, [8.0, 6.0, 18.0]);
    assert_eq!(ask(false, Some(2)).values, [8.0, 6.0]);
    let row = ask(true, Some(2));
    assert_eq!((row.values.as_slice(), row.row_len), (&[0.8, 0.6][..], 2));
}

#[test]
fn token_rows_and_pooled_rows_share_a_batch() {
    let (engine, control) = start(&config());
    let first = crate::fake::hold(&engine, &control, 9);
    let tokens = InferRequest { output: OutputKind::Tokens, ..request([&[7, 6]]) };
    let (tokens, pooled) =
        (crate::fake::begin(&engine, tokens), crate::fake::begin(&engine, request([&[5]])));
    control.open();
    wait(first).unwrap();
    let (tokens, pooled) = (wait(tokens).unwrap(), wait(pooled).unwrap());
    assert_eq!(tokens.rows[0].values, [7.0, 0.0, 1.0, 6.0, 1.0, 1.0]);
    assert_eq!(tokens.rows[0].row_len, HIDDEN_SIZE);
    assert_eq!(pooled.rows[0].values, [5.0, 1.0, 5.0]);
    assert_eq!(control.batches(), [vec![9], vec![7, 5]]);
}

#[test]
fn long_inputs_are_cut_where_the_request_says() {
    let (engine, _control) = start(&config());
    let ids: Vec<u32> = (1..=10).collect();
    for (truncation, first_id) in [(None, 1), (Some(Truncation::Right), 1), (Some(Truncation::Left), 3)] {
        let response = wait(engine.infer(InferRequest { truncation, ..request([&ids]) })).unwrap();
        assert_eq!((firsts(&response), response.usage.tokens), (vec![first_id], 8), "{truncation:?}");
    }
    let off = InferRequest { truncation: Some(Truncation::Off), ..request([&ids]) };
    assert_eq!(wait(engine.infer(off)), Err(EngineError::TooLong { input: 0, tokens: 10, limit: 8 }));
}

#[test]
fn without_a_tokenizer_text_is_refused() {
    let (engine, _control) = start(&config());
    let text = InferRequest { inputs: vec![Input::Text("hello".into())], ..request([]) };
    assert_eq!(wait(engine.infer(text)), Err(EngineError::NoTokenizer));
    assert_eq!(engine.info().tokenization_workers, 0);
}

#[test]
fn times_add_up() {
    let (engine, _control) = start(&config());
    let timings = embed(&engine, [&[1], &[2]]).unwrap().usage.timings;
    assert!(timings.tokenization + timings.queue + timings.inference <= timings.total, "{timings:?}");
    assert!(!timings.inference.is_zero());
}

#[test]
fn selected_tokens_have_rows_of_their_own() {
    let (engine, control) = start(&config());
    let encoded = |input_ids: &[u32], selected: &[u32]| {
        let (input_ids, selected) = (input_ids.to_vec(), selected.to_vec());
        Input::Encoded(Encoded { input_ids, token_type_ids: Vec::new(), selected })
    };
    let ask = |inputs| wait(engine.infer(InferRequest::new(inputs, OutputKind::Selected)));
    let response = ask(vec![encoded(&[7, 8, 9], &[0, 2]), encoded(&[5, 6], &[1])]).unwrap();
    assert_eq!(response.rows[0].rows().collect::<Vec<_>>(), [[7.0, 0.0], [9.0, 2.0]]);
    assert_eq!(response.rows[1].rows().collect::<Vec<_>>(), [[6.0, 1.0]]);
    let none = EngineError::InvalidSelection { input: 1, why: "it selects no token".into() };
    assert_eq!(ask(vec![encoded(&[7], &[0]), Input::Ids(vec![5])]), Err(none));
    assert_eq!(control.batches(), [[7, 5]]);
}

#[test]
fn rows_that_the_model_does_not_have_are_refused() {
    let control = Arc::new(Control::default());
    let mut model = model(&control);
    model.info.task = Task::SequenceClassification;
    model.info.rows = RowLens { pooled: Some(HIDDEN_SIZE), tokens: None, selected: None };
    let engine = Engine::start(model, &config()).unwrap();
    let error =
        wait(engine.infer(InferRequest { output: OutputKind::Tokens, ..request([&[1]]) })).unwrap_err();
    assert_eq!(error, EngineError::NoSuchRows { task: Task::SequenceClassification, rows: "token" });
    assert_eq!(error.to_string(), "this model is for sequence-classification: it has no token rows");
}
