//! The binary `turbo`: reads the command line, and leaves the work to the library.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
