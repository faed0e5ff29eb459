//! The results made from logits are those of the reference's pipelines. Whatever the logits are, spans slice the text
//! and scores are between 0 and 1.

use std::fs;

use proptest::prelude::*;
use serde::{Deserialize, de::DeserializeOwned};
use turbo_models::{
    CharOffsets, Encoding, InputLimits, ScoreFunction, Text, TextTokenizer, Truncation,
    tasks::{
        Aggregation, Answer, AnswerOptions, AnswerWindow, Edges, Entity, NullAnswer, TaskError, answers,
        classify, entities, fill_mask, filled_text, mask_positions, sparse,
    },
};

use crate::common::data;

/// The reference computes in float32, this code in float64.
const TOLERANCE: f32 = 2e-6;

#[derive(Deserialize)]
struct Golden<T> {
    cases: Vec<T>,
}

fn golden<T: DeserializeOwned>(fixture: &str) -> Vec<T> {
    let file = fs::read(data(fixture).join("golden.json")).unwrap();
    let cases = serde_json::from_slice::<Golden<T>>(&file).unwrap().cases;
    assert!(cases.len() >= 4, "{fixture}");
    cases
}

fn tokenizer(fixture: &str) -> TextTokenizer {
    let limits = InputLimits { max_input_length: 128, vocab_size: 1000, type_vocab_size: 2 };
    TextTokenizer::open(&data(fixture), limits).unwrap().unwrap()
}

#[track_caller]
fn assert_close(got: f32, expected: f64, of: &str) {
    let difference = (f64::from(got) - expected).abs() as f32;
    assert!(difference < TOLERANCE, "{of}: {got} instead of {expected}");
}

#[derive(Deserialize)]
struct Classified {
    logits: Vec<f32>,
    scores: Scores,
}

#[derive(Deserialize)]
struct Scores {
    softmax: Vec<Label>,
    sigmoid: Vec<Label>,
    none: Vec<Label>,
}

#[derive(Deserialize)]
struct Label {
    label: String,
    score: f64,
}

#[test]
fn labels_are_the_pipeline_s() {
    for case in golden::<Classified>("pipeline-classify") {
        let functions = [
            (ScoreFunction::Softmax, case.scores.softmax),
            (ScoreFunction::Sigmoid, case.scores.sigmoid),
            (ScoreFunction::Identity, case.scores.none),
        ];
        for (function, expected) in functions {
            let got = classify(&case.logits, function).unwrap();
            assert_eq!(got.len(), expected.len());
            for (got, expected) in got.iter().zip(expected) {
                assert_eq!(format!("LABEL_{}", got.index), expected.label, "{function:?}");
                assert_close(got.score, expected.score, &expected.label);
            }
        }
    }
}

#[derive(Deserialize)]
struct Tagged {
    text: String,
    logits: Vec<f32>,
    entities: Found,
}

#[derive(Deserialize)]
struct Found {
    none: Vec<Part>,
    simple: Vec<Part>,
    first: Vec<Part>,
    average: Vec<Part>,
    max: Vec<Part>,
}

#[derive(Deserialize)]
struct Part {
    label: String,
    score: f64,
    start: usize,
    end: usize,
    word: String,
}

fn tags() -> Vec<String> {
    ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"].map(str::to_owned).to_vec()
}

