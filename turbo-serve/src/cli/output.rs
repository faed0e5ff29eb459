//! Text on standard output: all of it, or as much as its reader takes.

use std::{
    io::{ErrorKind, Write},
    time::Duration,
};

use anyhow::{Context, Result};
use turbo_models::graph::kernels::limits::Limits;

/// Writes `text` and a line end at once. A reader that has left, as `head` does, ends the process in peace.
///
/// # Errors
/// When standard output cannot be written to.
pub(super) fn line(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        done => done.context("cannot write to standard output"),
    }
}

/// Writes a line to standard error. Errors are ignored: behind a pipe that was closed, work goes on.
pub(super) fn note(line: &str) {
    drop(writeln!(std::io::stderr().lock(), "{line}"));
}

/// A time in milliseconds.
pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// `part` of `whole` in per cent, and 0 of nothing.
pub(super) fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

/// A rate to three digits, below one to two decimals.
pub(super) fn rate(value: f64) -> String {
    let decimals = match value {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

/// What a machine can do, as a line.
pub(super) fn ceilings(limits: &Limits) -> String {
    format!(
        "{} GFLOP/s in f32, {} in bf16, {} GOP/s in int8, {} GB/s from memory",
        rate(limits.flops / 1e9),
        rate(limits.bf16_flops / 1e9),
        rate(limits.int8_ops / 1e9),
        rate(limits.memory_bytes / 1e9)
    )
}

/// A count with its thousands as a letter: `72.1 M`.
pub(super) fn count(value: u64) -> String {
    const UNITS: [&str; 5] = ["", " k", " M", " G", " T"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= 999.5 && unit + 1 < UNITS.len() {
        scaled /= 1e3;
        unit += 1;
    }
    if unit == 0 { value.to_string() } else { rate(scaled) + UNITS[unit] }
}

/// Bytes in the largest unit that they fill.
pub(super) fn bytes(value: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value} B") } else { format!("{} {}", rate(scaled), UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let counts = [0, 999, 1000, 72_123, 999_600, 3_580_000_000].map(count);
        assert_eq!(counts, ["0", "999", "1.00 k", "72.1 k", "1.00 M", "3.58 G"]);
        assert_eq!(
            [0, 1023, 1024, 3 << 19, 5 << 30].map(bytes),
            ["0 B", "1023 B", "1.00 KiB", "1.50 MiB", "5.00 GiB"]
        );
        assert_eq!([0.123, 9.87, 12.34, 456.7].map(rate), ["0.12", "9.87", "12.3", "457"]);
    }

    #[test]
    fn a_share_of_nothing_is_nothing() {
        assert_eq!((percent(1.0, 4.0), percent(1.0, 0.0)), (25.0, 0.0));
    }
}
