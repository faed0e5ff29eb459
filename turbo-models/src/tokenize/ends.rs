//! Adds the tokens that `tokenizer_config.json` wants around every text, if the steps of the tokenizer do not put them
//! there. Up to version 4 of the transformers library, the classes of some decoders do so as they load (Llama's, which
//! Mistral's models have, and that of GTE-Qwen2); other classes never do. Where the last token stands for a text, it is
//! one of these tokens.
//!
//! Departs from the reference in one thing: some of those classes rebuild the steps, and so remove tokens that a file
//! does not want, or does not name. Here the tokens that the steps of `tokenizer.json` put there stay, with a warning
//! if the other file says no ([`kept`]).

use serde_json::Value;
use tokenizers::{
    PostProcessor, PostProcessorWrapper, Tokenizer,
    processors::{
        sequence::Sequence,
        template::{SpecialToken, TemplateProcessing},
    },
};

use super::{
    file::{guarded, said_token},
    older,
    tokens::of_ids,
};
use crate::{ModelError, error::one_line, json::JsonObject};

/// Stands for a text; no vocabulary has so many tokens.
const TEXT: u32 = u32::MAX;

/// Flags that ask for the tokens of beginning and end around texts, and the fields that name these tokens.
const FLAGS: [(&str, &str); 2] = [("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")];

/// The classes that follow the flags. Classes in a model's own code follow them as well, as GTE-Qwen2's does.
const CLASSES: [&str; 5] =
    ["LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer", "GPTNeoXTokenizer"];

/// The class of the tokenizer, if it ignores the flags; `None` if it follows them, or is not named.
fn heedless(config: &JsonObject) -> Result<Option<String>, ModelError> {
    let own: Option<Value> = config.get("auto_map")?;
    if own.is_some_and(|classes| classes.get("AutoTokenizer").is_some()) {
        return Ok(None);
    }
    let class: Option<String> = config.get(older::CLASS)?;
    Ok(class.filter(|class| !CLASSES.contains(&older::family(class))))
}

/// Warns about flags that ask for tokens which a tokenizer of this class does not put anywhere.
pub(super) fn unheeded(tokenizer: &Tokenizer, config: &JsonObject) -> Result<Vec<String>, ModelError> {
    let Some(class) = heedless(config)? else { return Ok(Vec::new()) };
    let wanted = |flag: &&(&'static str, &'static str)| {
        flagged(**flag, true, config, tokenizer).is_ok_and(|id| id.is_some_and(|id| !is_put(id, tokenizer)))
    };
    let warn = |(flag, _): &(&str, &str)| {
        format!("tokenizer_config.json: {flag} is true, which {} does not heed", one_line(&class))
    };
    Ok(FLAGS.iter().filter(wanted).map(warn).collect())
}

/// Whether the steps put this token before or behind texts.
fn is_put(id: u32, tokenizer: &Tokenizer) -> bool {
    around(tokenizer).is_none_or(|(before, behind)| before.contains(&id) || behind.contains(&id))
}

/// Puts the tokens of beginning and end around texts, if `config` wants them and they are not there yet. In a pair,
/// they are put around each text.
///
/// # Errors
/// [`ModelError::Field`] for tokens that cannot be put there.
pub(super) fn add(tokenizer: &mut Tokenizer, config: &JsonObject) -> Result<(), ModelError> {
    if heedless(config)?.is_some() {
        return Ok(());
    }
    let [first, last] = FLAGS.map(|flag| flagged(flag, true, config, tokenizer));
    let (first, last) = (first?, last?);
    let Some((mut before, mut behind)) = around(tokenizer) else { return Ok(()) };
    let first = first.filter(|id| before.first() != Some(id));
    let last = last.filter(|id| behind.last() != Some(id));
    if first.is_none() && last.is_none() {
        return Ok(());
    }
    before.splice(0..0, first);
    behind.extend(last);
    let steps = template(&before, &behind, tokenizer)
        .map_err(|why| config.wrong(if last.is_some() { "add_eos_token" } else { "add_bos_token" }, why))?;
    let kept = byte_level(tokenizer.get_post_processor());
    tokenizer.with_post_processor(Some(match kept {
        None => PostProcessorWrapper::Template(steps),
        Some(bytes) => PostProcessorWrapper::Sequence(Sequence::new(vec![bytes, steps.into()])),
    }));
    Ok(())
}

