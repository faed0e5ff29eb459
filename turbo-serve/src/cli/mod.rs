//! The command line: arguments in, an exit code out.
//!
//! | exit code | means |
//! |---|---|
//! | 0 | done, or the reader of standard output has left; `serve`: told to stop, and all accepted requests were answered |
//! | 1 | it failed, also if flags do not suit the files or the model; one line on standard error says why |
//! | 2 | the command line was not understood: an unknown flag, a wrong value, or two flags that exclude each other |
//! | 3 | `embed`, `classify`, `rerank`: some rows of the input have no answer; standard error names the first of them |
//! | 130 | the same three: interrupted; what was written is sound, and the run can be resumed |

mod batching_arguments;
mod bench;
mod bytes;
mod cache_arguments;
mod caches;
mod config;
mod device;
mod devices;
mod environment;
mod fetching;
#[cfg(unix)]
mod file_limit;
mod files;
mod inspect;
mod log;
mod model_arguments;
mod model_id;
mod net_arguments;
mod number;
mod output;
mod serve;
mod serve_arguments;
mod shutdown;
#[cfg_attr(not(feature = "otlp"), path = "no_spans.rs")]
mod spans;
mod task;
mod tei_arguments;

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Arg, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use self::config::Config;

/// Serve transformer models whose inputs vary in length
#[derive(Parser)]
#[command(name = "turbo", version, max_term_width = 110, after_long_help = environment::ENVIRONMENT)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(Box<serve::Arguments>),
    CheckConfig(config::CheckArguments),
    Embed(files::embed::Arguments),
    Classify(files::classify::Arguments),
    Rerank(files::rerank::Arguments),
    Bench(bench::Arguments),
    Inspect(inspect::Arguments),
    /// List the devices that models can run on here
    Devices,
}

/// Runs the command line of this process.
pub(crate) fn main() -> ExitCode {
    // where that fails, such a file ends the process
    #[cfg(unix)]
    let _ = shutdown::outlive_long_files();
    let words = with_flag_of_model(std::env::args_os().collect());
    let matches = command().get_matches_from(&words);
    let done = match described(&matches, &words) {
        Some(config) => config.and_then(serve::run_config).map(well),
        None => run(Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            output::note(&format!("error: {}", one_line(&error)));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Serve(arguments) => serve::run(&arguments).map(well),
        Command::CheckConfig(arguments) => config::check(&arguments, &serve_command()).map(well),
        Command::Embed(arguments) => files::embed::run(&arguments),
        Command::Classify(arguments) => files::classify::run(&arguments),
        Command::Rerank(arguments) => files::rerank::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments).map(well),
        Command::Inspect(arguments) => inspect::run(&arguments).map(well),
        Command::Devices => device::list().map(well),
    }
}

/// The command line. `turbo serve` needs no model where a file describes some.
fn command() -> clap::Command {
    commands().mut_subcommand(SERVE, |serve| {
        serve.mut_arg("model_id", |model_id| model_id.required(false).required_unless_present("config"))
    })
}

/// All commands, as this process's variables are set.
fn commands() -> clap::Command {
    Arguments::command().mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        let command = command.mut_args(unless_set_to_nothing).mut_args(with_its_own_word_on_signs);
        match MODEL_FIRST.contains(&name.as_str()) {
            true => command.override_usage(format!("turbo {name} [MODEL] [OPTIONS]")),
            false => command,
        }
    })
}

/// Commands that take no other words than flags, so that a word right behind them is the model: `turbo serve minilm`.
const MODEL_FIRST: [&str; 3] = [SERVE, "bench", "inspect"];

/// The same words with `--model-id` before a model right behind its command.
fn with_flag_of_model(mut words: Vec<OsString>) -> Vec<OsString> {
    if let [_, command, model, ..] = words.as_slice()
        && MODEL_FIRST.iter().any(|name| command == name)
        && !model.as_encoded_bytes().starts_with(b"-")
    {
        words.insert(2, "--model-id".into());
    }
    words
}

/// These say which requests are accepted. One that is empty is refused, lest a missing secret or list opens the server
/// to every client.
const GUARDS: [&str; 2] = ["api_key", "cors_allow_origin"];

