//! Compares each kernel, with each size of blocks and at the edges of tiles, with the CPU, which the suite compares
//! with its twin.

use std::{fmt::Debug, sync::Arc};

use half::{bf16, f16};

use super::*;
use crate::{
    AttentionMask, Cpu, CpuOptions, DType, Device,
    cuda::{
        CudaBlock, CudaOptions,
        emulator::{Emulator, Order, is_sanitized},
        on_emulator::{all, answer, on_every_emulator, upload},
    },
    suite,
};

/// Around tiles of 16, 32, 64 and 128, and no token at all.
const EDGES: &[u32] = &[1, 63, 64, 65, 0, 127, 128, 129, 200];
const MASKS: [AttentionMask; 5] = [
    AttentionMask::Full,
    AttentionMask::Causal,
    AttentionMask::Window { reach: 0 },
    AttentionMask::Window { reach: 5 },
    AttentionMask::Window { reach: 70 },
];
/// The number of guard values around an output, a multiple of what kernels write at once.
const GUARD: usize = 64;
/// The guard value.
const AROUND: f32 = 7.0;

/// Two heads of queries that share one of keys and values.
const HEADS: usize = 2;

#[derive(Clone, Copy, Debug)]
struct Case {
    head_dim: usize,
    scale: f32,
    mask: AttentionMask,
    bias: Option<RelativeBias<()>>,
    queries: Queries,
    padded: bool,
    lens: &'static [u32],
}

/// Heads of 64 columns over [`EDGES`], packed, all attending to all.
const PLAIN: Case = Case {
    head_dim: 64,
    scale: 0.125,
    mask: AttentionMask::Full,
    bias: None,
    queries: Queries::All,
    padded: false,
    lens: EDGES,
};

const fn buckets(num_buckets: usize, max_distance: usize) -> RelativeBias<()> {
    RelativeBias::Buckets { table: (), num_buckets, max_distance }
}

/// The inputs of a case, all of them values of `F`.
#[derive(Clone)]
struct Values {
    /// `[query rows, 2 · head_dim]`
    q: Vec<f32>,
    /// `[rows, 2 · head_dim]`, keys and values side by side.
    kv: Vec<f32>,
    table: Vec<f32>,
}

impl Case {
    fn padded_len(&self) -> usize {
        self.lens.iter().max().map_or(0, |&len| len as usize + 3)
    }

    /// Where each sequence begins.
    fn starts(&self) -> Vec<usize> {
        let mut next = 0;
        let advance = |&len: &u32| {
            let start = next;
            next += if self.padded { self.padded_len() } else { len as usize };
            start
        };
        self.lens.iter().map(advance).collect()
    }

    fn rows(&self) -> usize {
        let packed = self.lens.iter().sum::<u32>() as usize;
        if self.padded { self.lens.len() * self.padded_len() } else { packed }
    }

    fn query_rows(&self) -> usize {
        if self.queries == Queries::All { self.rows() } else { self.lens.len() }
    }

    /// Row `position` of sequence `b` holds the same in every layout, and padding holds NaN.
    fn values<F: Float>(&self) -> Values {
        let number = |i: usize| F::from_f32((i * 7919 % 2017) as f32 / 1008.0 - 1.0).to_f32();
        let row = |b: usize, position: usize, salt: usize| {
            let first = (b * 1000 + position) * 2 * self.head_dim;
            (first..first + 2 * self.head_dim).map(move |i| number(i + salt))
        };
        let mut kv = vec![f32::NAN; self.rows() * 2 * self.head_dim];
        let mut q = vec![f32::NAN; self.query_rows() * HEADS * self.head_dim];
        for (b, (&len, start)) in self.lens.iter().zip(self.starts()).enumerate() {
            for position in 0..len as usize {
                let at = (start + position) * 2 * self.head_dim;
                kv[at..at + 2 * self.head_dim]
                    .iter_mut()
                    .zip(row(b, position, 0))
                    .for_each(|(to, v)| *to = v);
                let at = match self.queries {
                    Queries::All => at,
                    Queries::First if position == 0 => b * 2 * self.head_dim,
                    Queries::Last if position + 1 == len as usize => b * 2 * self.head_dim,
                    _ => continue,
                };
                q[at..at + 2 * self.head_dim]
                    .iter_mut()
                    .zip(row(b, position, 77))
                    .for_each(|(to, v)| *to = v);
            }
        }
        let table = match self.bias {
            Some(RelativeBias::Buckets { num_buckets, .. }) => (0..num_buckets * HEADS).map(number).collect(),
            Some(RelativeBias::Alibi | RelativeBias::Disentangled { .. }) | None => Vec::new(),
        };
        Values { q, kv, table }
    }

