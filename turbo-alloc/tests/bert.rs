//! The plan of a real model as text: a change of behaviour appears as a readable diff.

#[path = "../examples/figure6/picture.rs"]
mod figure6;

use turbo_alloc::{AllocError, Planner, check};

/// One BERT-base layer of `seq_len` tokens: its chunks, then a line for each tensor.
fn snapshot(planner: &mut Planner, seq_len: usize) -> Result<String, AllocError> {
    let (names, records) = figure6::layer(seq_len);
    let plan = planner.plan(&records)?;
    assert_eq!(check(&records, &plan, 256), Ok(()));
    let mut lines = vec![format!("{seq_len} tokens, footprint {}", plan.footprint())];
    lines.extend(plan.chunks.iter().map(|chunk| {
        let new = if plan.grow.contains(chunk) { ", new" } else { "" };
        format!("{}: {} bytes{new}", chunk.id, chunk.bytes)
    }));
    lines.extend(names.iter().zip(&records).zip(&plan.placements).map(|((name, record), place)| {
        let (life, end) = (format!("{}..={}", record.first_op, record.last_op), place.offset + record.size);
        format!("{name:<12} {life:>6}  {} {:>8}..{end}", place.chunk, place.offset)
    }));
    Ok(lines.join("\n"))
}

/// Figure 6 of PPoPP'21: from 200 to 240 tokens one more chunk is allocated and the offsets move.
#[test]
fn a_longer_request_adds_one_chunk() {
    let mut planner = Planner::default();
    insta::assert_snapshot!(snapshot(&mut planner, 200).unwrap(), @r"
    200 tokens, footprint 5046272
    chunk 0: 2949120 bytes, new
    chunk 1: 2097152 bytes, new
    input         0..=7  chunk 0  1920000..2534400
    qkv           0..=1  chunk 0        0..1843200
    q             1..=2  chunk 1        0..614400
    k             1..=2  chunk 1   614400..1228800
    v             1..=4  chunk 1  1228800..1843200
    scores        2..=4  chunk 0        0..1920000
    context       4..=5  chunk 1        0..614400
    merged        5..=6  chunk 0        0..614400
    attention    6..=11  chunk 1        0..614400
    intermediate 8..=10  chunk 0        0..2457600
    output       10..=11  chunk 1   614400..1228800
    ");
    insta::assert_snapshot!(snapshot(&mut planner, 240).unwrap(), @r"
    240 tokens, footprint 7143424
    chunk 0: 2949120 bytes
    chunk 1: 2097152 bytes
    chunk 2: 2097152 bytes, new
    input         0..=7  chunk 1        0..737280
    qkv           0..=1  chunk 0        0..2211840
    q             1..=2  chunk 1   737280..1474560
    k             1..=2  chunk 2        0..737280
    v             1..=4  chunk 2   737280..1474560
    scores        2..=4  chunk 0        0..2764800
    context       4..=5  chunk 1   737280..1474560
    merged        5..=6  chunk 0        0..737280
    attention    6..=11  chunk 1   737280..1474560
    intermediate 8..=10  chunk 0        0..2949120
    output       10..=11  chunk 1        0..737280
    ");
}

#[test]
fn the_picture_in_the_readme_is_this_plan() {
    let picture = figure6::before_and_after().unwrap();
    let shown = include_str!("../docs/figure6.svg");
    assert!(picture == shown, "run the example figure6 and put its output into docs/figure6.svg");
}