/// The argument without its variable where that is set to nothing: Compose files do so with what they leave open.
fn unless_set_to_nothing(argument: Arg) -> Arg {
    let value = argument.get_env().and_then(std::env::var_os);
    match value {
        Some(value) if value.is_empty() && !GUARDS.contains(&argument.get_id().as_str()) => {
            argument.env(None::<&str>)
        }
        _ => argument,
    }
}

/// The argument, which looks at `-5` itself: else that would be told as an argument that there is not.
fn with_its_own_word_on_signs(argument: Arg) -> Arg {
    let takes_a_value = !argument.is_positional() && argument.get_action().takes_values();
    argument.allow_negative_numbers(takes_a_value)
}

const SERVE: &str = "serve";

/// `turbo serve` itself, whose flags are the keys of a file.
fn serve_command() -> clap::Command {
    commands().find_subcommand(SERVE).expect("it is one of the commands").clone()
}

/// What the file of `turbo serve --config` describes, beside the words of the command line; `None` without one.
fn described(matches: &ArgMatches, words: &[OsString]) -> Option<Result<Config>> {
    let (_, serve) = matches.subcommand().filter(|(name, _)| *name == SERVE)?;
    let path: &PathBuf = serve.get_one("config")?;
    // The program and its command come first: there are no flags between them.
    let words = words.iter().skip(2).cloned().collect();
    Some(Config::beside(path, &serve_command(), serve, words))
}

/// The exit code of a command that either works or fails.
fn well((): ()) -> ExitCode {
    ExitCode::SUCCESS
}

