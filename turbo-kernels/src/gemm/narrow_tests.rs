//! Products of bf16 and int8 against obvious loops over the operands as their formats round them.

use std::marker::PhantomData;

use proptest::prelude::*;

use super::{
    Epilogue, Format, Gemm, LaidTiles, Panel, Products, Results, TileRegisters, TileSizes,
    bf16::Bf16,
    blocks::Block,
    int8::Int8,
    multiply, panel_width,
    test_products::{self, cpus, product},
    tile::TileRows,
    words::panel_words,
};
use crate::{
    Activation, DType, Isa,
    device::SharedMut,
    simd::{Kernel, Simd, supported},
};

const NARROW: [DType; 2] = [DType::Bf16, DType::Int8];

/// Values whose sums round, and every 97th a hundred times as large.
fn values(len: usize, seed: usize) -> Vec<f32> {
    let values = test_products::values(len, seed).into_iter().enumerate();
    values.map(|(i, value)| if i % 97 == 96 { value * 100.0 } else { value }).collect()
}

/// The nearest bf16 to a value; of two equally near ones the even one.
fn to_bf16(v: f32) -> f32 {
    let below = v.to_bits() & !0xffff;
    let [low, high] = [below, below + 0x1_0000].map(f32::from_bits);
    let (to_low, to_high) = (f64::from(v) - f64::from(low), f64::from(high) - f64::from(v));
    let low_is_even = below & 0x1_0000 == 0;
    let nearer_low = to_low.abs() < to_high.abs() || (to_low.abs() == to_high.abs() && low_is_even);
    if nearer_low { low } else { high }
}

/// A row as bytes: scale, zero point, bytes.
fn bytes_of_row(row: &[f32]) -> (f32, i64, Vec<i64>) {
    let least = row.iter().fold(0.0f32, |a, b| a.min(*b));
    let greatest = row.iter().fold(0.0f32, |a, b| a.max(*b));
    if greatest == least {
        return (0.0, 0, vec![0; row.len()]);
    }
    let steps = 254.0 / (greatest - least);
    let zero = (-least * steps).round_ties_even();
    let bytes = row.iter().map(|x| (f64::from(x * steps) + f64::from(zero)).round_ties_even() as i64);
    ((greatest - least) / 254.0, zero as i64, bytes.collect())
}

/// A column as signed bytes: scale, bytes.
fn bytes_of_column(column: &[f32]) -> (f32, Vec<i64>) {
    let most = column.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    if most == 0.0 {
        return (0.0, vec![0; column.len()]);
    }
    (most / 127.0, column.iter().map(|w| (w * (127.0 / most)).round_ties_even() as i64).collect())
}

/// One multiply-add after another.
fn chain(x: &[f32], w: &[f32], fused: bool) -> f32 {
    x.iter().zip(w).fold(0.0, |sum, (x, w)| if fused { x.mul_add(*w, sum) } else { x * w + sum })
}