#[test]
fn entities_are_the_pipeline_s() {
    let tags = tags();
    for kind in ["wordpiece", "roberta", "xlm-roberta"] {
        let fixture = format!("pipeline-entities-{kind}");
        let tokenizer = tokenizer(&fixture);
        for Tagged { text, logits, entities: expected } in golden(&fixture) {
            let encoding = tokenizer.encode_detailed(&text, Truncation::Right).unwrap();
            let characters = CharOffsets::of(&text);
            let cases = [
                (Aggregation::None, expected.none),
                (Aggregation::Simple, expected.simple),
                (Aggregation::First, expected.first),
                (Aggregation::Average, expected.average),
                (Aggregation::Max, expected.max),
            ];
            for (aggregation, expected) in cases {
                let at = format!("{kind}, {text:?}, {aggregation:?}");
                let got = entities(&encoding, &logits, &tags, aggregation, &["O"]).unwrap();
                let places = |entity: &Entity<'_>| {
                    let range = characters.range(&entity.bytes);
                    (entity.label.to_owned(), range.start, range.end)
                };
                let got_places: Vec<_> = got.iter().map(places).collect();
                let expected_places: Vec<_> =
                    expected.iter().map(|it| (it.label.clone(), it.start, it.end)).collect();
                assert_eq!(got_places, expected_places, "{at}");
                for (got, expected) in got.iter().zip(expected) {
                    assert_close(got.score, expected.score, &at);
                    if aggregation == Aggregation::None {
                        // for an unknown word, the pipeline shows the text itself
                        let token = encoding.tokens[got.tokens.start].as_str();
                        let word = if token == "[UNK]" || token == "<unk>" {
                            &text[got.bytes.clone()]
                        } else {
                            token
                        };
                        assert_eq!(word, expected.word, "{at}");
                    }
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct Answered {
    question: String,
    context: String,
    max_len: usize,
    stride: usize,
    options: Options,
    windows: Vec<Logits>,
    answers: Vec<ReferenceAnswer>,
}

#[derive(Deserialize)]
struct Options {
    top_k: usize,
    max_answer_len: Option<usize>,
    #[serde(default)]
    handle_impossible_answer: bool,
    align_to_words: Option<bool>,
}

#[derive(Deserialize)]
struct Logits {
    start: Vec<f32>,
    end: Vec<f32>,
}

#[derive(Deserialize)]
struct ReferenceAnswer {
    score: f64,
    start: usize,
    end: usize,
    answer: String,
}

impl From<Options> for AnswerOptions {
    fn from(options: Options) -> Self {
        let default = Self::default();
        Self {
            top_k: options.top_k,
            max_answer_len: options.max_answer_len.unwrap_or(default.max_answer_len),
            null_answer: if options.handle_impossible_answer {
                NullAnswer::Allowed
            } else {
                NullAnswer::Forbidden
            },
            edges: if options.align_to_words == Some(false) { Edges::Tokens } else { Edges::Words },
        }
    }
}

fn interleaved(logits: &Logits) -> Vec<f32> {
    logits.start.iter().zip(&logits.end).flat_map(|(start, end)| [*start, *end]).collect()
}

#[test]
fn answers_are_the_pipeline_s() {
    for kind in ["wordpiece", "roberta", "xlm-roberta"] {
        let fixture = format!("pipeline-answers-{kind}");
        let tokenizer = tokenizer(&fixture);
        let mut several = 0;
        for Answered { question, context, max_len, stride, options, windows, answers: expected } in
            golden(&fixture)
        {
            let at = format!("{kind}, {question:?}, {context:?}, {max_len}");
            let encodings = tokenizer.windows(&question, &context, max_len, stride).unwrap();
            assert_eq!(encodings.len(), windows.len(), "{at}");
            several += usize::from(windows.len() > 1);
            let logits: Vec<Vec<f32>> = windows.iter().map(interleaved).collect();
            let windows: Vec<AnswerWindow<'_>> = encodings
                .iter()
                .zip(&logits)
                .map(|(encoding, logits)| AnswerWindow { encoding, logits })
                .collect();
            let options = AnswerOptions::from(options);
            let got = answers(&context, &windows, &options).unwrap();
            // the reference fills up with answers of score 0, which are not answers
            let expected: Vec<_> = expected.into_iter().filter(|answer| answer.score > 0.0).collect();
            let characters = CharOffsets::of(&context);
            let places = |answer: &Answer| {
                let range = characters.range(&answer.bytes);
                (range.start, range.end, &context[answer.bytes.clone()])
            };
            let got_places: Vec<_> = got.iter().map(places).collect();
            let expected_places: Vec<_> =
                expected.iter().map(|it| (it.start, it.end, it.answer.as_str())).collect();
            assert_eq!(got_places, expected_places, "{at}, {options:?}");
            for (got, expected) in got.iter().zip(&expected) {
                assert_close(got.score, expected.score, &at);
            }
        }
        assert!(several >= 4, "{kind}: {several} with several windows");
    }
}

#[derive(Deserialize)]
struct Masked {
    text: String,
    ids: Vec<u32>,
    masks: Vec<usize>,
    top_k: usize,
    targets: Vec<u32>,
    logits: Vec<Vec<f32>>,
    filled: Vec<Vec<Word>>,
}

#[derive(Deserialize)]
struct Word {
    score: f64,
    token: u32,
    sequence: String,
}

#[test]
fn filled_masks_are_the_pipeline_s() {
    for kind in ["wordpiece", "roberta"] {
        let fixture = format!("pipeline-fill-mask-{kind}");
        let tokenizer = tokenizer(&fixture);
        let (mask, _) = tokenizer.mask_token().unwrap();
        for case in golden::<Masked>(&fixture) {
            let ids = tokenizer.encode(&case.text, Truncation::Off).unwrap().input_ids;
            assert_eq!(ids, case.ids, "{kind}: {:?}", case.text);
            assert_eq!(mask_positions(&ids, mask), case.masks);
            let targets = (!case.targets.is_empty()).then_some(&case.targets[..]);
            for ((logits, at), expected) in case.logits.iter().zip(&case.masks).zip(&case.filled) {
                let got = fill_mask(logits, case.top_k, targets).unwrap();
                assert_eq!(got.len(), expected.len());
                for (got, expected) in got.iter().zip(expected) {
                    assert_eq!(got.id, expected.token, "{kind}: {:?}", case.text);
                    assert_close(got.score, expected.score, &case.text);
                    assert_eq!(filled_text(&tokenizer, &ids, *at, got.id).unwrap(), expected.sequence);
                }
            }
        }
    }
}

/// Any number, infinity and NaN included; often large numbers, since they overflow.
fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -9.0_f32..9.0,
        1 => any::<f32>(),
        1 => prop::sample::select(vec![
            f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, -0.0, 0.0, 1e-45, -1e9,
        ]),
    ]
}

fn text() -> impl Strategy<Value = String> {
    let pieces = vec![
        "cat",
        " ",
        "New-York",
        ".",
        "é",
        "e\u{301}",
        "東京",
        "😀",
        "👨\u{200d}👩",
        "\t",
        "\u{a0}",
        "\0",
        "İ",
        "  ",
        "[MASK]",
        "<s>",
        "##",
        "\u{301}",
        "don't",
        "ﬁ",
        "\u{fffd}",
        "ẞ",
    ];
    prop_oneof![
        prop::collection::vec(prop::sample::select(pieces), 0..24).prop_map(|it| it.concat()),
        any::<String>()
    ]
}

fn between_0_and_1(score: f32) -> Result<(), TestCaseError> {
    prop_assert!((0.0..=1.0).contains(&score), "{score}");
    Ok(())
}

/// The first `count` of `logits`, which repeat endlessly, and whether none of them is NaN.
fn taken(logits: &[f32], count: usize) -> (Vec<f32>, bool) {
    let taken: Vec<f32> = logits.iter().copied().cycle().take(count).collect();
    let sound = !taken.iter().any(|logit| logit.is_nan());
    (taken, sound)
}

fn check_entities(encoding: &Encoding, text: &str, logits: &[f32]) -> Result<(), TestCaseError> {
    let tags = tags();
    let (logits, sound) = taken(logits, encoding.len() * tags.len());
    let strategies =
        [Aggregation::None, Aggregation::Simple, Aggregation::First, Aggregation::Average, Aggregation::Max];
    for aggregation in strategies {
        let Ok(found) = entities(encoding, &logits, &tags, aggregation, &[]) else {
            prop_assert!(!sound);
            continue;
        };
        prop_assert!(sound);
        let mut tokens: Vec<usize> = found.iter().flat_map(|entity| entity.tokens.clone()).collect();
        let in_text: Vec<usize> = (0..encoding.len()).filter(|it| !encoding.special[*it]).collect();
        prop_assert_eq!(&tokens, &in_text, "every token is in one entity");
        tokens.dedup();
        for entity in found {
            between_0_and_1(entity.score)?;
            prop_assert!(text.get(entity.bytes.clone()).is_some(), "{:?} of {:?}", entity.bytes, text);
        }
    }
    Ok(())
}

fn check_answers(
    tokenizer: &TextTokenizer,
    context: &str,
    logits: &[f32],
    options: &AnswerOptions,
) -> Result<(), TestCaseError> {
    let encodings = tokenizer.windows("who?", context, 20, 4).unwrap();
    let rows: Vec<(Vec<f32>, bool)> = encodings.iter().map(|it| taken(logits, 2 * it.len())).collect();
    let windows: Vec<AnswerWindow<'_>> = encodings
        .iter()
        .zip(&rows)
        .map(|(encoding, (logits, _))| AnswerWindow { encoding, logits })
        .collect();
    let sound = rows.iter().all(|(_, sound)| *sound);
    let Ok(found) = answers(context, &windows, options) else {
        prop_assert!(!sound);
        return Ok(());
    };
    prop_assert!(sound && found.len() <= options.top_k);
    prop_assert!(found.is_sorted_by(|a, b| a.score >= b.score));
    for answer in &found {
        between_0_and_1(answer.score)?;
        prop_assert!(context.get(answer.bytes.clone()).is_some(), "{:?} of {:?}", answer.bytes, context);
    }
    if options.null_answer == NullAnswer::Forbidden {
        let mut texts: Vec<String> =
            found.iter().map(|it| context[it.bytes.clone()].to_lowercase()).collect();
        texts.sort();
        texts.dedup();
        prop_assert_eq!(texts.len(), found.len(), "one answer per text");
    }
    Ok(())
}

fn options() -> impl Strategy<Value = AnswerOptions> {
    let lens = prop_oneof![0_usize..6, Just(usize::MAX)];
    (lens.clone(), lens, any::<bool>(), any::<bool>()).prop_map(|(top_k, max_answer_len, null, words)| {
        AnswerOptions {
            top_k,
            max_answer_len,
            null_answer: if null { NullAnswer::Allowed } else { NullAnswer::Forbidden },
            edges: if words { Edges::Words } else { Edges::Tokens },
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn spans_slice_the_text_and_scores_are_scores(
        text in text(),
        logits in prop::collection::vec(logit(), 1..40),
        options in options(),
    ) {
        for kind in ["wordpiece", "roberta", "xlm-roberta"] {
            let tokenizer = tokenizer(&format!("pipeline-answers-{kind}"));
            let encoding = tokenizer.encode_detailed(&text, Truncation::Right).unwrap();
            check_entities(&encoding, &text, &logits)?;
            check_answers(&tokenizer, &text, &logits, &options)?;
        }
    }

    #[test]
    fn rows_of_any_logits_have_scores_or_are_refused(logits in prop::collection::vec(logit(), 0..40), top_k in 0_usize..50) {
        let sound = !logits.iter().any(|logit| logit.is_nan());
        for function in [ScoreFunction::Softmax, ScoreFunction::Sigmoid] {
            match classify(&logits, function) {
                Ok(scores) => {
                    prop_assert!(sound && scores.len() == logits.len());
                    scores.iter().try_for_each(|it| between_0_and_1(it.score))?;
                    prop_assert!(scores.is_sorted_by(|a, b| a.score >= b.score));
                }
                Err(error) => prop_assert!(!sound, "{error}"),
            }
        }
        match fill_mask(&logits, top_k, None) {
            Ok(best) => {
                prop_assert!(sound && best.len() == top_k.min(logits.len()));
                best.iter().try_for_each(|it| between_0_and_1(it.score))?;
            }
            Err(error) => prop_assert!(!sound, "{error}"),
        }
        match classify(&logits, ScoreFunction::Identity) {
            Ok(scores) => prop_assert!(sound && scores.iter().all(|it| it.score.is_finite())),
            Err(error) => prop_assert!(!sound, "{error}"),
        }
        match sparse(&logits) {
            Ok(values) => prop_assert!(sound && values.iter().all(|it| it.value.is_finite())),
            Err(error) => prop_assert!(!sound, "{error}"),
        }
    }
}

#[test]
fn rows_of_another_length_are_refused() {
    let tokenizer = tokenizer("pipeline-answers-wordpiece");
    let encoding = tokenizer.encode_detailed("cat", Truncation::Off).unwrap();
    let error = entities(&encoding, &[0.0; 7], &tags(), Aggregation::None, &[]).unwrap_err();
    assert_eq!(error, TaskError::Length { expected: 18, got: 7 });
    let window = AnswerWindow { encoding: &encoding, logits: &[0.0; 3] };
    let error = answers("cat", &[window], &AnswerOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "3 logits, expected 6");
}

/// Overlapping windows find the same answer twice; the sum of its probabilities would be 2.
#[test]
fn scores_that_are_added_stop_at_1() {
    let tokenizer = tokenizer("pipeline-answers-wordpiece");
    let encoding = tokenizer.encode_detailed(Text::Pair("who", "cat sat"), Truncation::Off).unwrap();
    let cat = encoding.sequence_ids.iter().position(|id| *id == Some(1)).unwrap();
    let mut logits = vec![-50.0; 2 * encoding.len()];
    logits[2 * cat..2 * cat + 2].fill(50.0);
    let window = AnswerWindow { encoding: &encoding, logits: &logits };
    let found = answers("cat sat", &[window, window], &AnswerOptions::default()).unwrap();
    assert_eq!(found, [Answer { score: 1.0, bytes: 0..3 }]);
}