/// An error and its causes as one line. Some errors already quote their cause; it is not said twice.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string).filter(|cause| !cause.is_empty()) {
        if line.is_empty() {
            line = cause;
        } else if !line.ends_with(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use std::{
        any::TypeId,
        num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    };

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_model_may_come_right_behind_its_command() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (line, expected) in [
            ("turbo serve minilm --port 0", "turbo serve --model-id minilm --port 0"),
            ("turbo inspect a/b", "turbo inspect --model-id a/b"),
            ("turbo bench minilm", "turbo bench --model-id minilm"),
            ("turbo serve --port 0 minilm", "turbo serve --port 0 minilm"),
            ("turbo serve", "turbo serve"),
            ("turbo embed texts.txt", "turbo embed texts.txt"),
            ("turbo", "turbo"),
        ] {
            assert_eq!(with_flag_of_model(words(line)), words(expected), "{line}");
        }
    }

    #[test]
    fn every_flag_of_serve_has_its_variable() {
        let command = Arguments::command();
        let serve = command.find_subcommand("serve").unwrap();
        // `HOSTNAME` is read elsewhere: it counts only where it is an address.
        let read_here = |flag: &str| !["help", "hostname"].contains(&flag);
        for argument in serve.get_arguments().filter(|argument| read_here(argument.get_id().as_str())) {
            let flag = argument.get_long().unwrap();
            let expected = flag.replace('-', "_").to_uppercase();
            assert_eq!(argument.get_env().and_then(|name| name.to_str()), Some(&*expected), "--{flag}");
            assert!(argument.get_help().is_some(), "--{flag} says nothing");
        }
    }

    /// What stands in `-h` beside the help of a flag is its defaults and possible values.
    #[test]
    fn the_short_help_of_a_flag_is_one_short_sentence() {
        for command in Arguments::command().get_subcommands() {
            let shown = command.clone().term_width(0).render_help().to_string();
            for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                let name = format!("{} {}", command.get_name(), argument.get_id());
                let help = argument.get_help().unwrap_or_else(|| panic!("{name} says nothing")).to_string();
                assert!(shown.contains(&help), "{name}: {help:?} is not in\n{shown}");
                assert!(help.chars().count() <= 100, "{name}: {help}");
                assert!(help.split_whitespace().count() <= 15, "{name}: {help}");
            }
        }
    }

    #[test]
    fn the_long_help_lists_the_environment() {
        let turbo = || Arguments::command().term_width(0);
        let serve = || turbo().find_subcommand("serve").unwrap().clone();
        for mut command in [turbo(), serve()] {
            let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
            for variable in ["TURBO_CPU", "TURBO_CUDA_CACHE", "TURBO_CUDA_LIB_DIR", "RUST_LOG", "HF_HOME"] {
                assert!(long.contains(&format!("\n  {variable}")), "{variable} is not in\n{long}");
            }
            assert!(!short.contains("TURBO_CUDA_CACHE"), "{short}");
        }
    }

    /// Through a pipe help is 100 columns wide: longer lines are wrapped, and lose their indents. What stands behind
    /// the flags is in lines of its own.
    #[test]
    fn no_line_behind_the_flags_is_wrapped() {
        let turbo = commands();
        let mut lines = 0;
        for command in turbo.get_subcommands().chain([&turbo]) {
            for text in [command.get_after_help(), command.get_after_long_help()].into_iter().flatten() {
                for line in text.to_string().lines() {
                    lines += 1;
                    assert!(line.chars().count() <= 98, "{}: {line}", command.get_name());
                }
            }
        }
        assert!(lines > 100, "{lines}");
    }

    /// What a flag of a command says to a value.
    fn refusal(command: &clap::Command, flag: &str, value: &str) -> String {
        let words = [command.get_name().to_owned(), format!("--{flag}={value}")];
        command.clone().try_get_matches_from(words).unwrap_err().to_string()
    }

    #[test]
    fn numbers_above_0_are_refused_in_the_same_words() {
        let above_0 = [TypeId::of::<NonZeroUsize>(), TypeId::of::<NonZeroU32>()];
        let mut flags = 0;
        for command in Arguments::command().get_subcommands() {
            for argument in command.get_arguments() {
                if !above_0.iter().any(|kind| argument.get_value_parser().type_id() == *kind) {
                    continue;
                }
                flags += 1;
                for value in ["0", "-1", "1.5", "many"] {
                    let said = refusal(command, argument.get_long().unwrap(), value);
                    assert!(said.contains("expected a whole number above 0"), "{said}");
                }
            }
        }
        assert!(flags > 10, "{flags}");
    }

    /// By the types of numbers that flags have; the words of a flag that may be 0 are others.
    #[test]
    fn all_numbers_are_refused_in_words() {
        let numbers = [
            TypeId::of::<u16>(),
            TypeId::of::<u64>(),
            TypeId::of::<usize>(),
            TypeId::of::<NonZeroU32>(),
            TypeId::of::<NonZeroU64>(),
            TypeId::of::<NonZeroUsize>(),
        ];
        let mut flags = 0;
        for command in commands().get_subcommands() {
            for argument in command.get_arguments() {
                if !numbers.iter().any(|kind| argument.get_value_parser().type_id() == *kind) {
                    continue;
                }
                flags += 1;
                let flag = format!("--{}", argument.get_long().unwrap());
                for value in ["-5", "5s", "many", "99999999999999999999999"] {
                    let words = [command.get_name(), &flag, value];
                    let said = command.clone().try_get_matches_from(words).unwrap_err().to_string();
                    let is_told = said.contains("expected ") || said.contains("the number is too large");
                    assert!(is_told && !said.contains("unexpected"), "{flag} {value}: {said}");
                }
            }
        }
        assert!(flags > 20, "{flags}");
    }

    #[test]
    fn bytes_are_refused_in_the_same_words() {
        let serve = Arguments::command().find_subcommand("serve").unwrap().clone();
        for flag in [
            "payload-limit",
            "max-body-bytes-in-flight",
            "max-answer-bytes-in-flight",
            "cache-bytes",
            "cache-dir-bytes",
        ] {
            let said = refusal(&serve, flag, "lots");
            let expected = "expected a number of bytes, such as 268435456, 256MiB or 1GB";
            assert!(said.contains(expected), "--{flag}: {said}");
            // Without the flag that is required, this one is all the same read.
            let said = refusal(&serve, flag, "3MiB");
            assert!(said.contains("--model-id"), "--{flag}: {said}");
        }
    }

    #[test]
    fn a_cause_is_said_once() {
        let quoted = anyhow::anyhow!("no such file").context("config.json: no such file").context("models/x");
        assert_eq!(one_line(&quoted), "models/x: config.json: no such file");
    }
}
