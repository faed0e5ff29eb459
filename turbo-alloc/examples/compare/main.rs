//! The planner's policies beside the baselines, on the paper's workload: the table of the README.
//! With `--requests` also a line for each request.
//!
//! `cargo run -p turbo-alloc --example compare`

mod workload;

use turbo_alloc::AllocError;

fn main() -> Result<(), AllocError> {
    let report = workload::report()?;
    print!("{report}");
    if std::env::args().any(|arg| arg == "--requests") {
        print!("\n{}", report.per_request());
    }
    Ok(())
}
