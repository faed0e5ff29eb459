//! What a folder says of the encoder at the head of its modules: how long its inputs may be, whether texts are
//! lower-cased, and what the encoder returns.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::messages::Messages;
use crate::{ModelError, error::one_line, json::JsonObject};

/// How the encoder takes its inputs, from `sentence_bert_config.json` and `tokenizer_config.json`, each of which may be
/// absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct EncoderInputs {
    /// How long they may be.
    pub(crate) length_limits: LengthLimits,
    /// Most tokens of a query, if queries have a limit of their own.
    pub(crate) query_length: Option<usize>,
    /// Most tokens of a document, if documents have a limit of their own.
    pub(crate) document_length: Option<usize>,
    /// Where long texts are cut, according to the arguments for loading the tokenizer.
    pub(crate) cut: Option<CutSide>,
    /// Whether texts are lower-cased before the tokenizer sees them.
    pub(crate) do_lower_case: bool,
    /// How pairs of texts are written as messages; `None` if they are not.
    pub(crate) messages: Option<Messages>,
    /// What the encoder passes to the modules behind it.
    pub(super) gives: EncoderGives,
}

/// Most tokens of an input, special tokens included, according to everything that may limit them. There may be fewer
/// positions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LengthLimits {
    /// `max_seq_length` of the library's own file.
    pub(crate) of_library: Option<usize>,
    /// The limit among the arguments for tokenising texts; it overrides all others.
    of_processing: Option<usize>,
    /// The limit among the arguments for loading the tokenizer.
    of_loading: Option<LoadedLimit>,
    /// The limit in the tokenizer's own file, which counts if the others are absent. Often absurdly large.
    of_tokenizer: Option<usize>,
}

impl LengthLimits {
    /// The limit that counts.
    pub(crate) fn most(&self) -> Option<usize> {
        let of_library = match self.of_loading {
            None => self.of_library,
            Some(LoadedLimit::Earlier(tokens)) => self.of_library.into_iter().chain([tokens]).min(),
            Some(LoadedLimit::Later(tokens)) => Some(tokens),
        };
        self.of_processing.or(of_library).or(self.of_tokenizer)
    }
}

/// The limit among the library's arguments for loading the tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadedLimit {
    /// Under the earlier argument name. Versions differ in whether this or `max_seq_length` counts; here the smaller
    /// does.
    Earlier(usize),
    /// Under the later argument name, with which it overrides `max_seq_length`.
    Later(usize),
}

/// At which end long texts are cut, and which file says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CutSide {
    /// Name of the file.
    pub(crate) file: &'static str,
    /// Field of the file that contains the setting.
    pub(crate) field: &'static str,
    pub(crate) is_left: bool,
}

/// What an encoder returns for every token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum EncoderGives {
    /// Its vector. A classifier counts as this, since nothing follows it.
    #[default]
    Vectors,
    /// A logit per token of the vocabulary.
    WordLogits,
    /// The same, for the token that comes next.
    NextLogits,
}

/// Names of the library's file: at first it wrote one per model family.
pub(super) const FILES: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

impl EncoderInputs {
    /// Reads them from the folder `dir`.
    ///
    /// # Errors
    /// [`ModelError`] naming file and field.
    pub(crate) fn open(dir: &Path) -> Result<Self, ModelError> {
        let of_tokenizer = limit_of_tokenizer(dir)?;
        for file in FILES {
            if let Some(json) = JsonObject::open(dir.join(file))? {
                return Self::read(&json, file, of_tokenizer);
            }
        }
        let length_limits = LengthLimits { of_tokenizer, ..LengthLimits::default() };
        Ok(Self { length_limits, ..Self::default() })
    }

    /// Reads them from the library's file, whose name is `file`, in a folder whose tokenizer has the limit
    /// `of_tokenizer`.
    fn read(json: &JsonObject, file: &'static str, of_tokenizer: Option<usize>) -> Result<Self, ModelError> {
        let of_library = json.get("max_seq_length")?;
        if of_library == Some(0) {
            return Err(json.wrong("max_seq_length", "is 0, expected at least 1"));
        }
        let of_processing = limit_of_processing(json)?;
        let [query_length, document_length] = [json.get("query_length")?, json.get("document_length")?];
        if let Some(other) = json.get::<Value>("query_expansion")? {
            return Err(json.unsupported("query_expansion", other.to_string(), "null"));
        }
        let (of_loading, cut) = loaded_with(json, file)?;
        let do_lower_case = json.get("do_lower_case")?.unwrap_or(false);
        let (gives, messages) = gives(json)?;
        let length_limits = LengthLimits { of_library, of_processing, of_loading, of_tokenizer };
        Ok(Self { length_limits, query_length, document_length, cut, do_lower_case, messages, gives })
    }
}

