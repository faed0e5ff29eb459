//! The template with which a language model reads a query and a document: one text, with words around both that tell it
//! what to do. It comes with the model, in Jinja, as the transformers library renders it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use minijinja::{
    Environment, Error, ErrorKind,
    syntax::SyntaxConfig,
    value::{Serde, Value},
};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value as Json, json};

use crate::{ModelError, error::one_line, json::JsonObject};

/// The file of a template; before there was one, `tokenizer_config.json` had it as a field.
const FILE: &str = "chat_template.jinja";
const CONFIG: &str = "tokenizer_config.json";
const FIELD: &str = "chat_template";

/// Steps of a template, as which 64 bytes of what it writes or changes count, too: dozens of copies of megabytes are
/// possible. A file from anywhere ends, and takes 640 MB at most.
const MOST_STEPS: u64 = 10_000_000;

/// Two texts that differ in every token: what writings of them have in common at their end is the template's.
const FILLERS: [&str; 2] = ["0", "1 2 3 4"];

/// Writes a pair of texts as one.
#[derive(Clone)]
pub(crate) struct PairTemplate {
    file: PathBuf,
    environment: Environment<'static>,
    /// What the template may name, beside the messages.
    variables: Map<String, Json>,
    /// What the model is to judge by, in words; the template has words of its own where this says nothing.
    instruction: Option<String>,
}

impl PairTemplate {
    /// Reads the template of the folder `dir`, which may name `variables`. `instruction` is the first message.
    ///
    /// # Errors
    /// [`ModelError::Read`], [`ModelError::Json`]; [`ModelError::Field`] where there is no template, or none that writes both
    /// texts of a pair.
    pub(crate) fn open(
        dir: &Path,
        variables: &Map<String, Json>,
        instruction: Option<&str>,
    ) -> Result<Self, ModelError> {
        let config = JsonObject::open(dir.join(CONFIG))?;
        let (name, source) = source(dir, config.as_ref())?;
        let mut environment = Environment::new();
        // as the transformers library sets it
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("the usual delimiters differ from each other"));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_function("raise_exception", |why: String| -> Result<(), Error> {
            Err(Error::new(ErrorKind::InvalidOperation, why))
        });
        environment.set_fuel(Some(MOST_STEPS));
        let added = environment.add_template_owned(FIELD, source).map_err(one_line);
        let mut all = special_tokens(config.as_ref())?;
        all.extend([("tools".to_owned(), Json::Null), ("documents".to_owned(), Json::Null)]);
        all.insert("add_generation_prompt".to_owned(), Json::Bool(false));
        all.extend(variables.clone());
        let instruction = instruction.map(str::to_owned);
        let template = Self { file: dir.join(name), environment, variables: all, instruction };
        added.and_then(|()| template.check()).map_err(|why| template.wrong(why))?;
        Ok(template)
    }

    /// The same, with another `instruction`.
    pub(super) fn with_instruction(&self, instruction: &str) -> Self {
        Self { instruction: Some(instruction.to_owned()), ..self.clone() }
    }

    /// An error about the template.
    pub(super) fn wrong(&self, why: String) -> ModelError {
        ModelError::Field { file: self.file.clone(), field: FIELD, why }
    }

    /// The text that the model reads.
    ///
    /// # Errors
    /// What the template says.
    pub(super) fn write(&self, query: &str, document: &str) -> Result<String, String> {
        let message = |role: &str, content: &str| json!({ "role": role, "content": content });
        let instruction = self.instruction.iter().map(|words| message("system", words));
        let pair = [message("query", query), message("document", document)];
        let messages: Json = instruction.chain(pair).collect();
        let mut context = self.variables.clone();
        context.insert("messages".to_owned(), messages);
        let template = self.environment.get_template(FIELD).map_err(one_line)?;
        template.render(Value::from(Serde(context))).map_err(one_line)
    }

    /// A pair of each filler.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(super) fn fillers(&self) -> Result<[String; 2], String> {
        let [first, second] = FILLERS.map(|filler| self.write(filler, filler));
        Ok([first?, second?])
    }

    /// Whether both texts are written.
    fn check(&self) -> Result<(), String> {
        let [one, other] = FILLERS;
        let both = self.write(one, one)?;
        for (text, changed) in [("query", (other, one)), ("document", (one, other))] {
            if self.write(changed.0, changed.1)? == both {
                return Err(format!(
                    "it does not write the message of role {text:?}, expected one of a reranker: roles \"query\" and \
                     \"document\""
                ));
            }
        }
        Ok(())
    }
}

