//! Layers of experts, compared with the textbook, and where experts run separately with the operations that they stand
//! for.

use super::{
    ROUNDING,
    bias_act::routed,
    bits::assert_same,
    numbers::Numbers,
    rig::{Floats, Rig, compare, of_storing, refuses_length, refuses_size},
    twin,
};
use crate::{Activation, BiasAct, DType, Experts, FeedForward, Gemm, Hidden, KernelError, Routing};

const GELU: Activation = Activation::GeluErf;

/// Whatever the router says, a row is the weighted sum of its experts' results.
///
/// # Panics
/// When the device departs from the twin.
pub fn experts<D: Gemm>(device: &D) {
    for (num_experts, top_k) in [(1, 1), (3, 2), (8, 2), (5, 5)] {
        for sizes in [(1, 33, 24, 33), (7, 16, 1, 5), (61, 37, 17, 40), (0, 8, 8, 8)] {
            for router in Router::ALL {
                Layer::new(device, DType::F32, Routing { num_experts, top_k }, sizes, router)
                    .matches_the_textbook();
            }
        }
    }
    refuses_what_does_not_fit(device);
}

/// The result has the same bits as feed-forward layers whose results each row combines by links of
/// `link(a, b, sum) = a · b + sum`; and some rows have the same bits without the others.
///
/// # Panics
/// When a value has different bits.
pub fn experts_are_their_parts<D>(device: &D, link: impl Fn(f32, f32, f32) -> f32)
where
    D: Gemm<Float = f32> + BiasAct,
{
    // the longer ones are sorted in several parts, and an expert that has all rows computes them in several runs
    let cases = [
        ((1, 1), (3, 33, 40, 17)),
        ((5, 2), (1, 65, 130, 65)),
        ((5, 2), (29, 40, 24, 40)),
        ((8, 2), (300, 32, 48, 16)),
        ((4, 2), (40, 16, 3072, 32)),
        ((64, 64), (9, 8, 3, 8)),
    ];
    for dtype in DType::ALL {
        for ((num_experts, top_k), sizes) in cases {
            for router in Router::ALL {
                Layer::new(device, dtype, Routing { num_experts, top_k }, sizes, router)
                    .matches_its_parts(&link);
            }
        }
    }
}

/// The logits that a router gives rows.
#[derive(Clone, Copy, Debug)]
enum Router {
    /// Any logits.
    Any,
    /// One expert comes first for all rows, and another last.
    SameForAll,
    /// All logits are equal.
    Undecided,
    /// Any, but in every third row some are NaN; in others all are −∞, or some are ∞.
    Broken,
}

impl Router {
    const ALL: [Router; 4] = [Router::Any, Router::SameForAll, Router::Undecided, Router::Broken];

    fn logits(self, mut any: Vec<f32>, num_experts: usize) -> Vec<f32> {
        for (row, logits) in any.chunks_mut(num_experts).enumerate() {
            match (self, row % 12) {
                (Router::SameForAll, _) => {
                    logits[0] = -9.0;
                    logits[num_experts / 2] = 9.0;
                }
                (Router::Undecided, _) => logits.fill(1.0),
                (Router::Broken, 0 | 6) => logits[row % num_experts] = f32::NAN,
                (Router::Broken, 3) => logits.fill(f32::NAN),
                (Router::Broken, 4) => logits.fill(f32::NEG_INFINITY),
                (Router::Broken, 5) => logits[num_experts / 2..].fill(f32::INFINITY),
                (Router::Broken, 7) => logits[num_experts / 2] = f32::NEG_INFINITY,
                (Router::Broken | Router::Any, _) => {}
            }
        }
        any
    }
}

/// Matrices as `device` takes them, on both sides: `up` is `[num_experts · n, in_features]`, `down` `[out_features,
/// num_experts · n]`.
///
/// # Panics
/// When a matrix is refused.
pub(super) fn pack<D: Gemm>(
    device: &D,
    dtype: DType,
    num_experts: usize,
    (up, in_features): (&[f32], usize),
    (down, out_features): (&[f32], usize),
) -> [Vec<D::Weight>; 2] {
    let (matrices, wide) = (if D::EXPERTS_APART { num_experts } else { 1 }, up.len() / in_features);
    let n = wide / matrices;
    let pack = |values: &[f32], out_features, in_features| {
        device.pack(values, out_features, in_features, dtype).expect("the matrix has its shape")
    };
    let of_expert = |index: usize| {
        let columns = down.chunks_exact(wide).flat_map(|row| &row[index * n..][..n]);
        pack(&columns.copied().collect::<Vec<_>>(), out_features, n)
    };
    [
        up.chunks_exact(n * in_features).map(|up| pack(up, n, in_features)).collect(),
        (0..matrices).map(of_expert).collect(),
    ]
}