/// The library's arguments for calling its tokenizer: those for inputs of all kinds, those for texts, which override
/// them, and those for the chat template. Arguments for other kinds of input do not affect texts.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ProcessingKwargs {
    common: Map<String, Value>,
    text: Map<String, Value>,
    chat_template: Map<String, Value>,
}

const PROCESSING: &str = "processing_kwargs";

/// The limit among these arguments. Arguments for padding or for the form of the result change no ids; arguments that
/// would change ids are refused.
fn limit_of_processing(json: &JsonObject) -> Result<Option<usize>, ModelError> {
    const FIELD: &str = PROCESSING;
    let ProcessingKwargs { common, text, .. } = json.get(FIELD)?.unwrap_or_default();
    // how many tokens a causal model gives logits for; only those of the last token are read
    let of_texts = text.iter().filter(|(name, value)| *name != "logits_to_keep" || !value.is_u64());
    let mut limit = None;
    for (name, value) in common.iter().chain(of_texts) {
        match (name.as_str(), value) {
            ("max_length", value) => {
                limit = Option::deserialize(value).map_err(|error| json.wrong(FIELD, one_line(error)))?;
            }
            ("padding" | "padding_side" | "pad_to_multiple_of" | "return_tensors", _)
            | ("truncation" | "add_special_tokens", Value::Bool(true)) => {}
            ("truncation", Value::String(strategy)) if strategy == "longest_first" => {}
            _ => {
                let supported = "max_length, padding, truncation by the longest first";
                return Err(json.unsupported(FIELD, format!("{name}: {value}"), supported));
            }
        }
    }
    match limit {
        Some(0) => Err(json.wrong(FIELD, "max_length is 0, expected at least 1")),
        _ => Ok(limit),
    }
}

/// Arguments for loading the tokenizer, under the name of earlier library versions. Later versions read this field too,
/// and then ignore their own.
const EARLIER: &str = "tokenizer_args";
const LATER: &str = "processor_kwargs";
pub(super) const TOKENIZER_ARGUMENTS: [&str; 2] = [EARLIER, LATER];

/// Arguments for loading the model and its configuration.
pub(super) const OTHER_ARGUMENTS: [&str; 4] = ["model_args", "model_kwargs", "config_args", "config_kwargs"];

/// Arguments among all of these that change no vector.
const HARMLESS: [&str; 30] = [
    // where the files are, and access to them
    "cache_dir",
    "code_revision",
    "force_download",
    "ignore_mismatched_sizes",
    "local_files_only",
    "revision",
    "subfolder",
    "token",
    "trust_remote_code",
    "use_auth_token",
    "use_safetensors",
    "weights_only",
    // how, and in which type, the reference computes
    "attn_implementation",
    "device_map",
    "dtype",
    "low_cpu_mem_usage",
    "reference_compile",
    "torch_dtype",
    "unpad_inputs",
    "use_cache",
    "use_fast",
    "use_memory_efficient_attention",
    // what is not used here: another head, more outputs, padding, decoding of ids
    "add_pooling_layer",
    "clean_up_tokenization_spaces",
    "output_attentions",
    "output_hidden_states",
    "padding",
    "padding_side",
    "return_dict",
    "truncation",
];

