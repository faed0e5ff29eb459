//! The planner for any language: JSON on stdin, JSON on stdout.
//!
//! `echo '{"requests":[[{"first_op":0,"last_op":1,"size":614400}]]}' | cargo run -p turbo-alloc --example plan`
//!
//! [`protocol`] documents both texts. Bad input: one line on stderr, nothing on stdout, exit code 1.

mod protocol;

use std::io::Read;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut input = String::new();
    let read = std::io::stdin().read_to_string(&mut input).map_err(|error| format!("stdin: {error}"));
    match read.and_then(|_| protocol::answer(&input)) {
        Ok(output) => {
            println!("{output}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