/// The template, and the name of the file that has it.
fn source(dir: &Path, config: Option<&JsonObject>) -> Result<(&'static str, String), ModelError> {
    let file = dir.join(FILE);
    match fs::read_to_string(&file) {
        Ok(source) => Ok((FILE, source)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let missing = || ModelError::Field {
                file,
                field: FIELD,
                why: format!("there is no such file, nor the field in {CONFIG}: it writes pairs as messages"),
            };
            config
                .map_or(Ok(None), |json| json.get(FIELD))?
                .map(|source| (CONFIG, source))
                .ok_or_else(missing)
        }
        Err(source) => Err(ModelError::Read { file, source }),
    }
}

/// What templates call the special tokens: `eos_token` and others.
fn special_tokens(config: Option<&JsonObject>) -> Result<Map<String, Json>, ModelError> {
    const NAMES: [&str; 7] =
        ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
    let mut tokens = Map::new();
    for name in NAMES {
        let Some(token) = config.map_or(Ok(None), |json| json.get::<Json>(name))? else { continue };
        // a text, or an object with one
        let text = token.get("content").unwrap_or(&token).clone();
        tokens.insert(name.to_owned(), text);
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: &str = "{{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}\n\
                        {% for it in messages if it.role == \"document\" %}\n<d>{{ it['content'].strip() }}</d>\n\
                        {% endfor %}\n";

    fn open(files: &[(&str, &str)], variables: Json) -> Result<PairTemplate, String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(dir.path().join(name), content).unwrap();
        }
        let Json::Object(variables) = variables else { panic!("{variables}") };
        let opened = PairTemplate::open(dir.path(), &variables, Some("judge"));
        opened.map_err(|error| error.to_string().replace(&format!("{}/", dir.path().display()), ""))
    }

    fn written(template: &str, query: &str, document: &str) -> String {
        open(&[(FILE, template)], json!({})).unwrap().write(query, document).unwrap()
    }

    /// Blocks leave neither their indentation nor the end of their line, nor the template its last one.
    #[test]
    fn whitespace_is_that_of_the_reference() {
        assert_eq!(written(PAIR, "a", " b\n"), "a\n<d>b</d>\n");
        let indented = "{{ messages[1].content }}\n    {% if true %}\n  x\n    {% endif %}\n{{ messages[2].content }}\n\n";
        assert_eq!(written(indented, "<q> & \"q\"", "d"), "<q> & \"q\"\n  x\nd\n");
    }

    #[test]
    fn a_template_may_name_special_tokens_and_what_the_folder_gives() {
        let template =
            [PAIR, "{{ messages[0].content }}{{ eos_token }}{{ pad_token }}{{ thinks }}{{ tools is none }}"];
        let config = r#"{"eos_token": "</s>", "pad_token": {"content": "<pad>"}, "unk_token": null}"#;
        let files = [(FILE, &*template.concat()), (CONFIG, config)];
        let template = open(&files, json!({ "thinks": false, "add_generation_prompt": true })).unwrap();
        assert_eq!(template.write("a", "b").unwrap(), "a\n<d>b</d>\njudge</s><pad>FalseTrue");
    }

    #[test]
    fn texts_may_be_as_long_as_a_body() {
        let text = "a b ".repeat(1 << 20);
        assert_eq!(written(PAIR, &text, &text).len(), 2 * text.len() + "\n<d></d>\n".len() - 1);
    }

    #[test]
    fn the_file_goes_before_the_field() {
        let field = json!({ "chat_template": format!("F{PAIR}") }).to_string();
        assert!(open(&[(CONFIG, &field)], json!({})).unwrap().write("a", "b").unwrap().starts_with("Fa"));
        let both = [(CONFIG, field.as_str()), (FILE, PAIR)];
        assert!(open(&both, json!({})).unwrap().write("a", "b").unwrap().starts_with("a\n"));
    }

    #[test]
    fn a_template_that_does_not_write_pairs_is_refused() {
        for (template, why) in [
            (
                "{% for it in messages if it.role == 'user' %}{{ it.content }}{% endfor %}",
                "the message of role \"query\"",
            ),
            ("{{ messages[1].content }}", "the message of role \"document\""),
            ("{% if %}", "syntax error"),
            ("{{ raise_exception('only users') }}", "only users"),
            ("{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}", "fuel"),
        ] {
            let error = open(&[(FILE, template)], json!({})).err().unwrap();
            assert!(
                error.starts_with("chat_template.jinja: chat_template: ") && error.contains(why),
                "{error}"
            );
            assert!(!error.contains('\n'), "{error}");
        }
        let none = open(&[], json!({})).err().unwrap();
        assert!(none.contains("there is no such file"), "{none}");
        let list = r#"{"chat_template": [{"name": "default", "template": "x"}]}"#;
        let error = open(&[(CONFIG, list)], json!({})).err().unwrap();
        assert!(error.starts_with("tokenizer_config.json: chat_template: "), "{error}");
    }
}
