//! Products followed by a norm, and whole feed-forward layers, compared with the textbook and with their parts.

use super::{
    ROUNDING,
    bits::assert_same,
    numbers::Numbers,
    rig::{Floats, Rig, compare, of_storing, refuses_length, refuses_size},
    twin,
};
use crate::{
    Activation, BiasAct, DType, Epilogue, FeedForward, FloatsOn, Gemm, Hidden, Norm, norm::NormWeights,
};

/// Feed-forward layers and products that are normalised.
///
/// # Panics
/// When the device departs from the twin.
pub fn feed_forward<D: Gemm>(device: &D) {
    for hidden in [Hidden::Activation(Activation::GeluErf), Hidden::Gate(Activation::Silu)] {
        for (rows, size, wide) in
            [(1, 33, 70), (5, 7, 1), (13, 16, 33), (15, 40, 17), (0, 8, 8), (61, 37, 101), (130, 24, 300)]
        {
            let layer = Layer::new(device, DType::F32, hidden, rows, size, wide);
            for parts in Parts::ALL {
                layer.matches_the_textbook(parts);
            }
            for parts in Parts::ALL.into_iter().filter(|parts| parts.norm) {
                layer.normed_product_matches_the_textbook(parts);
            }
        }
    }
    refuses_what_does_not_fit(device);
}

/// Where the device promises bits, a layer has the same bits as the operations that it stands for, and so has a single
/// row.
///
/// # Panics
/// When a value has different bits.
pub fn feed_forward_is_its_parts<D: Gemm<Float = f32> + Norm + BiasAct>(device: &D) {
    // the wide layers take several groups of rows, one after another and side by side, the widest in blocks
    let sizes = [
        (29, 96, 384),
        (1, 65, 130),
        (2, 37, 101),
        (200, 64, 777),
        (90, 32, 3072),
        (400, 16, 3072),
        (150, 64, 4100),
    ];
    let everywhere = [Hidden::Activation(Activation::GeluErf), Hidden::Gate(Activation::Silu)]
        .map(|hidden| (hidden, &sizes[..]));
    // the activation does not change how rows are cut
    let once = [Activation::Relu, Activation::GeluTanh]
        .map(|activation| (Hidden::Activation(activation), &sizes[..1]));
    for (hidden, sizes) in everywhere.into_iter().chain(once) {
        for (dtype, &(rows, size, wide)) in
            DType::ALL.into_iter().flat_map(|dtype| sizes.iter().map(move |size| (dtype, size)))
        {
            let layer = Layer::new(device, dtype, hidden, rows, size, wide);
            for parts in Parts::ALL {
                layer.matches_its_parts(parts);
            }
        }
    }
}

/// The optional operands that are present.
#[derive(Clone, Copy, Debug)]
struct Parts {
    biases: bool,
    residual: bool,
    norm: bool,
}

impl Parts {
    const ALL: [Parts; 4] = [
        Parts { biases: true, residual: true, norm: true },
        Parts { biases: true, residual: false, norm: true },
        Parts { biases: false, residual: true, norm: false },
        Parts { biases: true, residual: false, norm: false },
    ];
}

const EPSILON: f32 = 1e-5;

/// A layer from `size` to `wide` values a row and back, on the host and on the device.
struct Layer<'d, D: Gemm> {
    device: &'d D,
    dtype: DType,
    hidden: Hidden,
    rows: usize,
    size: usize,
    wide: usize,
    /// x, up, up's bias, down, down's bias, residual, gain, offset.
    host: [Vec<f32>; 8],
    placed: [Floats<D>; 8],
    up: D::Weight,
    down: D::Weight,
}

impl<'d, D: Gemm> Layer<'d, D> {
    fn new(device: &'d D, dtype: DType, hidden: Hidden, rows: usize, size: usize, wide: usize) -> Self {
        let up_features = hidden.up_features(wide);
        let mut numbers = Numbers::<D::Float>::new(rows + size * 3 + wide * 7);
        let host = [rows * size, up_features * size, up_features, size * wide, size, rows * size, size, size]
            .map(|len| numbers.values(len));
        let mut rig = Rig::new(device);
        let placed = host.each_ref().map(|values| rig.put(values));
        let up = device.pack(&host[1], up_features, size, dtype).expect("the weight has its shape");
        let down = device.pack(&host[3], size, wide, dtype).expect("the weight has its shape");
        Layer { device, dtype, hidden, rows, size, wide, host, placed, up, down }
    }

