//! Collective operations of lanes and blocks, compared with the CUDA manual.

use super::{Order, Program, in_every_order};
use crate::cuda::Module;

static MODULE: Module = Module { name: "collectives", source: include_str!("collectives.cu") };

fn kernel(name: &'static str, threads: u32) -> Program {
    Program::new(&MODULE, name, threads)
}

/// Compares with the CUDA manual's definition by segments of lanes.
#[test]
fn shuffles_stay_in_their_segment() {
    in_every_order(|rig, order| {
        for width in [1, 2, 4, 8, 16, 32] {
            for operand in 0..32 {
                for which in 0..4 {
                    let got = rig.run(kernel("shuffle", 32), &[which, operand, width], 32).unwrap();
                    let segments = (0..32 / width).map(|s| s * width..(s + 1) * width);
                    let want = segments.flat_map(|segment| {
                        segment.clone().map(move |lane| {
                            let source = match which {
                                0 => Some(segment.start + operand % width),
                                1 => lane.checked_sub(operand).filter(|from| segment.contains(from)),
                                2 => Some(lane + operand).filter(|from| segment.contains(from)),
                                // lanes of lower segments may be read, of higher ones not
                                _ => Some(lane ^ operand).filter(|from| *from < segment.end),
                            };
                            100 + source.unwrap_or(lane)
                        })
                    });
                    let case = (order, which, operand, width);
                    assert_eq!(got, want.collect::<Vec<u32>>(), "{case:?}");
                }
            }
        }
    });
}

#[test]
fn shuffles_move_four_and_eight_bytes() {
    in_every_order(|rig, _| {
        let got = rig.run(kernel("shuffle_types", 32), &[], 32).unwrap();
        assert!(got.iter().enumerate().all(|(lane, got)| *got == (lane as u32 ^ 1) * 1001), "{got:?}");
    });
}

#[test]
fn votes_count_the_lanes_of_their_mask() {
    in_every_order(|rig, _| {
        for bits in [0, 1, 0x5555_5555, 0xaaaa_aaaa, 0x1234_5678, u32::MAX] {
            let votes: Vec<u32> =
                (0..64).map(|thread| bits.rotate_left(thread / 32) >> (thread % 32) & 1).collect();
            let got = rig.run(kernel("votes", 64), &votes, 5 * 64).unwrap();
            for (thread, got) in got.chunks(5).enumerate() {
                let bits = bits.rotate_left(thread as u32 / 32);
                let mask = if thread % 2 == 1 { 0xaaaa_aaaa } else { 0x5555_5555 };
                let (any, all) = (bits & mask != 0, bits & mask == mask);
                assert_eq!(
                    got,
                    [bits & mask, any.into(), all.into(), bits, u32::MAX],
                    "thread {thread} of {bits:x}"
                );
            }
        }
    });
}

#[test]
fn who_takes_no_part_gives_nothing() {
    in_every_order(|rig, _| {
        let got = rig.run(kernel("shuffle_from_outside", 32), &[], 16).unwrap();
        assert_eq!(got, [u32::MAX; 16]);
    });
}

#[test]
fn a_barrier_tells_whether_anybody_voted() {
    in_every_order(|rig, _| {
        for (thread, vote, want) in [(0, 0, 0), (0, 1, 1), (95, 1, 1), (40, 2, 3)] {
            let mut votes = [0; 96];
            votes[thread] = vote;
            assert_eq!(rig.run(kernel("votes_of_a_block", 96), &votes, 96).unwrap(), [want; 96]);
        }
    });
}

#[test]
fn barriers_keep_a_block_together() {
    in_every_order(|rig, order| {
        for threads in [1, 31, 32, 33, 250, 256, 1024] {
            let input: Vec<u32> = (0..3 * threads).collect();
            let reverse = kernel("reverse", threads).grid([3, 1, 1]).shared_bytes(4 * threads);
            let got = rig.run(reverse, &input, input.len()).unwrap();
            let want = input.chunks(threads as usize).flat_map(|block| block.iter().rev().copied());
            assert_eq!(got, want.collect::<Vec<_>>(), "{threads} threads, {order:?}");
        }
    });
}

#[test]
fn shared_memory_is_poisoned_before_each_block() {
    in_every_order(|rig, _| {
        let got = rig.run(kernel("unwritten", 32).grid([3, 1, 1]).shared_bytes(128), &[], 3 * 64).unwrap();
        assert!(got.iter().all(|word| *word == u32::MAX), "{got:x?}");
    });
}

#[test]
fn every_block_of_a_grid_runs_once() {
    in_every_order(|rig, _| {
        let got = rig.run(kernel("place", 40).grid([4, 3, 2]), &[], 24 * 40).unwrap();
        for (i, got) in got.into_iter().enumerate() {
            let (block, thread) = (i as u32 / 40, i as u32 % 40);
            let (x, y, z) = (block % 4, block / 4 % 3, block / 12);
            assert_eq!(got, ((x * 10 + y) * 10 + z) * 1000 + thread);
        }
    });
}

#[test]
fn atomics_meet() {
    in_every_order(|rig, _| {
        let values: Vec<u32> = (1..=128).map(|i| i * 37 % 101).collect();
        let got = rig.run(kernel("atomics", 128), &values, 5).unwrap();
        let most = *values.iter().max().unwrap();
        assert_eq!(got[..3], [values.iter().sum(), most, 0]);
        assert_eq!(got[3], values[got[4] as usize], "the one that found 0");
    });
}

#[test]
fn threads_begin_in_the_order_of_the_launch() {
    in_every_order(|rig, order| {
        let got = rig.run(kernel("order", 96), &[], 97).unwrap();
        let mut threads = got[1..].to_vec();
        let forward: Vec<u32> = (0..96).collect();
        match order {
            Order::Forward => assert_eq!(threads, forward),
            Order::Reverse => assert!(threads.iter().rev().eq(&forward)),
            Order::Seeded(_) => {
                assert_ne!(threads, forward);
                threads.sort_unstable();
                assert_eq!(threads, forward);
            }
        }
    });
}
