//! Products of tensor cores and the moves around them, compared with the PTX manual.

use half::{bf16, f16};

use super::{Order, Program, Rig, in_every_order};
use crate::cuda::Module;

static MODULE: Module = Module { name: "tensor_cores", source: include_str!("tensor_cores.cu") };

/// Small whole numbers, whose sums of products are exact.
fn number(i: usize) -> i32 {
    (i * i * 31 + i * 7) as i32 % 15 - 7
}

/// `a[16, 16] · b[16, 8] + c` by rows and columns, laid out over lanes as tables 31 to 34 of the PTX manual say.
#[test]
fn fragments_of_a_product_lie_as_the_manual_says() {
    let pair = |bits: &dyn Fn(f32) -> u16, low: i32, high: i32| {
        u32::from(bits(low as f32)) | u32::from(bits(high as f32)) << 16
    };
    let a = |row: usize, column: usize| number(row * 16 + column);
    let b = |row: usize, column: usize| number(1000 + row * 8 + column);
    let c = |row: usize, column: usize| number(2000 + row * 8 + column);
    let to_f16 = |v| f16::from_f32(v).to_bits();
    let to_bf16 = |v| bf16::from_f32(v).to_bits();
    let types: [(&str, &dyn Fn(f32) -> u16); 2] = [("mma_f16", &to_f16), ("mma_bf16", &to_bf16)];
    in_every_order(|rig, _| {
        for (name, bits) in types {
            let mut registers = Vec::new();
            for lane in 0..32 {
                let (group, first) = (lane / 4, lane % 4 * 2);
                for (row, column) in [(0, 0), (8, 0), (0, 8), (8, 8)] {
                    let (row, column) = (group + row, first + column);
                    registers.push(pair(bits, a(row, column), a(row, column + 1)));
                }
                for row in [first, first + 8] {
                    registers.push(pair(bits, b(row, group), b(row + 1, group)));
                }
                for (row, column) in [(0, 0), (0, 1), (8, 0), (8, 1)] {
                    registers.push((c(group + row, first + column) as f32).to_bits());
                }
            }
            let got = rig.run(Program::new(&MODULE, name, 32), &registers, 128).unwrap();
            for (i, got) in got.into_iter().enumerate() {
                let (lane, i) = (i / 4, i % 4);
                let (row, column) = (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
                let want = c(row, column) + (0..16).map(|k| a(row, k) * b(k, column)).sum::<i32>();
                assert_eq!(f32::from_bits(got), want as f32, "{name}: row {row}, column {column}");
            }
        }
    });
}

#[test]
fn matrices_are_dealt_to_lanes() {
    let value = |matrix: usize, row: usize, column: usize| (matrix * 1000 + row * 10 + column) as u32;
    let rows = (0..32).flat_map(|row| (0..4).map(move |word| (row, 2 * word)));
    let words: Vec<u32> = rows
        .map(|(row, column)| {
            let at = |column| value(row / 8, row % 8, column);
            at(column) | at(column + 1) << 16
        })
        .collect();
    in_every_order(|rig, _| {
        let got = rig.run(Program::new(&MODULE, "matrices", 32).shared_bytes(512), &words, 256).unwrap();
        for (lane, got) in got.chunks(8).enumerate() {
            let (i, j) = (lane / 4, lane % 4 * 2);
            for matrix in 0..4 {
                assert_eq!(got[matrix], value(matrix, i, j) | value(matrix, i, j + 1) << 16, "lane {lane}");
                assert_eq!(
                    got[4 + matrix],
                    value(matrix, j, i) | value(matrix, j + 1, i) << 16,
                    "lane {lane}"
                );
            }
        }
    });
}

#[test]
fn copies_land_when_they_are_waited_for() {
    const POISON: u32 = u32::MAX;
    let input = [1, 2, 3, 4, 0x0005_0005, 0x0006_0006, 7, 8];
    in_every_order(|rig, _| {
        let got = rig.run(Program::new(&MODULE, "copies", 1).shared_bytes(48), &input, 36).unwrap();
        assert_eq!(got[..12], [POISON; 12], "before the first wait");
        assert_eq!(got[12..16], [1, 2, 3, 4], "the first group");
        assert_eq!(got[16..24], [POISON; 8], "the second one is under way");
        assert_eq!(got[24..28], [1, 2, 3, 4]);
        assert_eq!(got[28..32], [0x0005_0005, 0x0000_0006, 0, 0], "six bytes and zeros");
        assert_eq!(got[32..], [0; 4], "nothing but zeros");
    });
}

/// All f16 values, and floats at, between and next to all f16 and bf16 values, compared with the crate `half`.
#[test]
fn conversions_round_to_nearest_even() {
    let mut floats: Vec<u32> = (0..=u16::MAX).map(u32::from).collect();
    let near = |bits: u32| [bits.wrapping_sub(1), bits, bits.wrapping_add(1)];
    for bits in 0..=u16::MAX {
        let next = |bits: u16| f16::from_bits(bits.wrapping_add(1)).to_f32();
        let value = f16::from_bits(bits).to_f32();
        floats.extend(near(value.to_bits()));
        floats.extend(near((value / 2.0 + next(bits) / 2.0).to_bits()));
        floats.extend(near(u32::from(bits) << 16));
        floats.extend(near(u32::from(bits) << 16 | 0x8000));
    }
    floats.resize(floats.len().next_multiple_of(1024), 0);
    let Some(mut rig) = Rig::new(Order::Forward) else { return };
    let program = Program::new(&MODULE, "conversions", 1024).grid([(floats.len() / 1024) as u32, 1, 1]);
    let got = rig.run(program, &floats, 3 * floats.len()).unwrap();
    for (bits, got) in floats.into_iter().zip(got.chunks(3)) {
        let value = f32::from_bits(bits);
        // the hardware makes only one NaN
        let [to_f16, to_bf16] = if value.is_nan() {
            [0x7fff, 0x7fff]
        } else {
            [f16::from_f32(value).to_bits(), bf16::from_f32(value).to_bits()]
        };
        assert_eq!(got[..2], [to_f16.into(), to_bf16.into()], "{value:e}, {bits:08x}");
        let (got, want) = (f32::from_bits(got[2]), f16::from_bits(bits as u16).to_f32());
        assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{bits:04x}: {got:e}");
    }
}
