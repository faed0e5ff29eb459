//! Whole folders of the tasks that take several steps: entities, answers, words for a gap.

use serde_json::{Value, json};
use turbo_serve::engine::{DefaultPrompt, OpenOptions};

use crate::{
    fake::{assert_tei, empty, invalid, refuses},
    models::{assert_near, list, ok, serve, serve_in_parts, start},
};

#[test]
fn answers_are_parts_of_the_context() {
    for fixture in ["pipeline-answers-wordpiece", "pipeline-answers-roberta", "pipeline-answers-xlm-roberta"]
    {
        let (server, cases) = serve_in_parts(fixture, 1);
        let mut windows = 0;
        for case in &cases {
            let mut parameters = case["options"].clone();
            (parameters["max_seq_len"], parameters["doc_stride"]) =
                (case["max_len"].clone(), case["stride"].clone());
            let inputs = json!({ "question": case["question"], "context": case["context"] });
            let body = json!({ "inputs": inputs, "parameters": parameters });
            let answer = ok(&server.post("/pipeline/question-answering", body.to_string()));
            let answers = if answer.is_array() { list(&answer).to_vec() } else { vec![answer] };
            windows = windows.max(list(&case["windows"]).len());
            let context: Vec<char> = case["context"].as_str().unwrap().chars().collect();
            for answer in &answers {
                let [start, end] = ["start", "end"].map(|side| answer[side].as_u64().unwrap() as usize);
                assert_eq!(
                    answer["answer"],
                    context[start..end].iter().collect::<String>(),
                    "{fixture}: {answer}"
                );
            }
            let expected = list(&case["answers"]);
            for (got, expected) in answers.iter().zip(expected) {
                assert_near(&got["score"], expected["score"].as_f64().unwrap(), &body);
                for field in ["start", "end", "answer"] {
                    assert_eq!(got[field], expected[field], "{fixture} {body}");
                }
            }
        }
        assert!(windows > 1, "{fixture}: no context is longer than a window");
    }
}

#[test]
fn entities_are_parts_of_the_text() {
    for fixture in
        ["pipeline-entities-wordpiece", "pipeline-entities-roberta", "pipeline-entities-xlm-roberta"]
    {
        let (server, cases) = serve(fixture);
        for case in &cases {
            for strategy in ["none", "simple", "first", "average", "max"] {
                let expected = list(&case["entities"][strategy]);
                let parameters = json!({ "aggregation_strategy": strategy, "ignore_labels": ["O"] });
                let body = json!({ "inputs": case["text"], "parameters": parameters });
                let answer = ok(&server.post("/pipeline/token-classification", body.to_string()));
                let text: Vec<char> = case["text"].as_str().unwrap().chars().collect();
                let label = if strategy == "none" { "entity" } else { "entity_group" };
                assert_eq!(list(&answer).len(), expected.len(), "{fixture} {body}: {answer}");
                for (got, expected) in list(&answer).iter().zip(expected) {
                    assert_eq!(
                        (&got[label], &got["start"]),
                        (&expected["label"], &expected["start"]),
                        "{body}"
                    );
                    assert_near(&got["score"], expected["score"].as_f64().unwrap(), &body);
                    let [start, end] = ["start", "end"].map(|side| got[side].as_u64().unwrap() as usize);
                    let word: String = text[start..end].iter().collect();
                    assert_eq!(
                        got["word"],
                        if strategy == "none" { expected["word"].clone() } else { json!(word) }
                    );
                }
            }
        }
        let both = json!({ "inputs": [cases[0]["text"], cases[1]["text"]] });
        let answer = ok(&server.post("/", both.to_string()));
        assert!(answer[0].is_array() && list(&answer).len() == 2, "{answer}");
    }
}

