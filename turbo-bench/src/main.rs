//! The binary `turbo-bench`: reads the command line. Figures and the load generator are in the library.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