/// Experts from `size` to `inner` and to `out` values a row.
struct Layer<'d, D: Gemm> {
    device: &'d D,
    routing: Routing,
    rows: usize,
    size: usize,
    inner: usize,
    out: usize,
    case: String,
    /// x, all up, all down, logits.
    host: [Vec<f32>; 4],
    x: Floats<D>,
    logits: Floats<D>,
    matrices: [Vec<D::Weight>; 2],
}

impl<'d, D: Gemm> Layer<'d, D> {
    fn new(
        device: &'d D,
        dtype: DType,
        routing: Routing,
        (rows, size, inner, out): (usize, usize, usize, usize),
        router: Router,
    ) -> Self {
        let num_experts = routing.num_experts;
        let mut numbers = Numbers::<D::Float>::new(rows + 3 * size + 7 * inner + num_experts);
        let wide = num_experts * inner;
        let [x, up, down] = [rows * size, wide * size, out * wide].map(|len| numbers.values(len));
        let logits = router.logits(numbers.around(0.0, 4.0, rows * num_experts), num_experts);
        let mut rig = Rig::new(device);
        Layer {
            device,
            routing,
            rows,
            size,
            inner,
            out,
            case: format!("experts {dtype} {routing:?} {rows}x{size}x{inner}x{out} {router:?}"),
            x: rig.put(&x),
            logits: rig.put(&logits),
            matrices: pack(device, dtype, num_experts, (&up, size), (&down, out)),
            host: [x, up, down, logits],
        }
    }

    /// The device's result for rows `first..first + rows`.
    fn run(&self, first: usize, rows: usize) -> Vec<f32> {
        let num_experts = self.routing.num_experts;
        let [up, down] = self.matrices.each_ref();
        Rig::new(self.device)
            .answer(rows * self.out, |d, queue, out| {
                let x = self.x.part(first * self.size, rows * self.size);
                let logits = self.logits.part(first * num_experts, rows * num_experts);
                let layer = Experts { routing: self.routing, up, activation: GELU, down };
                d.experts(queue, x, logits, layer, out)
            })
            .unwrap_or_else(|e| panic!("{}: {e}", self.case))
    }

    /// Values may be weighted before or after the second product, and may be stored at that point.
    fn matches_the_textbook(&self) {
        let [x, up, down, logits] = &self.host;
        let Routing { num_experts, top_k } = self.routing;
        let wide = num_experts * self.inner;
        let stored = |(value, error)| (value, error + of_storing::<D::Float>(value));
        let (mut want, mut allowed) = (Vec::new(), Vec::new());
        let ups = twin::linear(x, up, self.size);
        for (ups, logits) in ups.chunks_exact(wide).zip(logits.chunks_exact(num_experts)) {
            let weights = routed(logits, top_k);
            let hidden: Vec<(f64, f64)> = ups
                .iter()
                .enumerate()
                .map(|(column, up)| {
                    let Some(weight) = weights[column / self.inner] else { return (0.0, 0.0) };
                    let (up, error) = stored((up.value, chain(self.size) * up.magnitude));
                    // no activation is steeper than 1.13
                    let activated = twin::activate(GELU, up);
                    let (_, error) = stored((activated, 1.13 * error + 3e-7 * up.abs().max(1.0)));
                    let weighted = weight * activated;
                    // exponentials, their sum and two products of f32
                    let of_weight = (8.0 + num_experts as f64) * ROUNDING * weighted.abs();
                    stored((weighted, weight * error + of_weight))
                })
                .collect();
            for down in down.chunks_exact(wide) {
                let (mut sum, mut magnitude, mut error) = (0.0, 0.0, 0.0);
                for (&(value, of_value), &weight) in hidden.iter().zip(down) {
                    let weight = f64::from(weight);
                    sum += value * weight;
                    magnitude += (value * weight).abs();
                    error += of_value * weight.abs();
                }
                want.push(sum);
                allowed.push(error + chain(wide) * magnitude);
            }
        }
        compare::<D::Float>(&self.case, &self.run(0, self.rows), &want, |i| allowed[i]);
    }
}