/// The flags by which `config` does not want tokens that the steps put before or behind a text.
pub(super) fn kept(tokenizer: &Tokenizer, config: &JsonObject) -> Result<Vec<&'static str>, ModelError> {
    if heedless(config)?.is_some() {
        return Ok(Vec::new());
    }
    let [first, last] = FLAGS.map(|flag| flagged(flag, false, config, tokenizer));
    let (first, last) = (first?, last?);
    if first.is_none() && last.is_none() {
        return Ok(Vec::new());
    }
    let Some((before, behind)) = around(tokenizer) else { return Ok(Vec::new()) };
    let is_kept =
        [(first, before), (last, behind)].map(|(id, there)| id.is_some_and(|id| there.contains(&id)));
    Ok(FLAGS.iter().zip(is_kept).filter(|(_, is_kept)| *is_kept).map(|((flag, _), _)| *flag).collect())
}

/// The id of a flag's token, if `config` sets the flag to `says` and the vocabulary has the token.
fn flagged(
    (flag, token): (&'static str, &'static str),
    says: bool,
    config: &JsonObject,
    tokenizer: &Tokenizer,
) -> Result<Option<u32>, ModelError> {
    match config.get::<Value>(flag)? == Some(Value::Bool(says)) {
        true => Ok(said_token(config, token, tokenizer)?.map(|(id, _)| id)),
        false => Ok(None),
    }
}

/// What the steps put before and behind a text; `None` if that is not the same for every text.
fn around(tokenizer: &Tokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
    let Some(steps) = tokenizer.get_post_processor() else { return Some((Vec::new(), Vec::new())) };
    let joined = guarded(|| steps.process(of_ids(vec![TEXT]), None, true)).ok()?;
    let mut parts = joined.get_ids().split(|id| *id == TEXT).map(<[u32]>::to_vec);
    let (before, behind) = (parts.next()?, parts.next()?);
    parts.next().is_none().then_some((before, behind))
}

/// The step that moves the places of tokens to where their letters begin; it puts nothing around texts.
fn byte_level(steps: Option<&PostProcessorWrapper>) -> Option<PostProcessorWrapper> {
    let is_byte_level = |step: &&PostProcessorWrapper| matches!(step, PostProcessorWrapper::ByteLevel(_));
    match steps? {
        PostProcessorWrapper::Sequence(steps) => steps.as_ref().iter().find(is_byte_level).cloned(),
        step => Some(step).filter(is_byte_level).cloned(),
    }
}