/// Of every 32 values, one chain of those at even places and one of those at odd places, both added to each other.
fn sum_of_tiles(x: &[f32], w: &[f32]) -> f32 {
    let every_second =
        |values: &[f32], first| values.iter().skip(first).step_by(2).copied().collect::<Vec<_>>();
    x.chunks(32).zip(w.chunks(32)).fold(0.0, |sum, (x, w)| {
        let [even, odd] = [0, 1].map(|first| chain(&every_second(x, first), &every_second(w, first), true));
        sum + (even + odd)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// One chain over ascending `k` of the rounded operands, as with f32, except with tile registers.
    #[test]
    fn bf16_is_a_chain_of_rounded_operands(
        rows in 1..=70usize, threads in 1..=3usize, n in 1..100usize, k in 1..200usize,
    ) {
        let (x, w) = (values(rows * k, 1), values(n * k, 2));
        let round = |values: &[f32]| values.iter().map(|v| to_bf16(*v)).collect::<Vec<f32>>();
        let (rounded_x, rounded_w) = (round(&x), round(&w));
        for cpu in cpus(threads) {
            let weight = cpu.pack(&w, n, k, DType::Bf16).unwrap();
            let fused = cpu.isa() != Isa::Portable || crate::simd::PORTABLE_IS_FUSED;
            let got = product(&cpu, &x, &weight, Epilogue::None);
            for (i, got) in got.iter().enumerate() {
                let (x, w) = (&rounded_x[i / n * k..][..k], &rounded_w[i % n * k..][..k]);
                let want = if cpu.isa() == Isa::Amx { sum_of_tiles(x, w) } else { chain(x, w, fused) };
                prop_assert_eq!(*got, want.to_bits(), "{}", cpu.isa());
            }
        }
    }

    /// Sums are exact, so the products have the same bits on every instruction set.
    #[test]
    fn int8_is_exact_before_the_epilogue(
        rows in 1..=70usize, threads in 1..=3usize, n in 1..100usize, k in 1..300usize,
    ) {
        let (x, w) = (values(rows * k, 3), values(n * k, 4));
        let columns: Vec<_> = w.chunks_exact(k).map(bytes_of_column).collect();
        let mut want = Vec::new();
        for row in x.chunks_exact(k) {
            let (row_scale, zero, bytes) = bytes_of_row(row);
            want.extend(columns.iter().map(|(scale, column)| {
                let sum: i64 = bytes.iter().zip(column).map(|(x, w)| (x - zero) * w).sum();
                (sum as f32 * (row_scale * scale)).to_bits()
            }));
        }
        for cpu in cpus(threads) {
            let weight = cpu.pack(&w, n, k, DType::Int8).unwrap();
            prop_assert_eq!(&product(&cpu, &x, &weight, Epilogue::None), &want);
        }
    }

    /// Neither batch mates nor threads change a bit.
    #[test]
    fn bits_depend_on_the_row_alone(
        rows in 1..=70usize, alone in 0..70usize, threads in 1..=3usize, n in 1..100usize, k in 1..200usize,
    ) {
        let (x, w, bias) = (values(rows * k, 5), values(n * k, 6), values(n, 7));
        let gelu = Epilogue::BiasAct(&bias[..], Activation::GeluErf);
        let alone = alone % rows;
        for (cpu, dtype) in cpus(threads).flat_map(|cpu| NARROW.map(|dtype| (cpu.clone(), dtype))) {
            let weight = cpu.pack(&w, n, k, dtype).unwrap();
            let together = product(&cpu, &x, &weight, gelu);
            let got = product(&cpu, &x[alone * k..][..k], &weight, gelu);
            prop_assert_eq!(&got[..], &together[alone * n..][..n]);
        }
    }

    #[test]
    fn an_image_is_the_weight(n in 1..70usize, k in 1..150usize) {
        let (x, w) = (values(5 * k, 8), values(n * k, 9));
        for (cpu, dtype) in cpus(1).flat_map(|cpu| DType::ALL.map(|dtype| (cpu.clone(), dtype))) {
            let weight = cpu.pack(&w, n, k, dtype).unwrap();
            let restored = cpu.restore(cpu.image(&weight).unwrap(), n, k, dtype).unwrap();
            prop_assert_eq!(
                product(&cpu, &x, &weight, Epilogue::None),
                product(&cpu, &x, &restored, Epilogue::None)
            );
        }
    }
}

/// A tile times one panel after the other, all packed and multiplied by the same instructions.
struct Once<'a, F>(&'a [f32], &'a [f32], usize, PhantomData<F>);

impl<F: Format> Kernel for Once<'_, F> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<u32> {
        let Once(x, w, k, _) = self;
        let rows = x.len() / k;
        let mut tile = vec![f32::NAN; F::tile_words::<S>(rows, k)];
        let of_x: Vec<&[f32]> = x.chunks_exact(k).collect();
        // SAFETY: nothing else uses the tile meanwhile.
        F::pack_rows(s, &of_x, &mut unsafe { TileRows::new(SharedMut::new(&mut tile), rows, 0) });
        let tile = LaidTiles::packed(0, rows, &tile);
        // SAFETY: nothing else multiplies on this thread.
        let (mut bits, mut registers) = (Vec::new(), unsafe { TileRegisters::new(s) });
        for columns in w.chunks(panel_width::<S>() * k) {
            let (mut panel, mut products) = (vec![0.0; panel_words::<S, F>(k)], Products::new());
            F::pack_panel(s, columns, k, &mut panel);
            let (panel, results) = (Panel::cached(&panel), Results::of_one(products.place::<S>()));
            // SAFETY: `products` are borrowed here.
            unsafe { multiply::<S, F>(s, &mut registers, &tile, panel, Block::whole(k), None, results) };
            let columns = columns.len() / k;
            let lines = products.0.chunks_exact(panel_width::<S>()).take(rows);
            bits.extend(lines.flat_map(|line| line[..columns].iter().map(|v| v.to_bits())));
        }
        bits
    }
}

