//! How the library writes inputs as messages, for models that were trained on conversations.

use serde_json::{Map, Value};

use crate::{ModelError, json::JsonObject};

/// What `sentence_bert_config.json` says of messages, if the model takes any.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Messages {
    /// Variables that the template may use, besides the messages.
    pub(crate) variables: Map<String, Value>,
}

impl Messages {
    /// Reads the arguments that the library gives to the template: `arguments` of the field `field`. Refuses arguments
    /// that change how the rendered text is tokenised.
    pub(super) fn read(
        json: &JsonObject,
        field: &'static str,
        arguments: Map<String, Value>,
    ) -> Result<Self, ModelError> {
        // arguments of the tokenizer: padding, and the form of its result
        const IGNORED: [&str; 4] = ["padding", "padding_side", "pad_to_multiple_of", "return_tensors"];
        let mut variables = Map::new();
        for (name, value) in arguments {
            let only = match name.as_str() {
                name if IGNORED.contains(&name) => continue,
                // if a text is cut, what the template writes behind it is kept
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