impl<D: Gemm<Float = f32> + BiasAct> Layer<'_, D> {
    fn matches_its_parts(&self, link: impl Fn(f32, f32, f32) -> f32) {
        let whole = self.run(0, self.rows);
        for (first, rows) in [(0, 1), (self.rows - 1, 1), (self.rows / 2, 1), (self.rows / 3, self.rows / 2)]
        {
            let alone = self.run(first, rows);
            assert_same(&self.case, &alone, &whole[first * self.out..][..alone.len()]);
        }
        let Routing { num_experts, top_k } = self.routing;
        let mut rig = Rig::new(self.device);
        let ones = rig.put(&vec![1.0; self.rows * num_experts]);
        let weights = rig
            .answer(self.rows * num_experts, |d, queue, out| {
                d.weigh_experts(queue, ones.view(), self.logits.view(), self.routing, out)
            })
            .expect("the lengths fit");
        let [ups, downs] = &self.matrices;
        let mut made = |(up, down): (&D::Weight, &D::Weight)| {
            rig.answer(self.rows * self.out, |d, queue, out| {
                let layer = FeedForward {
                    up,
                    up_bias: None,
                    hidden: Hidden::Activation(GELU),
                    down,
                    down_bias: None,
                    residual: None,
                    norm: None,
                };
                d.feed_forward(queue, self.x.view(), layer, out)
            })
            .expect("the shapes fit")
        };
        let made: Vec<Vec<f32>> = ups.iter().zip(downs).map(&mut made).collect();
        let mut want = Vec::new();
        for (row, logits) in self.host[3].chunks_exact(num_experts).enumerate() {
            let chosen = routed(logits, top_k);
            assert_eq!(chosen.iter().flatten().count(), top_k);
            let of_row: Vec<(f32, &[f32])> = (0..num_experts)
                .filter(|&expert| chosen[expert].is_some())
                .map(|expert| {
                    (weights[row * num_experts + expert], &made[expert][row * self.out..][..self.out])
                })
                .collect();
            let is_broken = of_row.iter().any(|(weight, _)| weight.is_nan());
            want.extend((0..self.out).map(|column| {
                let mut links = of_row.iter().map(|(weight, made)| (*weight, made[column]));
                let (weight, made) = links.next().expect("a row has an expert");
                let sum = links.fold(weight * made, |sum, (weight, made)| link(weight, made, sum));
                if is_broken { f32::NAN } else { sum }
            }));
        }
        assert_same(&self.case, &whole, &want);
    }
}

/// The error of a sum of `len` products, relative to the sum of their magnitudes.
fn chain(len: usize) -> f64 {
    ROUNDING * (2 * len + 4) as f64
}

fn refuses_what_does_not_fit<D: Gemm>(device: &D) {
    let pack = |n: usize, size: usize, out: usize| {
        let (up, down) = (vec![0.5; 2 * n * size], vec![0.5; out * 2 * n]);
        pack(device, DType::F32, 2, (&up, size), (&down, out))
    };
    let ([up, down], [_, longer]) = (pack(3, 4, 5), pack(4, 4, 5));
    let mut rig = Rig::new(device);
    let values = rig.put(&[1.0; 10]);
    type Matrices<'w, D> = [&'w [<D as Gemm>::Weight]; 2];
    let mut run = |[up, down]: Matrices<'_, D>, (num_experts, top_k), x, logits, out| {
        rig.answer(out, |d, queue, out| -> Result<(), KernelError> {
            let layer =
                Experts { routing: Routing { num_experts, top_k }, up, activation: Activation::Relu, down };
            d.experts(queue, values.part(0, x), values.part(0, logits), layer, out)
        })
    };
    let both = [&up[..], &down[..]];
    run(both, (2, 1), 8, 4, 10).expect("everything fits");
    refuses_length("experts: x too short", run(both, (2, 1), 7, 4, 10));
    refuses_length("experts: logits are no whole rows", run(both, (2, 1), 8, 3, 10));
    refuses_length("experts: out too short", run(both, (2, 1), 8, 4, 9));
    for routing in [(0, 1), (65, 1), (2, 0), (2, 3)] {
        refuses_size("experts: as many as there cannot be", run(both, routing, 8, 4, 10));
    }
    refuses_size("experts: no matrices", run([&[], &down], (2, 1), 8, 4, 10));
    refuses_size("experts: no second matrices", run([&up, &[]], (2, 1), 8, 4, 10));
    refuses_size("experts: sides of different widths", run([&up, &longer], (2, 1), 8, 4, 10));
}