/// A machine with the dot products never takes the path that replaces them, so both are compared here. Words in two
/// parts suit tiles with one row less than registers hold, and meet higher tiles where rows also meet another format.
#[test]
fn dot_products_give_what_wider_instructions_give() {
    for isa in supported() {
        let (width, most) = isa.run(TileSizes);
        let shapes = [(width / 2, 3), (width - 7, 64), (width + 9, 130), (3 * width, 257)];
        let cases = [1, 2, most - 1, most].into_iter().flat_map(|rows| shapes.map(|shape| (rows, shape)));
        for (rows, (n, k)) in cases {
            let (x, w) = (values(rows * k, 10), values(n * k, 11));
            let case = format!("{rows} × {k} and {n} columns, {}", isa.isa());
            let [dots, wider] = [0, 1].map(|_| Once::<Bf16>(&x, &w, k, PhantomData));
            assert_eq!(isa.run_bf16_vectors(dots), isa.run(wider), "bf16, {case}");
            let [dots, wider] = [0, 1].map(|_| Once::<Int8>(&x, &w, k, PhantomData));
            assert_eq!(isa.run_int8_vectors(dots), isa.run(wider), "int8, {case}");
        }
    }
}

#[test]
fn what_is_no_number_stays_in_its_row_or_column() {
    let (rows, n, k) = (5, 19, 70);
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let (mut x, mut w) = (values(rows * k, 12), values(n * k, 13));
        (x[2 * k + 67], w[18 * k + 3]) = (bad, bad);
        for (cpu, dtype) in cpus(1).flat_map(|cpu| DType::ALL.map(|dtype| (cpu.clone(), dtype))) {
            let weight = cpu.pack(&w, n, k, dtype).unwrap();
            for (i, got) in product(&cpu, &x, &weight, Epilogue::None).into_iter().enumerate() {
                let finite = f32::from_bits(got).is_finite();
                assert_eq!(finite, i / n != 2 && i % n != 18, "{dtype} {bad} {}: value {i}", cpu.isa());
            }
        }
    }
}

#[test]
fn zeros_and_constants_are_exact() {
    for (cpu, dtype) in cpus(1).flat_map(|cpu| DType::ALL.map(|dtype| (cpu.clone(), dtype))) {
        // a row of zeros, one of a power of two, one of its negative; a column of zeros and one of ones
        let x: Vec<f32> = [0.0, 4.0, -4.0].into_iter().flat_map(|x| [x; 40]).collect();
        let w: Vec<f32> = [0.0, 1.0].into_iter().flat_map(|w| [w; 40]).collect();
        let weight = cpu.pack(&w, 2, 40, dtype).unwrap();
        let got: Vec<f32> =
            product(&cpu, &x, &weight, Epilogue::None).into_iter().map(f32::from_bits).collect();
        for (got, want) in got.iter().zip([0.0, 0.0, 0.0, 160.0, 0.0, -160.0]) {
            assert!((got - want).abs() <= want.abs() * 1e-6, "{dtype}: {got} for {want}");
        }
    }
}

#[test]
fn int8_refuses_sums_that_may_not_fit() {
    for cpu in cpus(1) {
        let error = cpu.pack(&[0.0; 65_537], 1, 65_537, DType::Int8).unwrap_err();
        assert_eq!(error.to_string(), "pack: in_features is 65537, expected at most 65536 with int8");
    }
}