/// The step that puts these tokens around each text.
fn template(before: &[u32], behind: &[u32], tokenizer: &Tokenizer) -> Result<TemplateProcessing, String> {
    // by number, since a token may be spelled like something else in a template
    let name = |id: &u32, sequence: usize| format!("{id}:{sequence}");
    let around = |text: &str, sequence: usize| {
        let (before, behind) = (before.iter(), behind.iter());
        let text = [format!("{text}:{sequence}")];
        let pieces = before.map(|id| name(id, sequence)).chain(text);
        pieces.chain(behind.map(|id| name(id, sequence))).collect::<Vec<String>>()
    };
    let special = before.iter().chain(behind).map(|&id| {
        let token = tokenizer.id_to_token(id).ok_or_else(|| format!("{id} is no token"))?;
        SpecialToken::new(id.to_string(), vec![id], vec![token]).map_err(one_line)
    });
    let special = special.collect::<Result<Vec<_>, String>>()?;
    let mut builder = TemplateProcessing::builder();
    builder.try_single(around("$A", 0)).map_err(one_line)?;
    builder.try_pair([around("$A", 0), around("$B", 1)].concat()).map_err(one_line)?;
    builder.special_tokens(special).build().map_err(one_line)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Encoded, InputLimits, TextTokenizer, Truncation};

    /// A tokenizer with this step behind it and these fields in `tokenizer_config.json`.
    fn open(steps: &Value, config: &Value) -> TextTokenizer {
        let dir = tempfile::tempdir().unwrap();
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": steps, "decoder": null,
            "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "<s>": 1, "$A": 2, "a": 3, "b": 4}},
        });
        std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let limits = InputLimits { max_input_length: 9, vocab_size: 5, type_vocab_size: 2 };
        TextTokenizer::open(dir.path(), limits).unwrap().unwrap()
    }

    /// The ids of one text and of two.
    fn ids(steps: &Value, config: &Value) -> [Vec<u32>; 2] {
        let tokenizer = open(steps, config);
        let encode = |text: Encoded| text.input_ids;
        [
            encode(tokenizer.encode("a b", Truncation::Off).unwrap()),
            encode(tokenizer.encode(("a", "b"), Truncation::Off).unwrap()),
        ]
    }

    fn of(template: &str) -> Value {
        let steps = TemplateProcessing::builder()
            .try_single(template)
            .unwrap()
            .try_pair(format!("{template} $B:1"))
            .unwrap()
            .special_tokens(vec![("<s>", 1)])
            .build();
        serde_json::to_value(steps.unwrap()).unwrap()
    }

    #[test]
    fn tokens_are_put_around_texts_where_the_files_want_them() {
        // the end token is spelled like a text in a template
        let config = json!({"bos_token": "<s>", "eos_token": {"content": "$A"}});
        let with = |flags: &[&str]| {
            let mut config = config.clone();
            flags.iter().for_each(|flag| config[*flag] = true.into());
            config
        };
        let (first, last) = ("add_bos_token", "add_eos_token");
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
        for steps in [json!(null), bytes.clone(), json!({"type": "Sequence", "processors": [bytes]})] {
            assert_eq!(ids(&steps, &with(&[])), [[3, 4], [3, 4]]);
            assert_eq!(ids(&steps, &with(&[last])), [vec![3, 4, 2], vec![3, 2, 4, 2]]);
            assert_eq!(ids(&steps, &with(&[first])), [vec![1, 3, 4], vec![1, 3, 1, 4]]);
            assert_eq!(ids(&steps, &with(&[first, last])), [vec![1, 3, 4, 2], vec![1, 3, 2, 1, 4, 2]]);
        }
        let begun = of("<s> $A");
        assert_eq!(ids(&begun, &with(&[first])), [vec![1, 3, 4], vec![1, 3, 4]], "it is there already");
        for flags in [&[last][..], &[first, last]] {
            assert_eq!(ids(&begun, &with(flags)), [vec![1, 3, 4, 2], vec![1, 3, 2, 1, 4, 2]], "{flags:?}");
        }
    }

    /// A class of the library, a class that the model brings along, and none.
    #[test]
    fn classes_that_heed_the_flags_put_tokens_there() {
        let config =
            |class: &str| json!({"add_eos_token": true, "eos_token": "<s>", "tokenizer_class": class});
        let mut own = config("Qwen2Tokenizer");
        own["auto_map"] = json!({"AutoTokenizer": [null, "tokenization_qwen.Qwen2TokenizerFast"]});
        for config in [config("LlamaTokenizerFast"), config("GemmaTokenizer"), own] {
            assert_eq!(ids(&json!(null), &config), [vec![3, 4, 1], vec![3, 1, 4, 1]], "{config}");
        }
    }

    #[test]
    fn flags_that_a_class_does_not_heed_are_told() {
        let told = |steps: &Value, class: &str| {
            let config = json!({"add_bos_token": true, "bos_token": "<s>", "tokenizer_class": class});
            open(steps, &config).warnings().to_vec()
        };
        let warning = "tokenizer_config.json: add_bos_token is true, which Qwen2TokenizerFast does not heed";
        assert_eq!(told(&json!(null), "Qwen2TokenizerFast"), [warning]);
        assert_eq!(told(&of("<s> $A"), "Qwen2TokenizerFast"), [""; 0], "it is there already");
        assert_eq!(told(&json!(null), "LlamaTokenizerFast"), [""; 0]);
    }

    #[test]
    fn tokens_that_there_are_not_are_not_put_there() {
        for config in [
            json!({"add_eos_token": true}),
            json!({"add_eos_token": true, "eos_token": null}),
            json!({"add_eos_token": true, "eos_token": "</s>"}),
            json!({"add_eos_token": false, "eos_token": "<s>"}),
            json!({"add_eos_token": "yes", "eos_token": "<s>"}),
            json!({"add_eos_token": true, "eos_token": "<s>", "tokenizer_class": "PreTrainedTokenizerFast"}),
            json!({"add_bos_token": true, "bos_token": "<s>", "tokenizer_class": "Qwen2TokenizerFast", "auto_map": {}}),
        ] {
            assert_eq!(ids(&json!(null), &config), [[3, 4], [3, 4]], "{config}");
        }
    }
}
