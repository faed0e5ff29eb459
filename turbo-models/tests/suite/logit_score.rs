//! Language models that are rerankers: a template writes the pairs, and logits of the next token make the score.

use std::fs;

use serde_json::{Value, json};
use turbo_models::{Checkpoint, ScoreFunction, Task, TextTokenizer, TokenizeError, Truncation};

use crate::{
    as_published::matches_from_text,
    common::data,
    copies::{copy, error, set},
};

/// One has its own vocabulary matrix and its own words to judge by.
#[test]
fn logit_score() {
    for (folder, function) in
        [("tiny-logit-score", ScoreFunction::Sigmoid), ("tiny-logit-score-one", ScoreFunction::Identity)]
    {
        matches_from_text(folder);
        let checkpoint = Checkpoint::open(&data(folder)).unwrap();
        assert_eq!(checkpoint.task(), Some(Task::SequenceClassification));
        assert_eq!(checkpoint.labels(), ["LABEL_0"]);
        let functions = (checkpoint.score_function(), checkpoint.pair_score_function());
        assert_eq!(functions, (ScoreFunction::Sigmoid, function));
        assert_eq!(checkpoint.row_lens(Task::SequenceClassification).unwrap().pooled, Some(1));
        // whichever token is padding, the last token is the last one
        assert_eq!(checkpoint.padding_id(Task::SequenceClassification).unwrap(), None);
    }
}

#[test]
fn a_written_pair_is_cut_before_the_end_of_its_template() {
    let checkpoint = Checkpoint::open(&data("tiny-logit-score")).unwrap();
    let tokenizer = checkpoint.tokenizer().unwrap();
    let ids = |tokenizer: &TextTokenizer, document: &str, truncation| {
        tokenizer.encode(("the cat", document), truncation).map(|encoded| encoded.input_ids)
    };
    let whole = ids(tokenizer, "a dog", Truncation::Off).unwrap();
    let of_template =
        tokenizer.encode("<|end|>\n<|start|>answer<|end|>\n", Truncation::Off).unwrap().input_ids;
    let end = &of_template[..];
    assert!(whole.ends_with(end) && end.len() > 4, "{end:?}");
    for limit in 0..whole.len() {
        let limited = tokenizer.limited_to(limit);
        let error = ids(&limited, "a dog", Truncation::Off).unwrap_err();
        assert!(matches!(error, TokenizeError::TooLong { limit: got, .. } if got == limit), "{error}");
        let left = ids(&limited, "a dog", Truncation::Left);
        let right = ids(&limited, "a dog", Truncation::Right);
        if limit == 0 {
            assert_eq!((left, right), (Err(TokenizeError::Empty), Err(TokenizeError::Empty)));
            continue;
        }
        assert_eq!(left.unwrap(), whole[whole.len() - limit..]);
        let kept = end.len().min(limit);
        assert_eq!(right.unwrap(), [&whole[..limit - kept], &end[end.len() - kept..]].concat(), "{limit}");
    }
    let told = tokenizer.with_instruction("Is it a dog?").unwrap();
    assert!(told.writes_pairs() && ids(&told, "a dog", Truncation::Off).unwrap() != whole);
    let cut = ids(&told.limited_to(60), "a dog", Truncation::Right).unwrap();
    assert!(cut.ends_with(end) && cut.len() == 60, "{cut:?}");
    // a single text is not written by the template
    let one = tokenizer.encode("<|start|>the", Truncation::Off).unwrap().input_ids;
    assert_eq!(one.len(), 2, "{one:?}");
}

#[test]
fn a_logit_score_that_makes_no_sense_is_refused() {
    let changed = |file: &str, field: &str, value: Value| {
        let folder = copy("tiny-logit-score");
        set(&folder.path().join(file), field, value);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let error = checkpoint.graph(Task::SequenceClassification).err().unwrap().to_string();
        assert!(checkpoint.warnings().iter().any(|warning| warning.ends_with(&error)), "{error}");
        error
    };
    for (file, field, value, why) in [
        ("1_LogitScore/config.json", "true_token_id", json!(5000), "LogitScore names token 5000"),
        ("1_LogitScore/config.json", "false_token_id", json!(267), "LogitScore names token 267"),
        ("config.json", "tie_word_embeddings", json!(false), "tensor lm_head.weight is missing"),
        ("config.json", "final_logit_softcapping", json!(30.0), "final_logit_softcapping is \"30\""),
        ("config.json", "is_causal", json!(false), "is_causal is \"false\""),
    ] {
        let said = changed(file, field, value);
        assert!(said.contains(why), "{field}: {said}");
    }
    let folder = copy("tiny-logit-score");
    fs::write(folder.path().join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    let said = error(folder.path());
    assert!(said.contains("chat_template.jinja: chat_template: it does not write"), "{said}");
}
