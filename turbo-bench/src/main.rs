//! The binary `turbo-bench`: reads the command line; figures and the load generator are the library's.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
