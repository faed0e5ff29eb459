//! Products: the calls to cuBLASLt, the choice of the algorithm, and the part that is left to kernels of this crate.

use half::{bf16, f16};

use super::{free, on_a_gpu};
use crate::{
    Activation,
    cuda::{
        Address, Driver, FloatType, Matrices, Product, Stream,
        emulator::{Emulator, Order},
        real::{fake::said, remainder},
    },
    matmul::Rhs,
};

/// A product of small whole numbers, whose sums are exact in all types.
#[derive(Clone, Copy, Debug)]
struct Case {
    types: (FloatType, FloatType),
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    w_order: Rhs,
    has_bias: bool,
    has_add: bool,
    activation: Option<Activation>,
    /// Elements before and between rows and matrices, which are neither read nor written.
    gap: usize,
}

const PLAIN: Case = Case {
    types: (FloatType::F32, FloatType::F32),
    batch: 1,
    m: 3,
    n: 4,
    k: 5,
    w_order: Rhs::Transposed,
    has_bias: false,
    has_add: false,
    activation: None,
    gap: 0,
};

fn encode(float: FloatType, values: &[f32]) -> Vec<u8> {
    match float {
        FloatType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        FloatType::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        FloatType::Bf16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
    }
}

fn decode(float: FloatType, bytes: &[u8]) -> Vec<f32> {
    let two = |bytes: &[u8]| [bytes[0], bytes[1]];
    match float {
        FloatType::F32 => {
            bytes.chunks(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect()
        }
        FloatType::F16 => bytes.chunks(2).map(|value| f16::from_le_bytes(two(value)).to_f32()).collect(),
        FloatType::Bf16 => bytes.chunks(2).map(|value| bf16::from_le_bytes(two(value)).to_f32()).collect(),
    }
}

/// A product of f32, without sizes and addresses.
fn of_nothing() -> Product {
    let nowhere = Matrices { first: Address::NULL, row_stride: 0, batch_stride: 0 };
    Product {
        input: FloatType::F32,
        output: FloatType::F32,
        batch: 1,
        m: 0,
        n: 0,
        k: 0,
        x: nowhere,
        w: nowhere,
        w_order: Rhs::Transposed,
        y: nowhere,
        bias: Address::NULL,
        activation: None,
        add: None,
        tf32: false,
    }
}

/// `batch` matrices in their own block.
struct Held {
    float: FloatType,
    values: Vec<f32>,
    /// Elements before the first matrix.
    gap: usize,
    place: Matrices,
}

impl Held {
    /// Values from -2 to 2, different ones for each `seed`; the values between them are 77.
    fn new(
        driver: &dyn Driver,
        stream: &mut dyn Stream,
        float: FloatType,
        [batch, rows, columns]: [usize; 3],
        gap: usize,
        seed: usize,
    ) -> Self {
        let row_stride = columns + gap;
        let batch_stride = rows * row_stride + gap;
        let mut values = vec![77.0; gap + batch * batch_stride];
        for (b, i, j) in each(batch, rows, columns) {
            let number = (b * 31 + i * 7 + j * 3 + seed) * 2_654_435_761 % (1 << 32);
            values[gap + b * batch_stride + i * row_stride + j] = (number >> 13) as f32 % 5.0 - 2.0;
        }
        let block = driver.allocate(values.len() * float.bytes()).unwrap();
        // SAFETY: the block holds that many bytes.
        unsafe { stream.upload(&encode(float, &values), block) }.unwrap();
        let place = Matrices { first: block.offset(gap * float.bytes()), row_stride, batch_stride };
        Self { float, values, gap, place }
    }

    fn block(&self) -> Address {
        Address(self.place.first.0 - (self.gap * self.float.bytes()) as u64)
    }

    fn index(&self, b: usize, i: usize, j: usize) -> usize {
        self.gap + b * self.place.batch_stride + i * self.place.row_stride + j
    }

    fn get(&self, b: usize, i: usize, j: usize) -> f32 {
        self.values[self.index(b, i, j)]
    }

    fn free(self, driver: &dyn Driver) {
        // SAFETY: it was allocated with the same number of bytes; nothing that uses it is enqueued later.
        unsafe { driver.free(self.block(), self.values.len() * self.float.bytes()) };
    }
}

fn each(batch: usize, rows: usize, columns: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..batch).flat_map(move |b| (0..rows).flat_map(move |i| (0..columns).map(move |j| (b, i, j))))
}