#[test]
fn words_fill_the_gaps_of_a_text() {
    for fixture in ["pipeline-fill-mask-wordpiece", "pipeline-fill-mask-roberta"] {
        let (server, cases) = serve_in_parts(fixture, 2);
        for case in cases.iter().filter(|case| list(&case["targets"]).is_empty()) {
            let body = json!({ "inputs": case["text"], "parameters": { "top_k": case["top_k"] } });
            let answer = ok(&server.post("/pipeline/fill-mask", body.to_string()));
            let gaps = list(&case["filled"]);
            let got = if gaps.len() == 1 { vec![answer] } else { list(&answer).to_vec() };
            assert_eq!(got.len(), gaps.len(), "{fixture} {body}");
            for (got, expected) in got.iter().zip(gaps) {
                assert_eq!(list(got).len(), list(expected).len());
                for (got, expected) in list(got).iter().zip(list(expected)) {
                    assert_near(&got["score"], expected["score"].as_f64().unwrap(), &body);
                    for field in ["token", "token_str", "sequence"] {
                        assert_eq!(got[field], expected[field], "{fixture} {body}");
                    }
                }
            }
        }
        let reply = server.post("/", r#"{"inputs":"no gap"}"#);
        assert_tei("no gap", &reply, 422, "Validation", "input 0: there is no `");
        let info = server.get("/info").json();
        assert!(info["model_type"]["masked_lm"]["mask_token"].is_string(), "{info}");
    }
}

const QUESTIONS: &str = "/pipeline/question-answering";
const TOKENS: &str = "/pipeline/token-classification";
const MASKS: &str = "/pipeline/fill-mask";

/// A question about a short context.
fn who(parameters: Value) -> Value {
    json!({ "inputs": { "question": "who?", "context": "the cat" }, "parameters": parameters })
}

#[test]
fn what_is_wrong_with_a_pipelines_request() {
    let (answers, entities) = (serve("pipeline-answers-wordpiece").0, serve("pipeline-entities-wordpiece").0);
    let gaps = serve("pipeline-fill-mask-wordpiece").0;
    let long = "the cat sat on the mat ".repeat(20);
    refuses(
        &answers,
        QUESTIONS,
        [
            (json!({ "inputs": "who?" }), invalid("string \"who?\", expected a JSON object")),
            (json!({ "inputs": { "context": "a" } }), invalid("missing field `question`")),
            (who(json!({ "top_k": 0 })), invalid("`top_k` is 0, expected at least 1")),
            (who(json!({ "top_k": 1001 })), invalid("`top_k` is 1001, expected at most")),
            (who(json!({ "top_k": -1 })), invalid("integer `-1`")),
            (who(json!({ "max_answer_len": 513 })), invalid("`max_answer_len` is 513")),
            (who(json!({ "max_seq_len": 3 })), (422, "Tokenizer", "leaves")),
            (
                json!({ "inputs": { "question": long, "context": "a" } }),
                (422, "Tokenizer", "the question leaves"),
            ),
        ],
    );
    let stride = |stride: usize| json!({ "inputs": long, "parameters": { "stride": stride } });
    refuses(
        &entities,
        TOKENS,
        [
            (json!({ "inputs": [] }), empty("`inputs` cannot be empty")),
            (json!({ "inputs": [1] }), invalid("integer `1`, expected a text at [0]")),
            (
                json!({ "inputs": "a", "parameters": { "aggregation_strategy": "best" } }),
                invalid("unknown variant `best`"),
            ),
            // Its end would be cut off, and the entities there would be missing.
            (stride(8), invalid("`stride` is not possible here: send the parts")),
            (stride(0), invalid("are possible: shorten it")),
        ],
    );
    let mask = |parameters: Value| json!({ "inputs": "[MASK]", "parameters": parameters });
    refuses(
        &gaps,
        MASKS,
        [
            (json!({ "inputs": "no gap" }), invalid("there is no `[MASK]` in the ")),
            (json!({ "inputs": format!("{long}[MASK]") }), invalid("tokens that are read of it")),
            (json!({ "inputs": ["[MASK]"] }), invalid("invalid type: sequence, expected a string")),
            (mask(json!({ "top_k": 1001 })), invalid("1001 words (`top_k`) for each of its")),
            (mask(json!({ "targets": [] })), empty("`targets` cannot be empty")),
            (mask(json!({ "targets": vec!["a"; 1001] })), invalid("there are 1001 `targets`, at most 1000")),
            (mask(json!({ "targets": ["a", ""] })), invalid("`targets`[1] has no tokens")),
            (mask(json!({ "top_k": 0 })), invalid("`top_k` is 0, expected at least 1")),
        ],
    );
}

#[test]
fn questions_that_would_take_too_much_memory_are_refused() {
    let answers = serve("pipeline-answers-wordpiece").0;
    // Windows of 64 tokens that hold a question of 24 and share 32 advance by only a few tokens each.
    let (question, context) = ("the cat ".repeat(12), "a ".repeat(450_000));
    let windows = json!({ "inputs": { "question": question, "context": context } });
    // A thousand answers for each of thousands of windows would be kept and compared.
    let inputs = json!({ "question": "who?", "context": "a ".repeat(200_000) });
    let candidates = json!({ "inputs": inputs, "parameters": { "top_k": 1000 } });
    refuses(
        &answers,
        QUESTIONS,
        [
            (windows, invalid("tokens, at most 4194304 tokens together")),
            (candidates, invalid("1000 candidate answers (`top_k`) of up to 15 tokens")),
        ],
    );
}

#[test]
fn unusual_requests_of_pipelines_are_answered() {
    let answers = serve("pipeline-answers-wordpiece").0;
    let few = ok(&answers.post(QUESTIONS, who(json!({ "top_k": 9 })).to_string()));
    assert!(few.is_array(), "{few}");
    let no_context = json!({ "inputs": { "question": "who?", "context": "" } });
    let answer = ok(&answers.post(QUESTIONS, no_context.to_string()));
    assert_eq!(answer["answer"], "", "{answer}");

    let gaps = serve("pipeline-fill-mask-wordpiece").0;
    let words = |parameters: Value| {
        let body = json!({ "inputs": "a [MASK] c", "parameters": parameters });
        list(&ok(&gaps.post(MASKS, body.to_string()))).to_vec()
    };
    assert_eq!(words(json!({ "targets": ["the", "cat"] })).len(), 2);
    // In the vocabulary's own spelling, which no text is tokenized to.
    let pieces = words(json!({ "targets": ["##a", "##b"] }));
    let mut ids: Vec<_> = pieces.iter().map(|word| word["token"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [47, 48], "{pieces:?}");
    let many: Vec<String> = ('a'..='z').chain('0'..='9').map(String::from).collect();
    let answered = words(json!({ "targets": many, "top_k": 1000 }));
    assert_eq!(answered.len(), 36, "more than one request may have");

    let entities = serve("pipeline-entities-wordpiece").0;
    for stride in [json!(0), json!(null)] {
        let body = json!({ "inputs": "the cat", "parameters": { "stride": stride } });
        ok(&entities.post(TOKENS, body.to_string()));
    }
}

#[test]
fn default_prompts_are_not_for_texts_whose_parts_are_told() {
    for (fixture, body) in [
        ("pipeline-entities-wordpiece", json!({ "inputs": "the cat sat" })),
        (
            "pipeline-fill-mask-wordpiece",
            json!({ "inputs": "a [MASK] c", "parameters": { "targets": ["the", "cat"] } }),
        ),
        ("pipeline-answers-wordpiece", json!({ "inputs": { "question": "who?", "context": "the cat" } })),
    ] {
        let default_prompt = Some(DefaultPrompt::Text("hello ".into()));
        let answers = [None, default_prompt].map(|default_prompt| {
            let server = start(fixture, OpenOptions { default_prompt, ..OpenOptions::default() });
            ok(&server.post("/", body.to_string()))
        });
        assert_eq!(answers[0], answers[1], "{fixture}");
    }
}
