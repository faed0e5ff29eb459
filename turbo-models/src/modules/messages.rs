//! How the library writes inputs as messages, for models that were trained on conversations.

use serde_json::{Map, Value};

use crate::{ModelError, json::JsonObject};

/// What `sentence_bert_config.json` says of messages, where the model takes any.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Messages {
    /// What the template may name, beside the messages.
    pub(crate) variables: Map<String, Value>,
}

impl Messages {
    /// What the library gives to the template: `arguments` of the field `field`. What changes how the written text is
    /// tokenised is refused.
    pub(super) fn read(
        json: &JsonObject,
        field: &'static str,
        arguments: Map<String, Value>,
    ) -> Result<Self, ModelError> {
        // of the tokenizer: padding, and the form of what it gives
        const IGNORED: [&str; 4] = ["padding", "padding_side", "pad_to_multiple_of", "return_tensors"];
        let mut variables = Map::new();
        for (name, value) in arguments {
            let only = match name.as_str() {
                name if IGNORED.contains(&name) => continue,
                // where a text is cut, what the template writes behind it is kept
                "restore_suffix" | "truncation" => Value::Bool(true),
                "continue_final_message" | "return_assistant_tokens_mask" | "sanitize_control_tokens" => {
                    Value::Bool(false)
                }
                "chat_template" | "max_length" => Value::Null,
                _ => {
                    variables.insert(name, value);
                    continue;
                }
            };
            if value != only {
                let value = format!("chat_template: {name}: {value}");
                return Err(json.unsupported(field, value, format!("{name}: {only}")));
            }
        }
        Ok(Self { variables })
    }
}
