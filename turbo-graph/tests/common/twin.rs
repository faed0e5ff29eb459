//! The naive twin of an executor: a drawing evaluated operator by operator, one sequence at a time, in f64; and how far
//! from it an executor may be, which computes in f32.

use std::{cell::Cell, collections::BTreeMap};

use turbo_graph::{
    Activation, Graph, Input, Op, Pooling, PositionBuckets, Positions, Rhs, Routing, WeightSource,
    dim::Dim,
    graph::{Node, Storage},
    op::{DistanceBias, HeadColumns, RelativeBuckets},
};

use super::{NamedNoise, greatest};

/// One sequence of a batch.
pub(crate) struct Sequence<'a> {
    pub(crate) ids: &'a [u32],
    /// Types of its tokens; where there are none, 0.
    pub(crate) types: &'a [u32],
    pub(crate) selected: &'a [u32],
}

/// The most that 24 bits round off, relative to the value.
const F32_ROUNDING: f64 = 1.0 / (1 << 24) as f64;

/// The outputs of these names of each sequence, one after the other; and how far those of executors may be from them,
/// and from each other where passes or devices differ. The bound is a few times the change that appears when the twin's
/// operators are off by some roundings to f32. Some drawings grow large before their last norm, or cancel, and amplify
/// a rounding a thousand times more than others.
pub(crate) fn answers(graph: &Graph, names: &[&str], batch: &[Sequence<'_>]) -> (Vec<f32>, f32) {
    let exact = collect(names, batch, |sequence| evaluate(graph, sequence));
    let shaken =
        |seed| collect(names, batch, |sequence| evaluate_shaken(graph, sequence, 4.0 * F32_ROUNDING, seed));
    let allowed = 8.0 * greatest((0..4).map(|seed| distance(&exact, &shaken(seed))));
    assert!(allowed < 0.1, "whatever is computed of this drawing would be allowed: {allowed}");
    (exact, allowed)
}

/// The greatest difference, relative where a value exceeds 1.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    greatest(a.iter().zip(b).map(|(a, b)| (a - b).abs() / a.abs().max(1.0)))
}

