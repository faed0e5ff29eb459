//! The module that makes a score from a language model's logits: how much more likely one next token is than another.

use std::path::Path;

use crate::{ModelError, json::JsonObject};

/// Which logits behind an input's last token make its score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogitScore {
    /// The token that means yes.
    pub(crate) true_token_id: usize,
    /// The token that means no, whose logit is subtracted; `None` if none is.
    pub(crate) false_token_id: Option<usize>,
}

impl LogitScore {
    /// Reads `config.json` of the module's folder `path`.
    ///
    /// # Errors
    /// [`ModelError`] naming file and field.
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        const INPUT: &str = "module_input_name";
        const LOGITS: &str = "causal_logits";
        let json = JsonObject::open_existing(path.join("config.json"))?;
        if let Some(other) = json.get::<String>(INPUT)?.filter(|name| name != LOGITS) {
            return Err(json.unsupported(INPUT, other, LOGITS));
        }
        let true_token_id =
            json.get("true_token_id")?.ok_or_else(|| json.wrong("true_token_id", "is missing"))?;
        Ok(Self { true_token_id, false_token_id: json.get("false_token_id")? })
    }
}