    fn case(&self, parts: Parts) -> String {
        format!(
            "feed_forward {} {:?} {}x{}x{} {parts:?}",
            self.dtype, self.hidden, self.rows, self.size, self.wide
        )
    }

    fn norm(&self) -> NormWeights<FloatsOn<'_, D>> {
        NormWeights { gain: self.placed[6].view(), offset: Some(self.placed[7].view()), epsilon: EPSILON }
    }

    /// The device's result for rows `first..first + rows`.
    fn run(&self, parts: Parts, first: usize, rows: usize) -> Vec<f32> {
        let [x, _, up_bias, _, down_bias, residual, ..] = &self.placed;
        let (first, len) = (first * self.size, rows * self.size);
        Rig::new(self.device)
            .answer(len, |d, queue, out| {
                let layer = FeedForward {
                    up: &self.up,
                    up_bias: parts.biases.then(|| up_bias.view()),
                    hidden: self.hidden,
                    down: &self.down,
                    down_bias: parts.biases.then(|| down_bias.view()),
                    residual: parts.residual.then(|| residual.part(first, len)),
                    norm: parts.norm.then(|| self.norm()),
                };
                d.feed_forward(queue, x.part(first, len), layer, out)
            })
            .unwrap_or_else(|e| panic!("{}: {e}", self.case(parts)))
    }

    fn matches_the_textbook(&self, parts: Parts) {
        let (want, allowed) = self.second_half(parts, &self.first_half(parts));
        compare::<D::Float>(self.case(parts), &self.run(parts, 0, self.rows), &want, |i| allowed[i]);
    }

    /// The second product alone, with its norm.
    fn normed_product_matches_the_textbook(&self, parts: Parts) {
        let x = Numbers::<D::Float>::new(self.rows).values(self.rows * self.wide);
        let [_, _, _, _, down_bias, residual, ..] = &self.placed;
        let mut rig = Rig::new(self.device);
        let on_x = rig.put(&x);
        let out = rig
            .answer(self.rows * self.size, |d, queue, out| {
                let bias = parts.biases.then(|| down_bias.view());
                let residual = parts.residual.then(|| residual.view());
                d.gemm_norm(queue, on_x.view(), &self.down, bias, residual, self.norm(), out)
            })
            .unwrap_or_else(|e| panic!("gemm_norm, {}: {e}", self.case(parts)));
        let exact: Vec<(f64, f64)> = x.iter().map(|&x| (x.into(), 0.0)).collect();
        let (want, allowed) = self.second_half(parts, &exact);
        compare::<D::Float>(("gemm_norm", self.case(parts)), &out, &want, |i| allowed[i]);
    }

    /// The input of the second product, `[rows, wide]`, and the tolerance of each value. The first product may be
    /// stored with or without its bias, and so may the result of the activation or gate.
    fn first_half(&self, parts: Parts) -> Vec<(f64, f64)> {
        let [x, up, up_bias, ..] = &self.host;
        let wide = self.wide;
        let up_features = self.hidden.up_features(wide);
        let stored = |(value, error)| (value, error + of_storing::<D::Float>(value));
        let ups: Vec<(f64, f64)> = twin::linear(x, up, self.size)
            .iter()
            .enumerate()
            .map(|(i, p)| {
                let bias = if parts.biases { f64::from(up_bias[i % up_features]) } else { 0.0 };
                let (product, error) = stored((p.value, chain(self.size) * (p.magnitude + bias.abs())));
                stored((product + bias, error))
            })
            .collect();
        // no activation is steeper than 1.13
        let activated = |activation, (value, error): (f64, f64)| {
            (twin::activate(activation, value), 1.13 * error + 3e-7 * value.abs().max(1.0))
        };
        match self.hidden {
            Hidden::Activation(activation) => {
                ups.into_iter().map(|up| stored(activated(activation, up))).collect()
            }
            Hidden::Gate(activation) => ups
                .chunks_exact(up_features)
                .flat_map(|ups| ups[..wide].iter().zip(&ups[wide..]))
                .map(|(&left, &(right, right_error))| {
                    let (left, left_error) = activated(activation, left);
                    let error = left_error * right.abs() + right_error * left.abs();
                    stored((left * right, 2.0 * error + ROUNDING * (left * right).abs()))
                })
                .collect(),
        }
    }

    /// The result of the second product and the norm for `hidden`, `[rows, wide]`, and its tolerance. The product may
    /// be stored before bias and residual are added, in either order, and the sum before it is normalised.
    fn second_half(&self, parts: Parts, hidden: &[(f64, f64)]) -> (Vec<f64>, Vec<f64>) {
        let [_, _, _, down, down_bias, residual, gain, offset] = &self.host;
        let (size, wide) = (self.size, self.wide);
        let (mut want, mut allowed) = (Vec::new(), Vec::new());
        for (row, hidden) in hidden.chunks_exact(wide).enumerate() {
            let mut sums = Vec::new();
            let mut errors = Vec::new();
            for (column, down) in down.chunks_exact(wide).enumerate() {
                let residual = if parts.residual { f64::from(residual[row * size + column]) } else { 0.0 };
                let bias = if parts.biases { f64::from(down_bias[column]) } else { 0.0 };
                let (mut product, mut error) = (0.0, 0.0);
                let mut magnitude = bias.abs() + residual.abs();
                for (&(value, of_value), &weight) in hidden.iter().zip(down) {
                    let weight = f64::from(weight);
                    product += value * weight;
                    magnitude += (value * weight).abs();
                    error += of_value * weight.abs();
                }
                if parts.residual {
                    let in_between = (product + bias).abs().max((product + residual).abs());
                    error += of_storing::<D::Float>(product) + of_storing::<D::Float>(in_between);
                }
                sums.push(product + bias + residual);
                errors.push(error + chain(wide) * magnitude);
            }
            if parts.norm {
                let mean = sums.iter().sum::<f64>() / size as f64;
                let spread = (sums.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / size as f64
                    + f64::from(EPSILON))
                .sqrt();
                let stored =
                    sums.iter().zip(&errors).map(|(sum, error)| error + of_storing::<D::Float>(*sum));
                let error = stored.fold(0.0, f64::max);
                let most = sums.iter().map(|v| (v - mean).abs()).fold(0.0, f64::max);
                for (i, y) in twin::normalize(&sums, EPSILON.into()).into_iter().enumerate() {
                    let (gain, offset) = (f64::from(gain[i]), f64::from(offset[i]));
                    want.push(y * gain + offset);
                    // a value, the mean and the spread are each off by up to the greatest error; the norm itself is a
                    // chain
                    let relative = most / spread;
                    let of_norm = ROUNDING * (size + 8) as f64 * (relative + 1.0);
                    allowed.push(
                        gain.abs() * (2.0 * error / spread * (1.0 + relative) + of_norm)
                            + ROUNDING * offset.abs(),
                    );
                }
            } else {
                want.extend(sums);
                allowed.extend(errors);
            }
        }
        (want, allowed)
    }
}

