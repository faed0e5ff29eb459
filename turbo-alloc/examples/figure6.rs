//! Draws what a longer request does to the plan: one BERT layer at 200, then at 240 tokens, as
//! Figure 6 of PPoPP'21. Writes SVG to stdout:
//!
//! `cargo run -p turbo-alloc --example figure6 > figure6.svg`

#[path = "workload/encoder.rs"]
mod encoder;

use turbo_alloc::report::svg::{Picture, draw};
use turbo_alloc::{AllocError, Planner, PlannerConfig};

fn main() -> Result<(), AllocError> {
    let mut planner = Planner::new(PlannerConfig::default())?;
    let [(names, short), (_, long)] =
        [200, 240].map(|seq_len| encoder::encoder(1, seq_len).into_iter().unzip::<_, _, Vec<_>, Vec<_>>());
    let (before, after) = (planner.plan(&short)?, planner.plan(&long)?);
    let pictures = [
        Picture { title: "200 tokens", records: &short, plan: &before, names: &names },
        Picture { title: "240 tokens", records: &long, plan: &after, names: &names },
    ];
    print!("{}", draw(&pictures));
    Ok(())
}
