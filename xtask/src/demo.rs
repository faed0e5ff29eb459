//! `cargo xtask demo`: from a fresh checkout to a real model that answers real text over HTTP.
//!
//! build → fetch the model → start the server → embed a dozen sentences → print how similar they are → keep serving.

mod client;
mod sentences;
mod server;
mod similarity;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::interrupt;
use crate::model;
use crate::progress::Progress;
use crate::workspace::Workspace;
use sentences::SENTENCES;
use server::Server;
use similarity::Similarities;

/// See a real model answer real text: build, fetch, serve, embed, compare
///
/// Builds the server in release mode, fetches the MiniLM sentence model (84 MB, the first time), starts the server
/// on a loopback port, embeds a dozen sentences, prints a table of their similarities and what to type next, and
/// keeps serving until Ctrl-C.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Stop after the table
    #[arg(long)]
    once: bool,

    /// Port to serve on; 0 picks a free one
    #[arg(long, value_name = "N", default_value_t = 0)]
    port: u16,

    /// Start this server instead of building one (CI has one from its tests)
    #[arg(long, value_name = "PATH")]
    turbo: Option<PathBuf>,
}

/// Runs the demonstration.
///
/// # Errors
/// When a stage fails, a sentence is not nearest to its paraphrase, or the server does not end cleanly.
pub(crate) fn run(workspace: &Workspace, progress: Progress, arguments: &Arguments) -> Result<()> {
    let binary = match &arguments.turbo {
        Some(path) => path.clone(),
        None => workspace.build(&["--release", "--package", "turbo-serve", "--bin", "turbo"])?,
    };
    let model = model::minilm(workspace, progress)?;
    interrupt::listen()?; // from here on the server must be ended with us
    let log = workspace.target.join("demo-server.log");
    let mut server = Server::start(&binary, &model, arguments.port, log, progress)?;

    let start = Instant::now();
    let vectors = server.explain(client::embed(server.address(), &SENTENCES.map(|s| s.text)))?;
    let took = start.elapsed();
    let similarities = Similarities::of(&vectors)?;
    print!("{}", sentences::listed());
    println!(
        "\nCosine similarity of their vectors ({} numbers each); * marks each one's nearest:\n",
        vectors[0].len()
    );
    print!("{}", similarities.table(&SENTENCES.map(|s| s.label)));
    let at_home = sentences::partners_found(&similarities);
    println!(
        "\n{at_home} of {} sentences are nearest to their paraphrase. One request of {}, {:.1} ms over HTTP.",
        SENTENCES.len(),
        SENTENCES.len(),
        took.as_secs_f64() * 1e3
    );
    if at_home < SENTENCES.len() {
        bail!("with this model every sentence must be nearest to its paraphrase: the vectors are wrong");
    }
    if !arguments.once {
        println!("{}", next_steps(server.address()));
        server.wait_for_interrupt()?;
        eprintln!("\nstopping: accepted requests are answered first");
    }
    server.stop()
}

/// Commands to try while the server runs.
fn next_steps(address: &str) -> String {
    format!(
        "\nThe server is at {address}. Try it from another terminal:\n\n\
         curl {address}/embed -H 'content-type: application/json' \\\n  \
             -d '{{\"inputs\": [\"What is a good soup?\", \"A recipe for a warm broth\"]}}'\n\n\
         curl {address}/v1/embeddings -H 'content-type: application/json' \\\n  \
             -d '{{\"model\": \"minilm\", \"input\": \"What is a good soup?\"}}'\n\n\
         Ctrl-C stops it."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_type_next_is_valid() {
        let text = next_steps("http://127.0.0.1:4321");
        let bodies: Vec<&str> =
            text.lines().filter_map(|l| l.trim().strip_prefix("-d '")?.strip_suffix('\'')).collect();
        assert_eq!(bodies.len(), 2);
        for body in bodies {
            serde_json::from_str::<serde_json::Value>(body).unwrap();
        }
        assert!(text.contains("curl http://127.0.0.1:4321/v1/embeddings"), "{text}");
    }
}