/// Does the product with `multiply`, and compares every value of `y`, and the values between them, with a loop in f64.
fn check(driver: &dyn Driver, stream: &mut dyn Stream, case: Case, multiply: fn(&mut dyn Stream, &Product)) {
    let Case { types: (input, output), batch, m, n, k, w_order, gap, .. } = case;
    let mut hold = |float, sizes, seed| Held::new(driver, stream, float, sizes, gap, seed);
    let x = hold(input, [batch, m, k], 1);
    let w = hold(input, if w_order == Rhs::Normal { [batch, k, n] } else { [batch, n, k] }, 2);
    let bias = hold(input, [1, 1, n], 3);
    let add = hold(output, [batch, m, n], 4);
    let mut y = hold(output, [batch, m, n], 5);
    let product = Product {
        input,
        output,
        batch,
        m,
        n,
        k,
        x: x.place,
        w: w.place,
        w_order,
        y: y.place,
        bias: if case.has_bias { bias.place.first } else { Address::NULL },
        activation: case.activation,
        add: case.has_add.then_some(add.place),
        ..of_nothing()
    };
    multiply(stream, &product);
    let mut bytes = vec![0; y.values.len() * output.bytes()];
    // SAFETY: the block holds that many bytes.
    unsafe { stream.download(y.block(), &mut bytes) }.unwrap();
    for (b, i, j) in each(batch, m, n) {
        let mut sum: f64 = (0..k)
            .map(|at| {
                let w = if w_order == Rhs::Normal { w.get(b, at, j) } else { w.get(b, j, at) };
                f64::from(x.get(b, i, at) * w)
            })
            .sum();
        sum += if case.has_bias { f64::from(bias.get(0, 0, j)) } else { 0.0 };
        sum += if case.has_add { f64::from(add.get(b, i, j)) } else { 0.0 };
        let at = y.index(b, i, j);
        y.values[at] = case.activation.map_or(sum, |activation| activated(activation, sum)) as f32;
    }
    for (at, (got, want)) in decode(output, &bytes).into_iter().zip(&y.values).enumerate() {
        // sums are exact; an activation is off by some 1e-6 of values up to 100, and then rounded once
        let tolerance = if case.activation.is_none() { 0.0 } else { 1e-4 + want.abs() * 2f32.powi(-8) };
        assert!((got - want).abs() <= tolerance, "{case:?}: value {at} is {got}, not {want}");
    }
    [x, w, bias, add, y].into_iter().for_each(|held| held.free(driver));
}

fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Relu => x.max(0.0),
        Activation::GeluTanh => {
            x / 2.0 * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x.powi(3))).tanh())
        }
        Activation::Silu => x / (1.0 + (-x).exp()),
        other => unreachable!("no case has {other:?}"),
    }
}

fn multiply(stream: &mut dyn Stream, product: &Product) {
    // SAFETY: `check` allocated blocks that hold all operands.
    unsafe { stream.product(product) }.unwrap();
}

#[test]
fn products_are_described_to_cublas_lt() {
    use Activation::{GeluTanh, Relu};
    use FloatType::{Bf16, F32};
    on_a_gpu(products_are_described_to_cublas_lt, &[], |gpu| {
        let mut stream = gpu.stream().unwrap();
        for types in [(F32, F32), (Bf16, Bf16), (Bf16, F32)] {
            for w_order in [Rhs::Normal, Rhs::Transposed] {
                let plain = Case { types, w_order, ..PLAIN };
                for case in [
                    plain,
                    Case { batch: 3, gap: 2, ..plain },
                    Case { m: 1, n: 1, k: 1, ..plain },
                    Case { has_add: true, gap: 1, ..plain },
                    Case { has_add: true, batch: 2, activation: Some(Relu), ..plain },
                    Case { m: 0, ..plain },
                    Case { batch: 0, ..plain },
                ] {
                    check(gpu, &mut *stream, case, multiply);
                }
            }
        }
        // what the fake GPU does without kernels of ours
        for types in [(F32, F32), (Bf16, Bf16)] {
            let biased = Case { types, has_bias: true, gap: 3, ..PLAIN };
            check(gpu, &mut *stream, biased, multiply);
            check(gpu, &mut *stream, Case { has_add: true, activation: Some(Relu), ..biased }, multiply);
        }
        let gelu = Case { types: (Bf16, Bf16), activation: Some(GeluTanh), ..PLAIN };
        check(gpu, &mut *stream, gelu, multiply);
        check(gpu, &mut *stream, Case { has_bias: true, batch: 2, ..gelu }, multiply);
    });
}