    fn shape(&self) -> AttentionShape {
        AttentionShape {
            num_heads: HEADS,
            num_kv_heads: 1,
            head_dim: self.head_dim,
            scale: self.scale,
            mask: self.mask,
            dtype: DType::F32,
            queries: self.queries,
        }
    }

    /// Lengths or prefix sums.
    fn lengths(&self) -> Vec<u32> {
        if self.padded {
            return self.lens.to_vec();
        }
        let mut sums = vec![0];
        sums.extend(self.lens.iter().scan(0, |sum, len| {
            *sum += len;
            Some(*sum)
        }));
        sums
    }

    fn layout<V>(&self, lengths: V) -> Layout<V> {
        if self.padded {
            Layout::Padded { seq_lens: lengths, padded_len: self.padded_len() }
        } else {
            Layout::Packed { cu_seqlens: lengths }
        }
    }

    fn columns<V: Copy>(&self, q: V, kv: V) -> [Columns<V>; 3] {
        let part = |first| Columns { rows: kv, first, row_stride: 2 * self.head_dim };
        [Columns::all(q, HEADS * self.head_dim), part(0), part(self.head_dim)]
    }

    fn bias<V: Copy>(&self, table: V) -> Option<RelativeBias<V>> {
        self.bias.map(|bias| bias.with_tables([table; 2]))
    }

    /// The rows of the result that are tokens, each with the number of its sequence and its position in it.
    fn attending(&self) -> Vec<(usize, usize, usize)> {
        let of_sequence = |(b, (&len, start)): (usize, (&u32, usize))| {
            let len = len as usize;
            let rows: Vec<_> = match self.queries {
                Queries::All => (0..len).map(|position| (start + position, b, position)).collect(),
                Queries::First => vec![(b, b, 0)],
                Queries::Last => vec![(b, b, len.saturating_sub(1))],
            };
            rows
        };
        self.lens.iter().zip(self.starts()).enumerate().flat_map(of_sequence).collect()
    }

    /// The CPU's result.
    fn on_cpu(&self, values: &Values) -> Vec<f32> {
        let cpu = Cpu::new(CpuOptions::default()).expect("there is a CPU");
        let lengths = self.lengths();
        let mut out = vec![f32::NAN; values.q.len()];
        let [q, k, v] = self.columns(&values.q[..], &values.kv[..]);
        let (layout, bias) = (self.layout(&lengths[..]), self.bias(&values.table[..]));
        let mut queue = cpu.queue().expect("there is a queue");
        cpu.attention(&mut queue, self.shape(), layout, q, k, v, bias, &mut out).expect("all fits");
        out
    }

    /// The tolerance of a result, if queries, keys and values are within ±1.
    fn allowed<F: Float>(&self, want: f32) -> f64 {
        let keys = f64::from(*self.lens.iter().max().expect("there are sequences"));
        // the error of f32, as in the suite: scores add up to √head_dim at most
        let (columns, magnitude) = (self.head_dim as f64, (self.head_dim as f64).sqrt() + 1.0);
        let of_f32 = f32::ROUNDING * (4.0 * (columns + 3.0) * magnitude + 4.0 * keys + 16.0);
        // weights are rounded, with a relative error or, beside the greatest, 1, that of a subnormal
        let of_weights = F::ROUNDING + keys * F::SMALLEST;
        of_f32 + of_weights + F::ROUNDING * f64::from(want.abs()) + F::SMALLEST
    }
}

