//! The template that writes a query and a document as one text, for rerankers that are language models. It puts words
//! around both, as in the model's training. It comes with the model, in Jinja, and is rendered as by the transformers
//! library.

use std::{
    fs, io,
    panic::resume_unwind,
    path::{Path, PathBuf},
    thread,
};

use minijinja::{
    Environment, Error, ErrorKind,
    syntax::SyntaxConfig,
    value::{Serde, Value},
};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value as Json, json};

use crate::{ModelError, error::one_line, json::JsonObject};

/// The file of a template; before it existed, the template was a field of `tokenizer_config.json`.
const FILE: &str = "chat_template.jinja";
const CONFIG: &str = "tokenizer_config.json";
const FIELD: &str = "chat_template";

/// Most steps of a template. Writing a pair takes some hundred at most, and one more for each 64 bytes that are written
/// or changed. So any template comes to an end while it is opened, when pairs are short, and its nested lists stay
/// shallow.
const STEPS: u64 = 5000;
/// Bytes from which a pair is long. Every 8 bytes give it one step more: they may be written or changed some eight
/// times.
const LONG: usize = 4 << 10;
/// Stack for each step of a long pair. A step may put a list around all previous lists, and dropping or writing them
/// recurses as deep.
const STACK_PER_STEP: usize = 2 << 10;

/// Least stack for a long pair, the same as other threads have.
const LEAST_STACK: usize = 2 << 20;

/// Two texts that differ in every token: what pairs of them have in common at their end comes from the template.
const FILLERS: [&str; 2] = ["0", "1 2 3 4"];

/// Writes a pair of texts as one.
#[derive(Clone)]
pub(crate) struct PairTemplate {
    file: PathBuf,
    environment: Environment<'static>,
    /// Variables that the template may use, besides the messages.
    variables: Map<String, Json>,
    /// The first message: it says in words what makes a document fit. Without it the template uses words of its own.
    instruction: Option<String>,
}

impl PairTemplate {
    /// Reads the template of the folder `dir`, which may use `variables`. `instruction` is the first message.
    ///
    /// # Errors
    /// [`ModelError::Read`], [`ModelError::Json`]; [`ModelError::Field`] if there is no template, or if it does not
    /// write both texts of a pair.
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
        environment.set_unknown_method_callback(|state, value, method, arguments| match method {
            // the size of their result is not counted before it is there
            "format" | "join" => Err(Error::from(ErrorKind::UnknownMethod)),
            _ => unknown_method_callback(state, value, method, arguments),
        });
        environment.add_function("raise_exception", failed);
        // Jinja does not have them, and each step could put one lazy list into another, which makes reading nest deeply
        environment.remove_filter("zip");
        environment.remove_filter("chain");
        // it would make different tokens every day
        environment.add_function("strftime_now", |_: String| {
            failed("strftime_now: what is made of a pair may not depend on the day".to_owned())
        });
        environment.set_fuel(Some(steps(LONG)));
        // with newlines as Python reads them
        let source = without_generation(&source.replace("\r\n", "\n").replace('\r', "\n"));
        let added = environment.add_template_owned(FIELD, source).map_err(one_line);
        let mut all = special_tokens(config.as_ref());
        all.extend([("tools".to_owned(), Json::Null), ("documents".to_owned(), Json::Null)]);
        all.insert("add_generation_prompt".to_owned(), Json::Bool(false));
        all.extend(variables.clone());
        let template = Self { file: dir.join(name), environment, variables: all, instruction: None };
        let template = template.with_instruction(instruction.unwrap_or_default());
        added.and_then(|()| template.check(config.as_ref())).map_err(|why| template.wrong(why))?;
        Ok(template)
    }

    /// The same template with another `instruction`; with none if it is empty.
    pub(super) fn with_instruction(&self, instruction: &str) -> Self {
        let instruction = Some(instruction.to_owned()).filter(|words| !words.is_empty());
        Self { instruction, ..self.clone() }
    }

    /// An error about the template.
    pub(super) fn wrong(&self, why: String) -> ModelError {
        ModelError::Field { file: self.file.clone(), field: FIELD, why }
    }

    /// The text that the model reads.
    ///
    /// # Errors
    /// The template's own message, or that it takes too many steps.
    pub(super) fn write(&self, query: &str, document: &str) -> Result<String, String> {
        let bytes = query.len() + document.len() + self.instruction.as_ref().map_or(0, String::len);
        if bytes < LONG {
            return self.write_in(&self.environment, query, document);
        }
        let (mut environment, steps) = (self.environment.clone(), steps(bytes));
        environment.set_fuel(Some(steps));
        on_stack_of((steps as usize).saturating_mul(STACK_PER_STEP), || {
            self.write_in(&environment, query, document)
        })
    }

    fn write_in(&self, environment: &Environment<'_>, query: &str, document: &str) -> Result<String, String> {
        let message = |role: &str, content: &str| json!({ "role": role, "content": content });
        let instruction = self.instruction.iter().map(|words| message("system", words));
        let pair = [message("query", query), message("document", document)];
        let messages: Json = instruction.chain(pair).collect();
        let mut context = self.variables.clone();
        context.insert("messages".to_owned(), messages);
        let written = environment.get_template(FIELD).and_then(|it| it.render(Value::from(Serde(context))));
        written.map_err(one_line)
    }

    /// Two pairs, each with one of the fillers as both texts.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(super) fn fillers(&self) -> Result<[String; 2], String> {
        let [first, second] = FILLERS.map(|filler| self.write(filler, filler));
        Ok([first?, second?])
    }

    /// Checks that both texts are written, and that every special token that is named is in the tokenizer's file.
    fn check(&self, config: Option<&JsonObject>) -> Result<(), String> {
        let template = self.environment.get_template(FIELD).map_err(one_line)?;
        let known = |name: &str| config.is_some_and(|json| json.iter().any(|(field, _)| field == name));
        let mut unknown: Vec<String> = template.undeclared_variables(false).into_iter().collect();
        unknown.retain(|name| name.ends_with("_token") && !known(name) && !self.variables.contains_key(name));
        if let Some(name) = unknown.iter().min() {
            return Err(format!("it names {name}, which {CONFIG} does not have"));
        }
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

/// The template, and the name of the file that contains it.
fn source(dir: &Path, config: Option<&JsonObject>) -> Result<(&'static str, String), ModelError> {
    let file = dir.join(FILE);
    match fs::read_to_string(&file) {
        Ok(source) => Ok((FILE, source)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let missing = || ModelError::Field {
                file,
                field: FIELD,
                why: format!("is missing, and so is the field in {CONFIG}: modality_config names messages"),
            };
            config
                .map_or(Ok(None), |json| json.get(FIELD))?
                .map(|source| (CONFIG, source))
                .ok_or_else(missing)
        }
        Err(why) => Err(ModelError::Read { file, why }),
    }
}

/// The template without what the transformers library adds to Jinja: a block around what an assistant said, for
/// training. The block changes no text.
fn without_generation(source: &str) -> String {
    let mut parts = source.split("{%");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out += "{%";
        let (tag, behind) = part.split_at(part.find("%}").unwrap_or(part.len()));
        match tag.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace()) {
            // replaced by blocks that keep everything, with the same whitespace marks
            "generation" => out += &tag.replace("generation", "if true"),
            "endgeneration" => out += &tag.replace("endgeneration", "endif"),
            _ => out += tag,
        }
        out += behind;
    }
    out
}