/// The error of a sum of `len` products with bias and residual, relative to the sum of their magnitudes.
fn chain(len: usize) -> f64 {
    ROUNDING * (2 * len + 4) as f64
}

impl<D: Gemm<Float = f32> + Norm + BiasAct> Layer<'_, D> {
    fn matches_its_parts(&self, parts: Parts) {
        let whole = self.run(parts, 0, self.rows);
        for (first, rows) in [(0, 1), (self.rows - 1, 1), (self.rows / 2, 1), (self.rows / 3, self.rows / 2)]
        {
            let alone = self.run(parts, first, rows);
            assert_same(&self.case(parts), &alone, &whole[first * self.size..][..alone.len()]);
        }
        let [x, _, up_bias, _, down_bias, residual, ..] = &self.placed;
        let mut rig = Rig::new(self.device);
        let up_bias = parts.biases.then(|| up_bias.view());
        let up_len = self.rows * self.hidden.up_features(self.wide);
        let hidden = match self.hidden {
            Hidden::Activation(activation) => rig.answer(up_len, |d, queue, out| {
                let epilogue =
                    up_bias.map_or(Epilogue::Act(activation), |bias| Epilogue::BiasAct(bias, activation));
                d.gemm(queue, x.view(), &self.up, epilogue, out)
            }),
            Hidden::Gate(activation) => {
                let raw = rig.answer(up_len, |d, queue, out| {
                    let epilogue = up_bias.map_or(Epilogue::None, Epilogue::Bias);
                    d.gemm(queue, x.view(), &self.up, epilogue, out)
                });
                let raw = rig.put(&raw.expect("the shapes fit"));
                rig.answer(self.rows * self.wide, |d, queue, out| {
                    d.gate(queue, activation, raw.view(), self.wide, out)
                })
            }
        };
        let hidden = rig.put(&hidden.expect("the shapes fit"));
        let down_bias = || parts.biases.then(|| down_bias.view());
        let residual = || parts.residual.then(|| residual.view());
        let summed = rig.answer(self.rows * self.size, |d, queue, out| {
            d.gemm(queue, hidden.view(), &self.down, Epilogue::sum(down_bias(), residual()), out)
        });
        let mut want = summed.expect("the shapes fit");
        if parts.norm {
            let summed = rig.put(&want);
            let normed =
                rig.answer(want.len(), |d, queue, out| d.layer_norm(queue, summed.view(), self.norm(), out));
            want = normed.expect("the shapes fit");
            let fused = rig.answer(want.len(), |d, queue, out| {
                d.gemm_norm(queue, hidden.view(), &self.down, down_bias(), residual(), self.norm(), out)
            });
            assert_same("gemm_norm", &fused.expect("the shapes fit"), &want);
        }
        assert_same(&self.case(parts), &whole, &want);
    }
}

