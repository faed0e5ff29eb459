//! One BERT-base layer at 200 tokens, and then at 240, by one planner.

#[path = "../workload/encoder.rs"]
mod encoder;

use turbo_alloc::report::svg::{Picture, draw};
use turbo_alloc::{AllocError, Planner, UsageRecord};

/// The two plans side by side; SVG text.
pub(crate) fn before_and_after() -> Result<String, AllocError> {
    let mut planner = Planner::default();
    let (names, short) = layer(200);
    let (_, long) = layer(240);
    let (before, after) = (planner.plan(&short)?, planner.plan(&long)?);
    Ok(draw(&[
        Picture { title: "200 tokens", records: &short, plan: &before, names: &names },
        Picture { title: "then 240 tokens", records: &long, plan: &after, names: &names },
    ]))
}

/// Names and records of one layer.
pub(crate) fn layer(seq_len: usize) -> (Vec<&'static str>, Vec<UsageRecord>) {
    encoder::encoder(1, seq_len).into_iter().unzip()
}