#[test]
fn algorithms_are_chosen_by_time_once_for_nearly_as_many_rows() {
    // longer than a process waits on a loaded machine
    let slow = [("FAKE_SLOW", "30000")];
    on_a_gpu(algorithms_are_chosen_by_time_once_for_nearly_as_many_rows, &slow, |gpu| {
        let mut stream = gpu.stream().unwrap();
        let news = |stream: &mut dyn Stream, case| {
            let before = said().len();
            check(gpu, stream, case, multiply);
            said()[before..].to_owned()
        };
        let by = |algorithm: u32| format!("multiplied by algorithm {algorithm}\n");
        let eighteen = Case { m: 18, ..PLAIN };
        let first = news(&mut *stream, eighteen);
        // one run to load each usable algorithm and five to measure it; then the fastest one
        let timed = by(0).repeat(6) + &by(1).repeat(6);
        assert_eq!(first, format!("proposed 8 to w 256 x 256 add 256 y 256\n{timed}{}", by(1)));
        assert_eq!(news(&mut *stream, eighteen), by(1));
        assert_eq!(news(&mut *stream, Case { m: 20, ..PLAIN }), by(1));
        // it does not support 19 rows, so cuBLASLt's first proposal is used
        let once = format!("proposed 1 to w 256 x 256 add 256 y 256\n{}", by(0));
        assert_eq!(news(&mut *stream, Case { m: 19, ..PLAIN }), once);
        // another stream knows the choice, too
        assert_eq!(news(&mut *gpu.stream().unwrap(), eighteen), by(1));
        // another form needs another choice
        let odd = news(&mut *stream, Case { m: 18, gap: 1, ..PLAIN });
        assert!(odd.starts_with("proposed 8 to w 4 x 4 add 4 y 4\n"), "{odd}");
        assert!(news(&mut *stream, Case { m: 21, ..PLAIN }).starts_with("proposed 8"));
    });
}

#[test]
fn a_recording_takes_what_is_proposed_first() {
    on_a_gpu(a_recording_takes_what_is_proposed_first, &[], |gpu| {
        let mut stream = gpu.stream().unwrap();
        let recorded = |stream: &mut dyn Stream, product: &Product| {
            let before = said().len();
            stream.begin_recording().unwrap();
            multiply(stream, product);
            let recording = stream.end_recording().unwrap();
            assert_eq!(
                said()[before..],
                *"proposed 1 to w 256 x 256 add 256 y 256\nmultiplied by algorithm 0\n"
            );
            // SAFETY: the blocks live.
            unsafe { recording.replay() }.unwrap();
        };
        check(gpu, &mut *stream, PLAIN, recorded);
        check(gpu, &mut *stream, PLAIN, recorded);
        let before = said().len();
        check(gpu, &mut *stream, PLAIN, multiply);
        assert!(said()[before..].starts_with("proposed 8"), "what was not timed is timed later");

        // the scratch of a product under way outlives stream and recording, even if a landing is the last to hold the
        // stream
        let landing = stream.landing().unwrap();
        let matrices = || Matrices { first: gpu.allocate(400).unwrap(), row_stride: 4, batch_stride: 0 };
        let [x, w, y] = [matrices(), matrices(), matrices()];
        stream.begin_recording().unwrap();
        multiply(&mut *stream, &Product { m: 4, n: 4, k: 4, x, w, y, ..of_nothing() });
        let recording = stream.end_recording().unwrap();
        drop(stream);
        // SAFETY: the blocks live.
        unsafe { recording.replay() }.unwrap();
        drop(recording);
        [x, w, y].iter().for_each(|matrices| free(gpu, matrices.first, 400));
        drop(landing);
    });
}

