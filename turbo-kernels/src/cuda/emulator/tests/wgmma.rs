//! Products of four warps, compared with the PTX manual.

use half::{bf16, f16};

use super::{Order, Program, Rig, in_every_order};
use crate::cuda::Module;

static MODULE: Module =
    Module { name: "wgmma", source: concat!(include_str!("../../wgmma.cuh"), include_str!("wgmma.cu")) };

const THREADS: usize = 128;

/// The nearest value of a 16-bit type.
type Round = fn(f32) -> u16;

/// Small whole numbers, whose sums of products are exact.
fn number(i: usize) -> f32 {
    ((i * i * 31 + i * 7) % 15) as f32 - 7.0
}

/// Row `row`, column `column` of a tile in shared memory.
fn in_tile(row: usize, column: usize) -> f32 {
    number(5000 + row * 64 + column)
}

/// A tile as words, with chunks of 16 bytes swizzled as the manual shows: by the row's number in rows of 128 bytes, by
/// half of the number in rows of 64 bytes.
fn swizzled(rows: usize, row_bytes: usize, bits: Round) -> Vec<u32> {
    let mut halves = vec![0; rows * row_bytes / 2];
    for row in 0..rows {
        for column in 0..row_bytes / 2 {
            let mix = if row_bytes == 128 { row % 8 } else { row / 2 % 4 };
            let chunk = (column / 8) ^ mix;
            halves[row * row_bytes / 2 + chunk * 8 + column % 8] = bits(in_tile(row, column));
        }
    }
    halves.chunks(2).map(|pair| u32::from(pair[0]) | u32::from(pair[1]) << 16).collect()
}

/// `a[64, 16]` times two matrices, one after the other in a tile; fragments as the tables of `wgmma.mma_async` have them.
#[test]
fn operands_lie_as_the_manual_says() {
    let a = |row: usize, column: usize| number(row * 16 + column);
    let to_f16: Round = |v| f16::from_f32(v).to_bits();
    let to_bf16: Round = |v| bf16::from_f32(v).to_bits();
    let programs = [
        ("products_f16_rows_128", to_f16, 128, false),
        ("products_f16_rows_64", to_f16, 64, false),
        ("products_bf16_columns_128", to_bf16, 128, true),
        ("products_bf16_columns_64", to_bf16, 64, true),
    ];
    in_every_order(|rig, _| {
        for (name, bits, row_bytes, columns) in programs {
            let width = row_bytes / 2;
            let rows = if columns { 32 } else { width };
            let mut input = Vec::new();
            for thread in 0..THREADS {
                let (group, first) = (thread / 32 * 16 + thread % 32 / 4, thread % 4 * 2);
                for (row, column) in [(0, 0), (8, 0), (0, 8), (8, 8)] {
                    let at = |column| u32::from(bits(a(group + row, column)));
                    input.push(at(first + column) | at(first + column + 1) << 16);
                }
            }
            input.extend(swizzled(rows, row_bytes, bits));
            let program = Program::new(&MODULE, name, THREADS as u32).shared_bytes((rows * row_bytes) as u32);
            let of_thread = 1 + width / 2;
            let got = rig.run(program, &input, THREADS * of_thread).unwrap();
            for (thread, got) in got.chunks(of_thread).enumerate() {
                assert!(f32::from_bits(got[0]).is_nan(), "{name}: a sum before it is waited for");
                for (i, got) in got[1..].iter().enumerate() {
                    let row = thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
                    let column = i / 4 * 8 + thread % 4 * 2 + i % 2;
                    let b = |k| if columns { in_tile(k, column) } else { in_tile(column, k) };
                    let want: f32 = (0..32).map(|k| a(row, k % 16) * b(k)).sum();
                    assert_eq!(f32::from_bits(*got), want, "{name}: row {row}, column {column}");
                }
            }
        }
    });
}

#[test]
fn wrong_kernels_are_found_in_every_order() {
    let program = |name, threads| Program::new(&MODULE, name, threads).shared_bytes(16 << 10);
    in_every_order(|rig, order| {
        for (name, threads, says) in [
            ("registers_without_fence", 128, "wgmma_f16: no wgmma_fence since the last wait"),
            ("second_wave_without_fence", 128, "wgmma_f16: no wgmma_fence since the last wait"),
            ("copies_without_fence", 128, "have landed without wgmma_fence_shared"),
            ("writes_what_is_read", 128, "wgmma_wait: what a product reads has been overwritten"),
            ("changes_its_registers", 128, "wgmma_wait: registers that a product reads have been changed"),
            ("without_a_warp", 128, "warp 2 has begun 0 products of four warps, warp 0 1"),
            ("no_mistake", 64, "warp 0 has begun 1 products of four warps, warp 0 1"),
            ("off_eight_rows", 128, "the matrix does not begin at a multiple of eight rows"),
            ("outside_shared", 128, "the matrix lies outside shared memory"),
        ] {
            let error = rig.run(program(name, threads), &[0; 4], 1).expect_err(name);
            assert!(error.contains(says), "{name}, {order:?}: {error}");
        }
        assert!(rig.run(program("no_mistake", 256), &[0], 1).is_ok());
    });
}

/// After an error, none of its state is left.
#[test]
fn an_error_harms_no_later_launch() {
    let Some(mut rig) = Rig::new(Order::Forward) else { return };
    let mut run = |name| rig.run(Program::new(&MODULE, name, 128).shared_bytes(16 << 10), &[0; 4], 1);
    for wrong in ["writes_what_is_read", "copies_without_fence", "without_a_warp"] {
        assert!(run(wrong).is_err());
        assert!(run("no_mistake").is_ok());
    }
}
