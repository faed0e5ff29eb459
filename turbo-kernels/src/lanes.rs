//! A row, vector by vector. The tail of a row is a vector with filled lanes, so every value takes the same steps
//! wherever the row ends, and every row takes its steps in the same order wherever it lies.
//!
//! Closures that are passed here are an instruction or two. A larger one may be compiled as a function of its own, and
//! then without the vector instructions (measured: attention a dozen times slower). For more work, write the loop with
//! [`read`] and [`write`].

use crate::simd::Simd;

/// Independent accumulators of a fold: additions take several cycles, and each waits for the one before it.
const CHAINS: usize = 4;

/// A vector of `from`, or what is left of it with `fill` in the other lanes.
#[inline(always)]
pub(crate) fn read<S: Simd>(s: S, from: &[f32], fill: f32) -> S::F32 {
    if from.len() >= S::LANES { s.load(from) } else { s.load_partial(from, fill) }
}

/// As much of `v` as `to` holds.
#[inline(always)]
pub(crate) fn write<S: Simd>(s: S, v: S::F32, to: &mut [f32]) {
    if to.len() >= S::LANES { s.store(v, to) } else { s.store_partial(v, to) }
}

/// `row[i] = f(row[i])`; lanes behind the end see `fill`.
#[inline(always)]
pub(crate) fn update<S: Simd>(s: S, row: &mut [f32], fill: f32, f: impl Fn(S::F32) -> S::F32) {
    let mut parts = row.chunks_exact_mut(S::LANES);
    for part in &mut parts {
        s.store(f(s.load(part)), part);
    }
    let rest = parts.into_remainder();
    if !rest.is_empty() {
        s.store_partial(f(s.load_partial(rest, fill)), rest);
    }
}

/// `row[i] = f(row[i], others[0][i], …)` for rows of one length; lanes behind the end see 0.
#[inline(always)]
pub(crate) fn update_with<S: Simd, const N: usize>(
    s: S,
    row: &mut [f32],
    others: [&[f32]; N],
    f: impl Fn(S::F32, [S::F32; N]) -> S::F32,
) {
    let whole = row.len() - row.len() % S::LANES;
    let (row, rest) = row.split_at_mut(whole);
    let others = others.map(|other| other.split_at(whole));
    // whole vectors in a loop of their own, in which nothing is left to decide
    let mut parts = others.map(|(other, _)| other.chunks_exact(S::LANES));
    for part in row.chunks_exact_mut(S::LANES) {
        let values = parts.each_mut().map(|other| s.load(other.next().unwrap_or_default()));
        s.store(f(s.load(part), values), part);
    }
    if !rest.is_empty() {
        let values = others.map(|(_, other)| s.load_partial(other, 0.0));
        s.store_partial(f(s.load_partial(rest, 0.0), values), rest);
    }
}

/// `out[i] = f(rows[0][i], …)` for rows of one length; lanes behind the end see `fill`.
#[inline(always)]
pub(crate) fn map<S: Simd, const N: usize>(
    s: S,
    rows: [&[f32]; N],
    fill: f32,
    out: &mut [f32],
    f: impl Fn([S::F32; N]) -> S::F32,
) {
    let whole = out.len() - out.len() % S::LANES;
    let (out, rest) = out.split_at_mut(whole);
    let rows = rows.map(|row| row.split_at(whole));
    // whole vectors in a loop of their own, in which nothing is left to decide
    let mut parts = rows.map(|(row, _)| row.chunks_exact(S::LANES));
    for out in out.chunks_exact_mut(S::LANES) {
        s.store(f(parts.each_mut().map(|row| s.load(row.next().unwrap_or_default()))), out);
    }
    if !rest.is_empty() {
        s.store_partial(f(rows.map(|(_, row)| s.load_partial(row, fill))), rest);
    }
}

/// Folds a row into one vector, or a few: vector `i` goes to chain `i mod 4`, then the chains are joined in pairs.
#[inline(always)]
pub(crate) fn fold<S: Simd, T: Copy>(
    s: S,
    row: &[f32],
    fill: f32,
    start: T,
    step: impl Fn(T, S::F32) -> T,
    join: impl Fn(T, T) -> T,
) -> T {
    let mut chains = [start; CHAINS];
    let mut blocks = row.chunks_exact(CHAINS * S::LANES);
    for block in &mut blocks {
        for (i, chain) in chains.iter_mut().enumerate() {
            *chain = step(*chain, s.load(&block[i * S::LANES..]));
        }
    }
    let rest = blocks.remainder();
    // counted, so that it is unrolled and the chains stay in registers
    for (i, chain) in chains.iter_mut().enumerate() {
        if i * S::LANES < rest.len() {
            *chain = step(*chain, read(s, &rest[i * S::LANES..], fill));
        }
    }
    join(join(chains[0], chains[1]), join(chains[2], chains[3]))
}

/// `Σ f(row[i])`; `f(fill)` must be 0.
#[inline(always)]
pub(crate) fn sum<S: Simd>(s: S, row: &[f32], fill: f32, f: impl Fn(S::F32) -> S::F32) -> f32 {
    s.reduce_sum(fold(s, row, fill, s.splat(0.0), |sum, v| s.add(sum, f(v)), |a, b| s.add(a, b)))
}

/// The greater of two in every lane, `b` if they are equal, NaN if either is.
#[inline(always)]
pub(crate) fn greater_or_nan<S: Simd>(s: S, a: S::F32, b: S::F32) -> S::F32 {
    // `max` gives `b` where one is NaN, and so keeps a NaN of `b`
    s.select(s.is_nan(a), a, s.max(a, b))
}

/// Rows that [`transpose`] takes at once.
pub(crate) const SQUARE: usize = 8;

/// `to[k · stride + i] = rows[i][k]` for rows of one length.
#[inline(always)]
pub(crate) fn transpose<S: Simd>(s: S, rows: [&[f32]; SQUARE], to: &mut [f32], stride: usize) {
    let len = rows[0].len();
    assert!(rows.iter().all(|row| row.len() == len));
    assert!(len == 0 || to.len() >= (len - 1) * stride + SQUARE);
    let whole = len - len % SQUARE;
    for k in (0..whole).step_by(SQUARE) {
        // SAFETY: each row holds the values from `k` to `k + 7`, and `to` a square's columns at each of these; `to` is
        // borrowed mutably, so no row overlaps it.
        unsafe {
            s.transpose_ptr(rows.map(|row| row.as_ptr().add(k)), to.as_mut_ptr().add(k * stride), stride)
        };
    }
    for k in whole..len {
        to[k * stride..][..SQUARE].copy_from_slice(&rows.map(|row| row[k]));
    }
}