fn collect(
    names: &[&str],
    batch: &[Sequence<'_>],
    evaluate: impl Fn(&Sequence<'_>) -> BTreeMap<String, Vec<f64>>,
) -> Vec<f32> {
    let mut values = Vec::new();
    for sequence in batch {
        let outputs = evaluate(sequence);
        let named = names.iter().filter_map(|name| outputs.get(*name));
        values.extend(named.flatten().map(|&value| value as f32));
    }
    values
}

/// Values of one sequence: `heads` matrices, one below the other.
#[derive(Clone)]
struct Tensor {
    heads: usize,
    rows: usize,
    columns: usize,
    values: Vec<f64>,
}

impl Tensor {
    fn rows(rows: usize, columns: usize, value: impl Fn(usize, usize) -> f64) -> Self {
        Self::heads(1, rows, columns, |_, row, column| value(row, column))
    }

    fn heads(heads: usize, rows: usize, columns: usize, value: impl Fn(usize, usize, usize) -> f64) -> Self {
        let mut values = Vec::with_capacity(heads * rows * columns);
        for head in 0..heads {
            for row in 0..rows {
                values.extend((0..columns).map(|column| value(head, row, column)));
            }
        }
        Tensor { heads, rows, columns, values }
    }

    fn at(&self, head: usize, row: usize, column: usize) -> f64 {
        self.values[(head * self.rows + row) * self.columns + column]
    }

    fn map(&self, value: impl Fn(f64) -> f64) -> Self {
        Tensor { values: self.values.iter().map(|&v| value(v)).collect(), ..*self }
    }

    fn zip(&self, other: &Tensor, value: impl Fn(f64, f64) -> f64) -> Self {
        let pairs = self.values.iter().zip(&other.values);
        Tensor { values: pairs.map(|(&a, &b)| value(a, b)).collect(), ..*self }
    }

    /// Every row by itself.
    fn map_rows(&self, value: impl Fn(usize, usize, &[f64]) -> Vec<f64>) -> Self {
        let rows = self.values.chunks(self.columns.max(1)).enumerate();
        let values: Vec<f64> =
            rows.flat_map(|(index, row)| value(index / self.rows, index % self.rows, row)).collect();
        let columns = values.len() / (self.heads * self.rows).max(1);
        Tensor { columns, values, ..*self }
    }
}

/// The outputs of a drawing for one sequence, by name.
fn evaluate(graph: &Graph, sequence: &Sequence<'_>) -> BTreeMap<String, Vec<f64>> {
    evaluate_with(graph, sequence, |result| result)
}

/// The same if every value of every operator is off by up to `relative` of itself, up or down at random from `seed`:
/// how far that moves the outputs shows how the drawing amplifies rounding.
fn evaluate_shaken(
    graph: &Graph,
    sequence: &Sequence<'_>,
    relative: f64,
    seed: u64,
) -> BTreeMap<String, Vec<f64>> {
    let state = Cell::new(seed);
    let noise = || {
        state
            .set(state.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        (state.get() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    };
    evaluate_with(graph, sequence, |result| result.map(|v| v * (1.0 + relative * noise())))
}

fn evaluate_with(
    graph: &Graph,
    sequence: &Sequence<'_>,
    round: impl Fn(Tensor) -> Tensor,
) -> BTreeMap<String, Vec<f64>> {
    let mut values = BTreeMap::new();
    for node in graph.nodes() {
        for &input in &node.inputs {
            if let Some(constant) = constant(graph, input, sequence) {
                values.insert(input, constant);
            }
        }
        let inputs: Vec<&Tensor> = node.inputs.iter().map(|input| &values[input]).collect();
        let result = compute(node, &inputs, sequence);
        values.insert(node.output, round(result));
    }
    graph.outputs().map(|(value, name)| (name.to_owned(), values[&value].values.clone())).collect()
}

/// Values that no node computes: weights, tables and ids.
fn constant(graph: &Graph, value: turbo_graph::ValueId, sequence: &Sequence<'_>) -> Option<Tensor> {
    let described = graph.value(value);
    let values: Vec<f64> = match &described.storage {
        Storage::Weight(parts) => {
            let named = NamedNoise.weight(&parts[0].name, &parts[0].shape).expect("noise has every weight");
            named.iter().map(|&v| f64::from(v)).collect()
        }
        Storage::Computed(table) => {
            table.values().expect("there is memory for a small table").into_iter().map(f64::from).collect()
        }
        Storage::Input(input) => {
            let ids = sequence.ids.iter().enumerate();
            let id = |(position, &id): (usize, &u32)| match input {
                Input::InputIds => f64::from(id),
                Input::TokenTypeIds => f64::from(sequence.types.get(position).copied().unwrap_or(0)),
                Input::PositionIds(Positions::FromZero) => position as f64,
                Input::PositionIds(Positions::AfterPad { pad_id }) => {
                    let tokens = sequence.ids[..=position].iter().filter(|&id| id != pad_id).count();
                    f64::from(*pad_id) + if id == *pad_id { 0.0 } else { tokens as f64 }
                }
            };
            ids.map(id).collect()
        }
        Storage::Activation | Storage::Output(_) => return None,
    };
    let columns = match described.shape.0.last() {
        Some(Dim::Fixed(columns)) => *columns,
        _ => 1,
    };
    Some(Tensor { heads: 1, rows: values.len() / columns, columns, values })
}

fn compute(node: &Node, inputs: &[&Tensor], sequence: &Sequence<'_>) -> Tensor {
    let x = inputs[0];
    let vector = |input: usize, column: usize| inputs[input].at(0, 0, column);
    match node.op {
        Op::Embed => Tensor::rows(inputs[1].rows, x.columns, |row, column| {
            x.at(0, inputs[1].at(0, row, 0) as usize, column)
        }),
        Op::MatMul => {
            let weight = inputs[1];
            Tensor::rows(x.rows, weight.rows, |row, column| {
                (0..x.columns).map(|k| x.at(0, row, k) * weight.at(0, column, k)).sum()
            })
        }
        Op::AddBias => {
            Tensor::rows(x.rows, x.columns, |row, column| x.at(0, row, column) + vector(1, column))
        }
        Op::Add => x.zip(inputs[1], |a, b| a + b),
        Op::Mul => x.zip(inputs[1], |a, b| a * b),
        Op::Scale { factor } => x.map(|v| v * f64::from(factor)),
        Op::Activate(activation) => x.map(|v| activate(activation, v)),
        Op::Gate(activation) => {
            let n = x.columns / 2;
            Tensor::rows(x.rows, n, |row, i| activate(activation, x.at(0, row, i)) * x.at(0, row, n + i))
        }
        Op::WeighExperts(Routing { num_experts, top_k }) => {
            let (logits, n) = (inputs[1], x.columns / num_experts);
            Tensor::rows(x.rows, x.columns, |row, column| {
                let logit = |expert: usize| logits.at(0, row, expert);
                let (own, all) = (logit(column / n), 0..num_experts);
                let before =
                    |&other: &usize| logit(other) > own || (logit(other) == own && other < column / n);
                if all.clone().filter(before).count() >= top_k {
                    return 0.0;
                }
                let sum: f64 = all.map(|expert| (logit(expert) - own).exp()).sum();
                x.at(0, row, column) / sum
            })
        }
        Op::LayerNorm { epsilon } => x.map_rows(|_, _, row| {
            let n = row.len() as f64;
            let mean = row.iter().sum::<f64>() / n;
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
            let root = (variance + f64::from(epsilon)).sqrt();
            let offset = |i: usize| inputs.get(2).map_or(0.0, |offset| offset.at(0, 0, i));
            row.iter().enumerate().map(|(i, v)| (v - mean) / root * vector(1, i) + offset(i)).collect()
        }),
        Op::RmsNorm { epsilon } => x.map_rows(|_, _, row| rms_norm(row, epsilon, |i| vector(1, i))),
        Op::HeadRmsNorm { heads, epsilon } => x.map_rows(|_, _, row| {
            let heads = columns_of(heads, row);
            heads
                .chunks(inputs[1].columns)
                .flat_map(|head| rms_norm(head, epsilon, |i| vector(1, i)))
                .collect()
        }),
        Op::Rotary(heads) => x.map_rows(|_, position, row| {
            let turned = |head: &[f64]| -> Vec<f64> {
                let half = head.len() / 2;
                let (cos, sin) = (|i| inputs[1].at(0, position, i), |i| inputs[1].at(0, position, half + i));
                let first = (0..half).map(|i| head[i] * cos(i) - head[half + i] * sin(i));
                let second = (0..half).map(|i| head[half + i] * cos(i) + head[i] * sin(i));
                first.chain(second).collect()
            };
            columns_of(heads, row).chunks(heads.head_dim).flat_map(turned).collect()
        }),
        Op::SplitHeads(heads) => {
            Tensor::heads(heads.num_heads, x.rows, heads.head_dim, |head, row, column| {
                x.at(0, row, heads.first + head * heads.head_dim + column)
            })
        }
        Op::MergeHeads => Tensor::rows(x.rows, x.heads * x.columns, |row, column| {
            x.at(column / x.columns, row, column % x.columns)
        }),
        Op::BatchedMatMul { rhs, .. } => {
            let b = inputs[1];
            let (columns, group) =
                (if rhs == Rhs::Transposed { b.rows } else { b.columns }, x.heads / b.heads);
            Tensor::heads(x.heads, x.rows, columns, |head, row, column| {
                let factor = |k| match rhs {
                    Rhs::Transposed => b.at(head / group, column, k),
                    Rhs::Normal => b.at(head / group, k, column),
                };
                (0..x.columns).map(|k| x.at(head, row, k) * factor(k)).sum()
            })
        }
        Op::PositionScores { heads, positions } => {
            let (table, count) = (inputs[1], positions.count());
            Tensor::rows(x.rows, heads.num_heads * count, |row, column| {
                let (head, position) = (column / count, column % count);
                let value = |k| {
                    let at = head * heads.head_dim + k;
                    x.at(0, row, heads.first + at) * table.at(0, position, at)
                };
                (0..heads.head_dim).map(value).sum()
            })
        }
        Op::AddRelativeBias(bias) => Tensor::heads(x.heads, x.rows, x.columns, |head, query, key| {
            let distance = key as isize - query as isize;
            let bias = match bias {
                DistanceBias::Buckets(RelativeBuckets { num_buckets, max_distance }) => {
                    inputs[1].at(0, bucket(distance, num_buckets, max_distance), head)
                }
                DistanceBias::Alibi => -slopes(x.heads)[head] * distance.unsigned_abs() as f64,
                DistanceBias::Disentangled(positions) => {
                    let column = head * positions.count() + position(distance, positions);
                    inputs[1].at(0, query, column) + inputs[2].at(0, key, column)
                }
            };
            x.at(head, query, key) + bias
        }),
        Op::Mask(mask) => Tensor::heads(x.heads, x.rows, x.columns, |head, query, key| {
            let seen = mask.visible(query, x.columns).contains(&key);
            if seen { x.at(head, query, key) } else { f64::NEG_INFINITY }
        }),
        Op::Softmax => x.map_rows(|_, _, row| {
            let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let exponentials: Vec<f64> = row.iter().map(|v| (v - most).exp()).collect();
            let sum: f64 = exponentials.iter().sum();
            exponentials.iter().map(|v| v / sum).collect()
        }),
        Op::Pool(pooling) => Tensor::rows(1, x.columns, |_, column| {
            let values: Vec<f64> = (0..x.rows).map(|row| x.at(0, row, column)).collect();
            pool(pooling, &values)
        }),
        Op::Select => Tensor::rows(sequence.selected.len(), x.columns, |row, column| {
            x.at(0, sequence.selected[row] as usize, column)
        }),
        op => unreachable!("{} is not drawn", op.name()),
    }
}

/// The bucket of a distance, as in T5: half of the buckets are for keys behind the query; within each half, one half of
/// the buckets hold a distance each, and the others equal steps of the logarithm. The tiny amount added puts whole
/// steps where they belong.
fn bucket(distance: isize, num_buckets: usize, max_distance: usize) -> usize {
    let (half, quarter) = (num_buckets / 2, num_buckets / 4);
    let first = if distance > 0 { half } else { 0 };
    let distance = distance.unsigned_abs();
    if distance < quarter {
        return first + distance;
    }
    let [of_distance, of_most] = [distance, max_distance].map(|d| (d as f64 / quarter as f64).ln());
    let steps = (of_distance / of_most * (half - quarter) as f64 + 1e-6) as usize;
    first + half.min(quarter + steps + 1) - 1
}

/// The position of a distance, as in DeBERTa: keys before the query lie above the middle; from half of the span on,
/// positions are steps of the logarithm, rounded up. The tiny amount taken off leaves whole steps where they are.
fn position(distance: isize, PositionBuckets { span, max_distance }: PositionBuckets) -> usize {
    let (half, far) = ((span / 2) as f64, distance.unsigned_abs() as f64);
    let steps = match max_distance {
        Some(most) if far > half => {
            half + ((far / half).ln() / ((most as f64 - 1.0) / half).ln() * (half - 1.0) - 1e-6).ceil()
        }
        _ => far,
    };
    let from_middle = -steps * distance.signum() as f64;
    (span as f64 + from_middle).clamp(0.0, 2.0 * span as f64 - 1.0) as usize
}

/// The slopes of linear biases, as their authors compute them: powers of two in equal steps down to 2⁻⁸; where the number of
/// heads is no power of two, those of the power below, and then every other one of twice as many.
fn slopes(num_heads: usize) -> Vec<f64> {
    if num_heads.is_power_of_two() {
        return (1..=num_heads).map(|head| (-8.0 * head as f64 / num_heads as f64).exp2()).collect();
    }
    let below = num_heads.next_power_of_two() / 2;
    let between = slopes(2 * below).into_iter().step_by(2);
    slopes(below).into_iter().chain(between).take(num_heads).collect()
}

fn columns_of(heads: HeadColumns, row: &[f64]) -> &[f64] {
    &row[heads.first..heads.end()]
}

fn rms_norm(row: &[f64], epsilon: f32, gain: impl Fn(usize) -> f64) -> Vec<f64> {
    let mean_square = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
    let root = (mean_square + f64::from(epsilon)).sqrt();
    row.iter().enumerate().map(|(i, v)| v / root * gain(i)).collect()
}

fn pool(pooling: Pooling, values: &[f64]) -> f64 {
    let (sum, n) = (values.iter().sum::<f64>(), values.len() as f64);
    match pooling {
        Pooling::Cls => values[0],
        Pooling::LastToken => values[values.len() - 1],
        Pooling::Mean => sum / n,
        Pooling::MeanSqrtLen => sum / n.sqrt(),
        Pooling::Max => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        Pooling::WeightedMean => {
            let weighted: f64 = values.iter().zip(1..).map(|(v, weight)| v * f64::from(weight)).sum();
            weighted / (n * (n + 1.0) / 2.0)
        }
    }
}

fn activate(activation: Activation, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match activation {
        Activation::GeluErf => x / 2.0 * (1.0 + erf(x / 2.0_f64.sqrt())),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x / 2.0 * (1.0 + inner.tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::Silu => x * sigmoid(x),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => sigmoid(x),
        Activation::Log1pRelu => x.max(0.0).ln_1p(),
    }
}

/// `2/√π · e^(−x²) · Σ 2ⁿ x^(2n+1) / (2n+1)!!`, all terms of one sign.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut sum, mut term) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
}