/// The special tokens of the tokenizer's file under the names that templates use, such as `eos_token`. Each is a text,
/// or an object with one.
fn special_tokens(config: Option<&JsonObject>) -> Map<String, Json> {
    let fields = config.into_iter().flat_map(JsonObject::iter).filter(|(name, _)| name.ends_with("_token"));
    let token = |(name, token): (&String, &Json)| {
        let text = token.get("content").unwrap_or(token).as_str()?;
        Some((name.clone(), text.into()))
    };
    fields.filter_map(token).collect()
}

/// Most steps for writing a pair of so many bytes.
fn steps(bytes: usize) -> u64 {
    STEPS + bytes as u64 / 8
}

/// Runs `work` on a thread with a stack of so many bytes, of which only the used part takes memory.
fn on_stack_of(bytes: usize, work: impl FnOnce() -> Result<String, String> + Send) -> Result<String, String> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(bytes.max(LEAST_STACK));
        let thread = thread.spawn_scoped(scope, work).map_err(|error| {
            format!("its {bytes} bytes of stack for a pair of this length cannot be had: {error}")
        })?;
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

fn failed(why: String) -> Result<(), Error> {
    Err(Error::new(ErrorKind::InvalidOperation, why))
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

    /// The reference keeps what is between the tags, and treats the blanks around them as it does around other blocks.
    #[test]
    fn tags_around_what_an_assistant_said_change_nothing() {
        let all =
            "{{ messages[1].content }} {%- generation %} {{ messages[2].content }}\n  {% endgeneration %}\n.";
        assert_eq!(written(all, "a", "b"), "a b\n.");
        let unclosed =
            open(&[(FILE, "{% generation %}{{ messages[1].content + messages[2].content }}")], json!({}));
        assert!(unclosed.is_err_and(|error| error.contains("syntax error")));
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
        let template = [
            PAIR,
            "{{ messages[0].content }}{{ eos_token }}{{ pad_token }}{{ thinks }}{{ tools is none }}{{ end_token }}",
        ];
        let config = r#"{"eos_token": "</s>", "pad_token": {"content": "<pad>"}, "unk_token": null}"#;
        let files = [(FILE, &*template.concat()), (CONFIG, config)];
        let given = json!({ "thinks": false, "add_generation_prompt": true, "end_token": "</a>" });
        let template = open(&files, given).unwrap();
        assert_eq!(template.write("a", "b").unwrap(), "a\n<d>b</d>\njudge</s><pad>FalseTrue</a>");
    }

    #[test]
    fn texts_may_be_as_long_as_a_body() {
        let often = ["{{ messages[2].content }}", &"{{ messages[1].content }}".repeat(7)].concat();
        let template = open(&[(FILE, &often)], json!({})).unwrap();
        for bytes in [1, LONG - 2, LONG - 1, LONG, LONG + 1, 4 << 20] {
            let text = "a".repeat(bytes);
            assert_eq!(template.write(&text, "b").unwrap().len(), 7 * bytes + 1);
        }
    }

    /// A hostile template may nest lists as deep as it has steps, where lists are dropped as well as where they are
    /// written.
    #[test]
    fn lists_in_lists_end_without_a_crash() {
        let deep = ["[".repeat(40), "ns.x".to_owned(), "]".repeat(40)].concat();
        for (list, end) in [
            ("[ns.x]", ""),
            ("ns.x[:]", "{{ ns.x | length }}"),
            (&*deep, ""),
            (&deep, "{{ ns.x }}"),
            (&deep, "{{ ns.x == ns.y }}"),
            (&deep, "{{ {ns.x: 1}[ns.y] }}"),
            (&deep, "{{ [ns.x, ns.y] | sort }}"),
        ] {
            // as often as the steps allow, and until there are none left
            let nest = |rounds: u64, end: &str, bytes: usize| {
                let (whole, rest) = (rounds / 5000, rounds % 5000);
                let body = format!("{{% set ns.x = {list} %}}");
                let template = format!(
                    "{PAIR}{{% set ns = namespace(x=[0], y=[0]) %}}{{% if messages[-1].content[9] %}}\
                     {{% for a in range({whole}) %}}{{% for b in range(5000) %}}{body}{{% endfor %}}{{% endfor %}}\
                     {{% for b in range({rest}) %}}{body}{{% endfor %}}{{% set ns.y = {list} %}}{end}{{% endif %}}"
                );
                open(&[(FILE, &template)], json!({})).unwrap().write("a", &"b".repeat(bytes))
            };
            let short = (1..).find(|rounds| nest(*rounds, "", 10).is_err()).unwrap() - 1;
            assert!(short > 50, "{list}: {short}");
            // each lazy list asks everything in it for its length
            let most = if list == "ns.x[:]" { 100_000 } else { 4 << 20 };
            for bytes in [10, LONG, 100_000, most] {
                // three in eight steps write the document
                let rounds = short * steps(bytes.max(LONG)) / steps(LONG) * 3 / 5;
                assert!(nest(rounds, "", bytes).is_ok(), "{list}, {bytes} bytes: {rounds} rounds");
                // whether there are steps for the end or not
                drop(nest(rounds, end, bytes));
                assert!(nest(2 * rounds, end, bytes).is_err(), "{list}, {bytes} bytes");
            }
        }
    }

    #[test]
    fn an_empty_instruction_is_none() {
        let first = "{{ messages[0].role }}{{ messages[-2].content }}{{ messages[-1].content }}";
        let template = open(&[(FILE, first)], json!({})).unwrap();
        let role = |template: &PairTemplate| template.write("a", "b").unwrap();
        assert_eq!(role(&template), "systemab");
        assert_eq!(role(&template.with_instruction("")), "queryab");
        assert_eq!(role(&template.with_instruction("").with_instruction("c")), "systemab");
    }

    #[test]
    fn lines_end_as_python_reads_them() {
        assert_eq!(written(&PAIR.replace('\n', "\r\n"), "a", "b"), written(PAIR, "a", "b"));
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
            ("{{ strftime_now('%d') }}", "may not depend on the day"),
            ("{{ messages | tojson }}", "filter tojson is unknown"),
            ("{{ '{:99999999999}'.format(1) }}", "unknown method"),
            ("{{ ''.join(['a', 'b']) }}", "unknown method"),
            ("{{ messages | zip(messages) }}", "filter zip is unknown"),
            ("{{ messages | chain(messages) }}", "filter chain is unknown"),
            ("{{ bos_token }}", "it names bos_token, which tokenizer_config.json does not have"),
            (
                "{% set ns = namespace() %}{% for a in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}",
                "fuel",
            ),
            ("{{ messages[1].content * 99999999999 }}", "fuel"),
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
        assert!(none.contains("is missing, and so is the field in tokenizer_config.json"), "{none}");
        let list = r#"{"chat_template": [{"name": "default", "template": "x"}]}"#;
        let error = open(&[(CONFIG, list)], json!({})).err().unwrap();
        assert!(error.starts_with("tokenizer_config.json: chat_template: "), "{error}");
    }
}