fn refuses_what_does_not_fit<D: Gemm>(device: &D) {
    let mut rig = Rig::new(device);
    let weight = |n: usize, k: usize| {
        device.pack(&vec![0.5; n * k], n, k, DType::F32).expect("the weight has its shape")
    };
    let (up, down, gated) = (weight(6, 4), weight(4, 6), weight(12, 4));
    let values = rig.put(&[1.0; 12]);
    let of = |len: usize| values.part(0, len);
    let act = Hidden::Activation(Activation::Relu);
    let gate = Hidden::Gate(Activation::Relu);
    let mut run = |x: usize, up, up_bias: usize, hidden, residual: usize, gain: usize, out: usize| {
        rig.answer(out, |d, queue, out| {
            let layer = FeedForward {
                up,
                up_bias: Some(of(up_bias)),
                hidden,
                down: &down,
                down_bias: None,
                residual: Some(of(residual)),
                norm: Some(NormWeights { gain: of(gain), offset: None, epsilon: EPSILON }),
            };
            d.feed_forward(queue, of(x), layer, out)
        })
    };
    run(8, &up, 6, act, 8, 4, 8).expect("everything fits");
    run(8, &gated, 12, gate, 8, 4, 8).expect("everything fits");
    refuses_length("feed_forward: x too short", run(4, &up, 6, act, 8, 4, 8));
    refuses_length("feed_forward: out is no multiple of a row", run(8, &up, 6, act, 8, 4, 7));
    refuses_length("feed_forward: bias too short", run(8, &up, 5, act, 8, 4, 8));
    refuses_length("feed_forward: residual too short", run(8, &up, 6, act, 7, 4, 8));
    refuses_length("feed_forward: gain too short", run(8, &up, 6, act, 8, 3, 8));
    refuses_size("feed_forward: a gate of half the width", run(8, &up, 6, gate, 8, 4, 8));
    refuses_size("feed_forward: twice the width without a gate", run(8, &gated, 12, act, 8, 4, 8));
}