/// The tokenizer's limit and the end at which it cuts, from the arguments with which the library loads its parts;
/// `file` is the name of the file that is read. Arguments that are not known to be harmless are refused.
fn loaded_with(
    json: &JsonObject,
    file: &'static str,
) -> Result<(Option<LoadedLimit>, Option<CutSide>), ModelError> {
    const LIMIT: &str = "model_max_length";
    let (mut earlier, mut later, mut cut) = (None, None, None);
    for field in TOKENIZER_ARGUMENTS.into_iter().chain(OTHER_ARGUMENTS) {
        let of_tokenizer = TOKENIZER_ARGUMENTS.contains(&field);
        let arguments: Map<String, Value> = json.get(field)?.unwrap_or_default();
        for (name, value) in &arguments {
            match (name.as_str(), value.as_f64()) {
                (LIMIT, Some(tokens)) if of_tokenizer && tokens < 1.0 => {
                    return Err(json.wrong(field, format!("{LIMIT} is {value}, expected at least 1")));
                }
                (LIMIT, Some(tokens)) if field == EARLIER => earlier = Some(tokens as usize),
                (LIMIT, Some(tokens)) if field == LATER => later = Some(tokens as usize),
                (LIMIT, _) if of_tokenizer && value.is_null() => {}
                ("truncation_side", _) if of_tokenizer && (value == "left" || value == "right") => {
                    cut = cut.or(Some(CutSide { file, field, is_left: value == "left" }));
                }
                (name, _) if HARMLESS.contains(&name) => {}
                _ => {
                    let more = if of_tokenizer { ", model_max_length, truncation_side" } else { "" };
                    let supported = format!("what changes no vector, such as dtype or use_fast{more}");
                    return Err(json.unsupported(field, format!("{name}: {value}"), supported));
                }
            }
        }
    }
    Ok((earlier.map(LoadedLimit::Earlier).or(later.map(LoadedLimit::Later)), cut))
}

/// The limit in the tokenizer's own file; files without a limit say 1e30.
fn limit_of_tokenizer(dir: &Path) -> Result<Option<usize>, ModelError> {
    let Some(json) = JsonObject::open(dir.join("tokenizer_config.json"))? else { return Ok(None) };
    let tokens: Option<f64> = json.get("model_max_length")?;
    Ok(tokens.filter(|tokens| *tokens >= 1.0).map(|tokens| tokens as usize))
}

/// What the encoder returns. Later versions of the library say it here, earlier ones in the name of the module's class.
fn gives(json: &JsonObject) -> Result<(EncoderGives, Option<Messages>), ModelError> {
    const FIELD: &str = "transformer_task";
    let (gives, output) = match json.get::<String>(FIELD)?.as_deref() {
        None | Some("feature-extraction") => (EncoderGives::Vectors, "last_hidden_state"),
        Some("sequence-classification") => (EncoderGives::Vectors, "logits"),
        Some("fill-mask") => (EncoderGives::WordLogits, "logits"),
        Some("text-generation") => (EncoderGives::NextLogits, "logits"),
        Some(other) => {
            let supported = "feature-extraction, fill-mask, sequence-classification, text-generation";
            return Err(json.unsupported(FIELD, other, supported));
        }
    };
    Ok((gives, messages(json, gives, output)?))
}

/// How the library passes inputs of one kind to the model.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Modality {
    /// The method of the model's class that is called.
    method: Option<String>,
    /// The part of its output that the modules behind it get: a name, or the names on the path to it.
    method_output_name: Option<Value>,
    /// For messages: whether their content is a text, or a list of texts and images.
    format: Option<String>,
}

/// How texts are written as messages. If a model takes messages, the library writes all texts as messages. This is
/// implemented for language models that score pairs of texts. Refuses a configuration that makes other inputs from
/// texts, or that takes something other than `output` from the model. Other kinds of input do not matter.
fn messages(json: &JsonObject, gives: EncoderGives, output: &str) -> Result<Option<Messages>, ModelError> {
    const FIELD: &str = "modality_config";
    let mut kinds: BTreeMap<String, Modality> = json.get(FIELD)?.unwrap_or_default();
    let [text, message] = ["text", "message"].map(|kind| kinds.remove(kind));
    if message.is_some() && gives != EncoderGives::NextLogits {
        return Err(json.unsupported(FIELD, "message", "text"));
    }
    for kind in text.iter().chain(&message) {
        if let Some(method) = kind.method.as_deref().filter(|method| *method != "forward") {
            return Err(json.unsupported(FIELD, format!("method: {method}"), "forward"));
        }
        if let Some(name) = kind.method_output_name.as_ref().filter(|name| *name != output) {
            return Err(json.unsupported(FIELD, format!("method_output_name: {name}"), output));
        }
    }
    let format = message.as_ref().map(|message| message.format.as_deref().unwrap_or("null"));
    if let Some(other) = format.filter(|format| *format != "flat") {
        return Err(json.unsupported(FIELD, format!("format: {other}"), "flat"));
    }
    let ProcessingKwargs { chat_template, .. } = json.get(PROCESSING)?.unwrap_or_default();
    message.map(|_| Messages::read(json, PROCESSING, chat_template)).transpose()
}
