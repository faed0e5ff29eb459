//! Whole folders of the tasks that take several steps: entities, answers, words for a gap.

use serde_json::{Value, json};
use turbo_serve::engine::{DefaultPrompt, OpenOptions};

use crate::{
    fake::assert_tei,
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

#[test]
fn what_is_wrong_with_a_pipelines_request() {
    let (answers, entities) = (serve("pipeline-answers-wordpiece").0, serve("pipeline-entities-wordpiece").0);
    let gaps = serve("pipeline-fill-mask-wordpiece").0;
    let (questions, tokens, masks) =
        ("/pipeline/question-answering", "/pipeline/token-classification", "/pipeline/fill-mask");
    let ask = |parameters: Value| json!({ "inputs": { "question": "who?", "context": "the cat" }, "parameters": parameters });
    let long = "the cat sat on the mat ".repeat(20);
    for (server, path, body, status, error_type, said) in [
        (
            &answers,
            questions,
            json!({ "inputs": "who?" }),
            422,
            "Validation",
            "string \"who?\", expected a JSON object",
        ),
        (
            &answers,
            questions,
            json!({ "inputs": { "context": "a" } }),
            422,
            "Validation",
            "missing field `question`",
        ),
        (
            &answers,
            questions,
            ask(json!({ "top_k": 0 })),
            422,
            "Validation",
            "`top_k` is 0, expected at least 1",
        ),
        (
            &answers,
            questions,
            ask(json!({ "top_k": 1001 })),
            422,
            "Validation",
            "`top_k` is 1001, expected at most",
        ),
        (&answers, questions, ask(json!({ "top_k": -1 })), 422, "Validation", "integer `-1`"),
        (
            &answers,
            questions,
            ask(json!({ "max_answer_len": 513 })),
            422,
            "Validation",
            "`max_answer_len` is 513",
        ),
        (&answers, questions, ask(json!({ "max_seq_len": 3 })), 422, "Tokenizer", "leaves"),
        (
            &answers,
            questions,
            json!({ "inputs": { "question": long, "context": "a" } }),
            422,
            "Tokenizer",
            "the question leaves",
        ),
        (&entities, tokens, json!({ "inputs": [] }), 400, "Empty", "`inputs` cannot be empty"),
        (
            &entities,
            tokens,
            json!({ "inputs": [1] }),
            422,
            "Validation",
            "integer `1`, expected a text at [0]",
        ),
        (
            &entities,
            tokens,
            json!({ "inputs": "a", "parameters": { "aggregation_strategy": "best" } }),
            422,
            "Validation",
            "unknown variant `best`",
        ),
        // Its end would be cut off, and the entities there would be missing.
        (
            &entities,
            tokens,
            json!({ "inputs": long, "parameters": { "stride": 8 } }),
            422,
            "Validation",
            "`stride` is not possible here: send the parts",
        ),
        (
            &entities,
            tokens,
            json!({ "inputs": long, "parameters": { "stride": 0 } }),
            422,
            "Validation",
            "are possible: shorten it",
        ),
        (&gaps, masks, json!({ "inputs": "no gap" }), 422, "Validation", "there is no `[MASK]` in the "),
        (
            &gaps,
            masks,
            json!({ "inputs": format!("{long}[MASK]") }),
            422,
            "Validation",
            "tokens that are read of it",
        ),
        (
            &gaps,
            masks,
            json!({ "inputs": ["[MASK]"] }),
            422,
            "Validation",
            "invalid type: sequence, expected a string",
        ),
        (
            &gaps,
            masks,
            json!({ "inputs": "[MASK]", "parameters": { "top_k": 1001 } }),
            422,
            "Validation",
            "1001 words (`top_k`) for each of its",
        ),
        (
            &gaps,
            masks,
            json!({ "inputs": "[MASK]", "parameters": { "targets": [] } }),
            400,
            "Empty",
            "`targets` cannot be empty",
        ),
        (
            &gaps,
            masks,
            json!({ "inputs": "[MASK]", "parameters": { "targets": vec!["a"; 1001] } }),
            422,
            "Validation",
            "there are 1001 `targets`, at most 1000",
        ),
        (
            &gaps,
            masks,
            json!({ "inputs": "[MASK]", "parameters": { "targets": ["a", ""] } }),
            422,
            "Validation",
            "`targets`[1] has no tokens",
        ),
        (
            &gaps,
            masks,
            json!({ "inputs": "[MASK]", "parameters": { "top_k": 0 } }),
            422,
            "Validation",
            "`top_k` is 0, expected at least 1",
        ),
    ] {
        let reply = server.post(path, body.to_string());
        assert_tei(&format!("{path} {body:.80}"), &reply, status, error_type, said);
    }
    // Windows of 64 tokens that hold a question of 24 and share 32 advance by only a few tokens each.
    let (question, context) = ("the cat ".repeat(12), "a ".repeat(450_000));
    let body = json!({ "inputs": { "question": question, "context": context } });
    let reply = answers.post(questions, body.to_string());
    assert_tei("windows", &reply, 422, "Validation", "tokens, at most 4194304 tokens together");
    // A thousand answers for each of thousands of windows would be kept and compared.
    let inputs = json!({ "question": "who?", "context": "a ".repeat(200_000) });
    let body = json!({ "inputs": inputs, "parameters": { "top_k": 1000 } });
    let reply = answers.post(questions, body.to_string());
    assert_tei("answers", &reply, 422, "Validation", "1000 candidate answers (`top_k`) of up to 15 tokens");
    let none = ok(&answers.post(questions, ask(json!({ "top_k": 9 })).to_string()));
    assert!(none.is_array(), "{none}");
    let empty = json!({ "inputs": { "question": "who?", "context": "" } });
    let answer = ok(&answers.post(questions, empty.to_string()));
    assert_eq!(answer["answer"], "", "{answer}");
    let targets = json!({ "inputs": "a [MASK] c", "parameters": { "targets": ["the", "cat"] } });
    let words = ok(&gaps.post(masks, targets.to_string()));
    assert_eq!(list(&words).len(), 2, "{words}");
    // In the vocabulary's own spelling, which no text is tokenized to.
    let targets = json!({ "inputs": "a [MASK] c", "parameters": { "targets": ["##a", "##b"] } });
    let words = ok(&gaps.post(masks, targets.to_string()));
    let mut ids: Vec<_> = list(&words).iter().map(|word| word["token"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [47, 48], "{words}");
    for stride in [json!(0), json!(null)] {
        let body = json!({ "inputs": "the cat", "parameters": { "stride": stride } });
        ok(&entities.post(tokens, body.to_string()));
    }
    let many: Vec<String> = ('a'..='z').chain('0'..='9').map(String::from).collect();
    let targets = json!({ "inputs": "a [MASK] c", "parameters": { "targets": many, "top_k": 1000 } });
    assert_eq!(list(&ok(&gaps.post(masks, targets.to_string()))).len(), 36, "more than one request may have");
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