#[test]
fn what_cublas_lt_has_not_is_ours() {
    use Activation::{GeluErf, GeluTanh};
    use FloatType::{Bf16, F16};
    on_a_gpu(what_cublas_lt_has_not_is_ours, &[], |gpu| {
        let mut stream = gpu.stream().unwrap();
        let mut launched = |change: fn(&mut Product)| {
            let matrices = |row_stride| {
                let first = gpu.allocate(1 << 16).unwrap();
                Matrices { first, row_stride, batch_stride: 1000 }
            };
            let (x, w, y) = (matrices(5), matrices(5), matrices(33));
            let mut product = Product { batch: 2, m: 17, n: 33, k: 5, x, w, y, tf32: true, ..of_nothing() };
            change(&mut product);
            let before = said().len();
            // SAFETY: the blocks hold all of it.
            let result = unsafe { stream.product(&product) };
            stream.synchronize().unwrap();
            for matrices in [product.x, product.w, product.y] {
                free(gpu, matrices.first, 1 << 16);
            }
            match result {
                Ok(()) => {
                    let news = &said()[before..];
                    let line = news.lines().filter(|line| line.starts_with("launched")).collect::<String>();
                    assert!(line.is_empty() || news.ends_with(&format!("{line}\n")), "it comes last: {news}");
                    line
                }
                Err(error) => error.to_string(),
            }
        };
        // tiles of 16 × 16, and blocks of 256 values
        for (change, expected) in [
            ((|_| ()) as fn(&mut Product), ""),
            (|it| (it.input, it.output) = (F16, F16), "launched product_f16 12 1 1 by 256 with 0"),
            (|it| it.input = F16, "launched product_f16_to_f32 12 1 1 by 256 with 0"),
            (|it| it.k = 0, "launched product_f32 12 1 1 by 256 with 0"),
            (|it| it.x.row_stride = 4, "launched product_f32 12 1 1 by 256 with 0"),
            (|it| it.activation = Some(GeluErf), "launched finish_f32 5 1 1 by 256 with 0"),
            (|it| (it.input, it.bias) = (Bf16, it.w.first), "launched finish_bf16 5 1 1 by 256 with 0"),
            (
                |it| (it.input, it.activation) = (Bf16, Some(GeluTanh)),
                "launched finish_bf16 5 1 1 by 256 with 0",
            ),
            (
                |it| (it.input, it.output, it.activation) = (Bf16, Bf16, Some(GeluErf)),
                "multiply: GeluErf is not done with a product of Bf16",
            ),
        ] {
            assert_eq!(launched(change), expected);
        }
    });
}

/// On the emulated GPU, our kernels compute the products that cuBLASLt leaves to them.
#[test]
fn the_remainder_is_computed() {
    use Activation::{GeluTanh, Relu, Silu};
    use FloatType::{Bf16, F16, F32};
    fn whole(stream: &mut dyn Stream, product: &Product) {
        // SAFETY: `check` allocated blocks that hold all operands.
        unsafe { remainder::multiply(stream, product) }.unwrap();
    }
    fn in_two_steps(stream: &mut dyn Stream, product: &Product) {
        let first = Product { bias: Address::NULL, activation: None, ..*product };
        whole(stream, &first);
        // SAFETY: as above.
        unsafe { remainder::finish(stream, product) }.unwrap();
    }
    let Some(emulator) = Emulator::or_skip(Order::Seeded(3)) else { return };
    let mut stream = emulator.stream().unwrap();
    for types in [(F32, F32), (F16, F16), (Bf16, Bf16), (F16, F32), (Bf16, F32)] {
        let plain = Case { types, ..PLAIN };
        for case in [
            plain,
            Case { k: 0, has_bias: true, ..plain },
            Case { m: 17, n: 33, k: 18, batch: 2, gap: 3, ..plain },
            Case {
                m: 16,
                n: 16,
                k: 16,
                w_order: Rhs::Normal,
                has_bias: true,
                has_add: true,
                gap: 1,
                ..plain
            },
            Case { has_bias: true, has_add: true, batch: 3, activation: Some(GeluTanh), ..plain },
            Case { activation: Some(Silu), ..plain },
        ] {
            check(&emulator, &mut *stream, case, whole);
        }
        if types.1 == F32 {
            check(&emulator, &mut *stream, Case { has_bias: true, gap: 1, ..plain }, in_two_steps);
            let case = Case { m: 40, n: 9, batch: 2, has_add: true, activation: Some(Relu), ..plain };
            check(&emulator, &mut *stream, case, in_two_steps);
        }
    }
}