/// An emulated GPU that stores `F`.
struct Gpu<F: Float> {
    device: Cuda<F>,
    queue: CudaQueue,
}

impl<F: Float> Gpu<F> {
    fn new(order: Order) -> Option<Gpu<F>> {
        let device = Cuda::new(Arc::new(Emulator::or_skip(order)?), CudaOptions::default());
        let queue = device.queue().expect("there is a queue");
        Some(Gpu { device, queue })
    }

    fn put(&mut self, values: &[f32]) -> CudaBlock {
        let values: Vec<F> = values.iter().map(|v| F::from_f32(*v)).collect();
        upload(&self.device, &mut self.queue, &values)
    }

    /// The result of `variant` for a case. Everything begins at a multiple of 16 bytes.
    fn run(&mut self, case: &Case, values: &Values, variant: Variant) -> Vec<f32> {
        self.run_with(case, values, &case.lengths(), variant)
    }

    /// [`Gpu::run`] with lengths that may contradict the rows.
    fn run_with(&mut self, case: &Case, values: &Values, lengths: &[u32], variant: Variant) -> Vec<f32> {
        let [q, kv, table] = [&values.q, &values.kv, &values.table].map(|part| self.put(part));
        let len = values.q.len();
        let mut out = self.put(&vec![AROUND; len + 2 * GUARD]);
        let Gpu { device, queue } = self;
        let on_device = upload(device, queue, lengths);
        let columns = case.columns(all::<F>(&q, len), all(&kv, values.kv.len()));
        let bias = case.bias(all(&table, values.table.len()));
        let layout = case.layout(all(&on_device, lengths.len()));
        let to = device.view_mut(&mut out, GUARD * size_of::<F>(), len).expect("the block holds them");
        let batch = Batch::checked(case.shape(), layout, columns, bias, to).expect("all fits");
        assert!(variant.takes(&batch.work()), "{variant:?} cannot do {case:?}");
        batch.launch(queue, variant).unwrap_or_else(|e| panic!("{variant:?}, {case:?}: {e}"));
        let mut values = vec![F::default(); len + 2 * GUARD];
        device.download(queue, all(&out, values.len()), &mut values).expect("lengths agree");
        let values: Vec<f32> = values.into_iter().map(F::to_f32).collect();
        let mut guards = values[..GUARD].iter().chain(&values[GUARD + len..]);
        assert!(guards.all(|v| *v == AROUND), "{variant:?}, {case:?}: wrote beside its output");
        values[GUARD..GUARD + len].to_vec()
    }
}

/// Checks that rows that are tokens agree with the CPU, and that the padding is finite.
fn agrees<F: Float>(case: &Case, what: impl Debug, got: &[f32], want: &[f32]) {
    let width = HEADS * case.head_dim;
    for (row, b, position) in case.attending() {
        for (column, (&got, &want)) in
            got[row * width..].iter().zip(&want[row * width..]).take(width).enumerate()
        {
            let (off, allowed) = (f64::from(got - want).abs(), case.allowed::<F>(want));
            assert!(
                off <= allowed,
                "{what:?}, {case:?}: sequence {b}, row {position}, column {column} is {got}, expected {want} ± {allowed}"
            );
        }
    }
    assert!(got.iter().all(|v| v.is_finite()), "{what:?}, {case:?}: padding is not finite");
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn with_tensor_cores(case: &Case) -> [Variant; 4] {
    let [wide, middle, narrow] = Variant::mma(case.head_dim);
    [wide, middle, narrow, wgmma(case)]
}

fn wgmma(case: &Case) -> Variant {
    Variant::Wgmma { head_dim: case.head_dim, biased: case.bias.is_some() }
}

fn tensor_cores_agree<F: Float>(order: Order, head_dim: usize, masks: &[AttentionMask]) {
    let Some(mut gpu) = Gpu::<F>::new(order) else { return };
    let scale = 1.0 / (head_dim as f32).sqrt();
    for &mask in masks {
        for bias in [None, Some(buckets(32, 100)), Some(RelativeBias::Alibi)] {
            let case = Case { head_dim, scale, mask, bias, ..PLAIN };
            let values = case.values::<F>();
            let want = case.on_cpu(&values);
            let [first, rest @ ..] = with_tensor_cores(&case);
            let got = gpu.run(&case, &values, first);
            agrees::<F>(&case, first, &got, &want);
            for variant in rest {
                let other = gpu.run(&case, &values, variant);
                assert_eq!(bits(&other), bits(&got), "{variant:?} beside {first:?}: {case:?}");
            }
        }
    }
}

#[test]
fn tensor_cores_agree_with_the_cpu_on_f16() {
    tensor_cores_agree::<f16>(Order::Forward, 64, &MASKS);
}

#[test]
fn tensor_cores_agree_with_the_cpu_on_bf16() {
    tensor_cores_agree::<bf16>(Order::Reverse, 64, &MASKS[..2]);
}

#[test]
fn tensor_cores_agree_with_the_cpu_on_narrow_heads() {
    tensor_cores_agree::<f16>(Order::Seeded(3), 32, &MASKS);
}

#[test]
fn tensor_cores_agree_with_the_cpu_on_wide_heads() {
    tensor_cores_agree::<f16>(Order::Seeded(4), 128, &MASKS[1..2]);
}

/// A row is the same whichever other rows attend, and wherever its sequence lies; padding is 0.
#[test]
fn rows_do_not_depend_on_their_place() {
    let Some(mut gpu) = Gpu::<f16>::new(Order::Seeded(5)) else { return };
    for (mask, head_dim, variant) in [
        (AttentionMask::Causal, 32, Variant::mma(32)[2]),
        (MASKS[3], 32, Variant::mma(32)[2]),
        (AttentionMask::Causal, 32, Variant::Wgmma { head_dim: 32, biased: true }),
        (MASKS[3], 64, Variant::Wgmma { head_dim: 64, biased: true }),
        (AttentionMask::Full, 5, Variant::general(5)),
    ] {
        let case = Case { mask, head_dim, bias: Some(buckets(32, 100)), ..PLAIN };
        let width = HEADS * head_dim;
        let all = gpu.run(&case, &case.values::<f16>(), variant);
        let row_of = |b, position| {
            let (row, ..) =
                *case.attending().iter().find(|row| (row.1, row.2) == (b, position)).expect("a token");
            all[row * width..][..width].to_vec()
        };
        for other in [
            Case { padded: true, ..case },
            Case { queries: Queries::First, ..case },
            Case { queries: Queries::Last, ..case },
            Case { queries: Queries::Last, padded: true, ..case },
        ] {
            let got = gpu.run(&other, &other.values::<f16>(), variant);
            let mut rest = got.clone();
            for (row, b, position) in other.attending() {
                if other.lens[b] > 0 {
                    let row = row * width..(row + 1) * width;
                    assert_eq!(
                        bits(&got[row.clone()]),
                        bits(&row_of(b, position)),
                        "{other:?}: {b}, {position}"
                    );
                    rest[row].fill(0.0);
                }
            }
            assert!(rest.iter().all(|v| *v == 0.0), "{other:?}: what sees no key is not 0");
        }
    }
}

/// Hidden keys have no effect even where the product multiplies their values by a weight of 0.
#[test]
fn hidden_keys_reach_nothing() {
    let Some(mut gpu) = Gpu::<bf16>::new(Order::Reverse) else { return };
    const NAN_KEY: usize = 70;
    const VALUES: [(usize, f32); 4] =
        [(3, f32::NAN), (66, f32::INFINITY), (100, f32::NEG_INFINITY), (140, f32::NAN)];
    for mask in MASKS {
        let case = Case { mask, lens: &[20, 150], ..PLAIN };
        let mut values = case.values::<bf16>();
        let width = 2 * case.head_dim;
        for (i, (key, value)) in VALUES.into_iter().enumerate() {
            values.kv[(20 + key) * width + case.head_dim + i] = value;
        }
        values.kv[(20 + NAN_KEY) * width + 9] = f32::NAN;
        for variant in with_tensor_cores(&case) {
            let got = gpu.run(&case, &values, variant);
            for (row, b, position) in case.attending() {
                let sees = |key| b == 1 && mask.visible(position, 150).contains(&key);
                for (column, &got) in got[row * width..].iter().take(width).enumerate() {
                    let value = VALUES.get(column % case.head_dim).filter(|(key, _)| sees(*key));
                    let place =
                        format!("{variant:?}, {mask:?}: {b}, row {position}, column {column} is {got}");
                    match value {
                        _ if sees(NAN_KEY) => assert!(got.is_nan(), "{place}"),
                        Some((_, value)) if value.is_nan() => assert!(got.is_nan(), "{place}"),
                        Some((_, value)) => assert_eq!(got, *value, "{place}"),
                        None => assert!(got.is_finite(), "{place}"),
                    }
                }
            }
        }
    }
}

/// More sequences than a warp finds at once.
#[test]
fn tiles_of_many_sequences_are_found() {
    let Some(mut gpu) = Gpu::<f16>::new(Order::Forward) else { return };
    let many: Vec<u32> = (0..1000).map(|i| [3, 0, 1, 2][i % 4]).collect();
    for lens in [&many[..], &many[..40], &[1; 31], &[70; 32]] {
        let case = Case {
            head_dim: 32,
            scale: 0.2,
            mask: AttentionMask::Causal,
            lens: lens.to_vec().leak(),
            ..PLAIN
        };
        let values = case.values::<f16>();
        let want = case.on_cpu(&values);
        for variant in with_tensor_cores(&case) {
            agrees::<f16>(&case, variant, &gpu.run(&case, &values, variant), &want);
        }
    }
}

/// Tiles are judged separately: only the next tile of keys has values that are not finite.
#[test]
fn tiles_are_known_apart() {
    let orders = [Order::Forward, Order::Reverse, Order::Seeded(1), Order::Seeded(2), Order::Seeded(9)];
    for (order, head_dim) in orders.into_iter().zip([128, 64, 32, 64, 32]) {
        let Some(mut gpu) = Gpu::<f16>::new(order) else { return };
        let case = Case { head_dim, mask: AttentionMask::Window { reach: 70 }, lens: &[260], ..PLAIN };
        let mut values = case.values::<f16>();
        for key in [100, 230] {
            values.kv[key * 2 * case.head_dim + case.head_dim] = f32::NAN;
        }
        for variant in with_tensor_cores(&case) {
            let got = gpu.run(&case, &values, variant);
            for (row, _, position) in case.attending() {
                let sees = |key: usize| key.abs_diff(position) <= 70;
                for (column, got) in got[row * 2 * case.head_dim..].iter().take(2 * case.head_dim).enumerate()
                {
                    let nan = column % case.head_dim == 0 && (sees(100) || sees(230));
                    assert_eq!(
                        got.is_nan(),
                        nan,
                        "{variant:?}, {order:?}: row {position}, column {column}: {got}"
                    );
                }
            }
        }
    }
}

/// Negative scales reverse the order of scores, and with a scale of 0 all visible keys weigh the same.
#[test]
fn any_scale_is_a_scale() {
    let Some(mut gpu) = Gpu::<f16>::new(Order::Forward) else { return };
    for scale in [-0.5, 0.0, 3.0] {
        for bias in [None, Some(buckets(8, 20)), Some(RelativeBias::Alibi)] {
            let lens = &[64, 90];
            let case = Case { head_dim: 32, scale, mask: AttentionMask::Causal, bias, lens, ..PLAIN };
            let values = case.values::<f16>();
            let want = case.on_cpu(&values);
            let [variant, .., other] = with_tensor_cores(&case);
            let got = gpu.run(&case, &values, variant);
            assert_eq!(bits(&gpu.run(&case, &values, other)), bits(&got), "{case:?}");
            // `allowed` is for scales of 1/√head_dim, and its part for f32 grows with the scale
            let case = Case { head_dim: 1024, ..case };
            for (got, want) in got.iter().zip(&want) {
                assert!(f64::from(got - want).abs() <= case.allowed::<f16>(*want), "{scale}: {got} {want}");
            }
        }
    }
}

/// Heads of more columns than shared memory takes at once.
#[test]
fn wide_heads_are_done_in_parts() {
    fn agree<F: Float>() {
        let Some(mut gpu) = Gpu::<F>::new(Order::Seeded(6)) else { return };
        let case = Case { head_dim: 300, scale: 0.06, mask: AttentionMask::Causal, lens: &[40, 3], ..PLAIN };
        let values = case.values::<F>();
        let got = gpu.run(&case, &values, Variant::general(300));
        agrees::<F>(&case, "general", &got, &case.on_cpu(&values));
    }
    agree::<f32>();
    agree::<bf16>();
}

/// The host cannot see lengths, so whatever they say, only rows that exist are read and written.
#[test]
fn lengths_that_contradict_themselves_touch_nothing_else() {
    let Some(mut gpu) = Gpu::<f16>::new(Order::Forward) else { return };
    for (padded, lengths) in [
        (false, &[0, 500, 3, u32::MAX][..]),
        (false, &[900, 20, 10, 64]),
        (false, &[0, u32::MAX, u32::MAX, u32::MAX]),
        (true, &[u32::MAX, 7, 500]),
    ] {
        let case = Case { padded, lens: &[30, 4, 30], ..PLAIN };
        let values = case.values::<f16>();
        for variant in [Variant::general(64), Variant::mma(64)[0], Variant::mma(64)[2], wgmma(&PLAIN)] {
            gpu.run_with(&case, &values, lengths, variant);
        }
    }
}

/// There is no sequence behind the only prefix sum.
#[test]
fn rows_of_no_sequence_are_left_alone() {
    let Some(mut gpu) = Gpu::<f16>::new(Order::Forward) else { return };
    let case = Case { lens: &[64], ..PLAIN };
    let values = case.values::<f16>();
    let [q, kv] = [&values.q, &values.kv].map(|part| gpu.put(part));
    let Gpu { device, queue } = &mut gpu;
    let sums = upload(device, queue, &[0_u32, 64]);
    let layout = Layout::Packed { cu_seqlens: all(&sums, 1) };
    let columns = case.columns(all::<f16>(&q, values.q.len()), all(&kv, values.kv.len()));
    for variant in [Variant::general(64), Variant::mma(64)[0], Variant::mma(64)[2], wgmma(&PLAIN)] {
        let out = answer(device, queue, values.q.len(), |queue, out| {
            let batch = Batch::checked(case.shape(), layout, columns, None, out).expect("all fits");
            batch.launch(queue, variant).unwrap_or_else(|e| panic!("{variant:?}: {e}"));
        });
        assert!(out.iter().all(|v| v.is_nan()), "{variant:?} wrote rows of no sequence");
    }
}

#[test]
fn the_suite_holds() {
    on_every_emulator!(suite::attention);
}

fn aligned<D: Attention>(device: &D) {
    suite::aligned(|| suite::attention(device));
}

#[test]
fn the_suite_holds_on_tensor_cores() {
    on_every_emulator!(aligned);
}

/// Tests GPUs without products of four warps.
#[test]
fn the_suite_holds_on_older_tensor_cores() {
    let Some(emulator) = Emulator::or_skip(Order::Seeded(8)) else { return };
    let device = Cuda::<f16>::new(Arc::new(emulator.of_capability((8, 0))), CudaOptions::default());
    aligned(&device);
    if !is_sanitized() {
        aligned(&device.with_float::<bf16>());
    }
}
