//! The shape rule of every operator: from the shapes of its inputs to that of its result.

use turbo_kernels::{AttentionMask, Hidden, PositionBuckets, Queries, Routing, matmul::Rhs};

use crate::{
    GraphError,
    dim::{Dim, Shape},
    op::{AddendPlaces, Addends, DistanceBias, FeedForwardParts, HeadColumns, Heads, Op, RelativeBuckets},
};

/// The shape of `op`'s result.
///
/// # Errors
/// [`GraphError::Arity`], [`GraphError::Shape`] with the input that does not fit.
pub(crate) fn infer(op: &Op, inputs: &[&Shape]) -> Result<Shape, GraphError> {
    let inputs = Inputs { op: op.name(), shapes: inputs };
    match op {
        Op::Embed => {
            inputs.count(2)?;
            Ok(inputs.lookup(0)?.shape)
        }
        Op::MatMul => {
            inputs.count(2)?;
            Ok(inputs.product(0, 1)?.shape)
        }
        Op::AddBias => {
            inputs.count(2)?;
            inputs.vector(1, inputs.columns(0)?)?;
            Ok(inputs.shapes[0].clone())
        }
        Op::Add | Op::Mul => {
            inputs.count(2)?;
            inputs.same(1, 0)
        }
        Op::Scale { .. } | Op::Activate(_) => {
            inputs.count(1)?;
            Ok(inputs.shapes[0].clone())
        }
        Op::Gate(_) => {
            inputs.count(1)?;
            match inputs.columns(0)? {
                columns if columns.is_multiple_of(2) => Ok(inputs.shapes[0].with_columns(columns / 2)),
                _ => Err(inputs.wrong(0, "rows of two halves")),
            }
        }
        Op::WeighExperts(routing) => {
            inputs.count(2)?;
            if !divides(*routing, inputs.columns(0)?) {
                return Err(inputs.wrong(0, &format!("rows of {} experts", routing.num_experts)));
            }
            inputs.logits(1, *routing)?;
            Ok(inputs.shapes[0].clone())
        }
        Op::LayerNorm { .. } => {
            inputs.count_with_optional(2)?;
            inputs.norm(0, 1)
        }
        Op::RmsNorm { .. } => {
            inputs.count(2)?;
            inputs.norm(0, 1)
        }
        Op::HeadRmsNorm { heads, .. } => {
            inputs.count(2)?;
            inputs.vector(1, heads.head_dim)?;
            inputs.columns_of_heads(0, *heads)
        }
        Op::Rotary(heads) => {
            inputs.count(2)?;
            inputs.rotary_table(1, heads.head_dim)?;
            inputs.columns_of_heads(0, *heads)
        }
        Op::PositionScores { heads, positions } => {
            inputs.count(2)?;
            inputs.position_scores(*heads, *positions)
        }
        Op::SplitHeads(columns) => {
            inputs.count(1)?;
            inputs.heads_of(0, Heads::Within(*columns))
        }
        Op::MergeHeads => {
            inputs.count(1)?;
            let HeadTensor { num_heads, rows, columns } = inputs.heads(0)?;
            merged(rows, num_heads, columns)
                .ok_or_else(|| inputs.wrong(0, "[batch_size, num_heads, rows, head_dim]"))
        }
        Op::BatchedMatMul { rhs, a, b, out } => {
            inputs.count(2)?;
            inputs.batched_product(*rhs, *a, *b, *out)
        }
        Op::Softmax => {
            inputs.count(1)?;
            inputs.heads(0)?;
            Ok(inputs.shapes[0].clone())
        }
        Op::AddRelativeBias(bias) => {
            inputs.count(1 + bias.inputs())?;
            inputs.scores(AttentionMask::Full, Some((1, *bias)))
        }
        Op::Mask(mask) => {
            inputs.count(1)?;
            inputs.scores(*mask, None)
        }
        Op::ScaleMaskSoftmax { mask, bias, .. } => {
            inputs.count(1 + bias.map_or(0, |bias| bias.inputs()))?;
            inputs.scores(*mask, bias.map(|bias| (1, bias)))
        }
        Op::Pool(_) => {
            inputs.count(1)?;
            let hidden = inputs.per_token(0, "a row of hidden_size values per token")?;
            Ok(Shape(vec![Dim::BatchSize, Dim::Fixed(hidden)]))
        }
        Op::Select => {
            inputs.count(1)?;
            let hidden = inputs.per_token(0, "a row of hidden_size values per token")?;
            Ok(Shape(vec![Dim::SelectedRows, Dim::Fixed(hidden)]))
        }
        Op::Linear { .. } => {
            inputs.count_with_optional(2)?;
            Ok(inputs.biased_product(2)?.shape)
        }
        Op::ResidualLinear { bias } => {
            let places = Addends { bias: *bias, residual: true }.places(2);
            inputs.count(places.next)?;
            let rows = inputs.product(0, 1)?;
            inputs.addends(places, &rows)?;
            Ok(rows.shape)
        }
        Op::LinearLayerNorm { adds, .. } => {
            let places = adds.places(2);
            inputs.count_with_optional(places.next + 1)?;
            let rows = inputs.product(0, 1)?;
            inputs.addends(places, &rows)?;
            inputs.norm_of(rows, places.next)
        }
        Op::FeedForward(parts) => inputs.feed_forward(parts),
        Op::Experts { routing, .. } => {
            inputs.count(4)?;
            inputs.logits(1, *routing)?;
            let wide = inputs.product(0, 2)?;
            if !divides(*routing, wide.columns) {
                return Err(inputs.wrong(2, &format!("matrices of {} experts", routing.num_experts)));
            }
            Ok(inputs.product_of(&wide, 3)?.shape)
        }
        Op::LinearMaxPool => {
            inputs.count_with_optional(2)?;
            inputs.per_token(0, "a row of values per token")?;
            let product = inputs.biased_product(2)?;
            Ok(Shape(vec![Dim::BatchSize, Dim::Fixed(product.columns)]))
        }
        Op::ResidualLayerNorm { .. } => {
            inputs.count_with_optional(3)?;
            inputs.same(1, 0)?;
            inputs.norm(0, 2)
        }
        Op::BiasResidualLayerNorm { .. } => {
            inputs.count_with_optional(4)?;
            inputs.vector(1, inputs.columns(0)?)?;
            inputs.same(2, 0)?;
            inputs.norm(0, 3)
        }
        Op::Attention { queries, q, k, v, bias, .. } => {
            inputs.count(3 + bias.map_or(0, |bias| bias.inputs()))?;
            let contexts = inputs.attention(*q, *k, *v)?;
            let rows = inputs.queries(*queries, *q, &contexts)?;
            bias.map_or(Ok(()), |bias| inputs.bias_inputs(3, bias, q.num_heads, [&rows, &contexts]))?;
            Ok(rows)
        }
        Op::EmbedSumLayerNorm { lookups, .. } => {
            let gain = 2 * lookups;
            inputs.count_with_optional(gain + 1)?;
            let rows = inputs.lookup(0)?;
            for table in (2..gain).step_by(2) {
                if inputs.lookup(table)? != rows {
                    return Err(inputs.wrong(table, &format!("a table of rows {}", rows.shape)));
                }
            }
            inputs.norm_of(rows, gain)
        }
    }
}

/// Rows whose number of columns is known.
#[derive(PartialEq)]
struct Rows {
    shape: Shape,
    columns: usize,
}

impl Rows {
    fn with_columns(&self, columns: usize) -> Rows {
        Rows { shape: self.shape.with_columns(columns), columns }
    }
}

/// Whether `columns` can be divided equally among the experts.
fn divides(routing: Routing, columns: usize) -> bool {
    routing.num_experts > 0 && columns.is_multiple_of(routing.num_experts)
}

/// Heads side by side, where their width is known.
fn merged(rows: Dim, num_heads: usize, columns: Dim) -> Option<Shape> {
    let Dim::Fixed(head_dim) = columns else { return None };
    Some(Shape(vec![Dim::BatchSize, rows, Dim::Fixed(num_heads * head_dim)]))
}

/// A tensor of heads: `[batch_size, num_heads, rows, columns]`.
struct HeadTensor {
    num_heads: usize,
    rows: Dim,
    columns: Dim,
}

struct Inputs<'a> {
    op: &'static str,
    shapes: &'a [&'a Shape],
}

impl Inputs<'_> {
    fn count(&self, expected: usize) -> Result<(), GraphError> {
        if self.shapes.len() == expected {
            return Ok(());
        }
        Err(GraphError::Arity { op: self.op, expected: expected.to_string(), got: self.shapes.len() })
    }

    /// `least` inputs, or one more.
    fn count_with_optional(&self, least: usize) -> Result<(), GraphError> {
        if (least..=least + 1).contains(&self.shapes.len()) {
            return Ok(());
        }
        let expected = format!("{least} or {}", least + 1);
        Err(GraphError::Arity { op: self.op, expected, got: self.shapes.len() })
    }

    fn wrong(&self, input: usize, expected: &str) -> GraphError {
        let (expected, got) = (expected.to_owned(), self.shapes[input].clone());
        GraphError::Shape { op: self.op, input, expected, got }
    }

    fn columns(&self, input: usize) -> Result<usize, GraphError> {
        self.shapes[input].last_fixed().ok_or_else(|| self.wrong(input, "rows of a fixed number of columns"))
    }

    /// The columns of a tensor that has a row per token.
    fn per_token(&self, input: usize, expected: &str) -> Result<usize, GraphError> {
        match self.shapes[input].0[..] {
            [Dim::BatchSize, Dim::PaddedLen, Dim::Fixed(columns)]
            | [Dim::TotalTokens, Dim::Fixed(columns)] => Ok(columns),
            _ => Err(self.wrong(input, expected)),
        }
    }

    fn vector(&self, input: usize, len: usize) -> Result<(), GraphError> {
        let expected = Shape::fixed(&[len]);
        if *self.shapes[input] == expected { Ok(()) } else { Err(self.wrong(input, &expected.to_string())) }
    }

    fn same(&self, input: usize, other: usize) -> Result<Shape, GraphError> {
        if self.shapes[input] == self.shapes[other] {
            return Ok(self.shapes[input].clone());
        }
        Err(self.wrong(input, &self.shapes[other].to_string()))
    }

    /// Rows of the table at `table`, one for each id of the input after it.
    fn lookup(&self, table: usize) -> Result<Rows, GraphError> {
        let [Dim::Fixed(_), Dim::Fixed(columns)] = self.shapes[table].0[..] else {
            return Err(self.wrong(table, "[rows, hidden_size]"));
        };
        let mut dims = self.shapes[table + 1].0.clone();
        dims.push(Dim::Fixed(columns));
        Ok(Rows { shape: Shape(dims), columns })
    }

    /// The rows at `input`.
    fn rows(&self, input: usize) -> Result<Rows, GraphError> {
        Ok(Rows { columns: self.columns(input)?, shape: self.shapes[input].clone() })
    }

    fn product(&self, x: usize, weight: usize) -> Result<Rows, GraphError> {
        self.product_of(&self.rows(x)?, weight)
    }

    fn product_of(&self, rows: &Rows, weight: usize) -> Result<Rows, GraphError> {
        match self.shapes[weight].0[..] {
            [Dim::Fixed(out), Dim::Fixed(k)] if k == rows.columns => Ok(rows.with_columns(out)),
            _ => Err(self.wrong(weight, &format!("[out, {}]", rows.columns))),
        }
    }

    /// The product of the first two inputs, and the bias at `bias` if it is given.
    fn biased_product(&self, bias: usize) -> Result<Rows, GraphError> {
        let product = self.product(0, 1)?;
        if bias < self.shapes.len() {
            self.vector(bias, product.columns)?;
        }
        Ok(product)
    }

    /// The bias and residual of rows that a product gives.
    fn addends(&self, places: AddendPlaces, rows: &Rows) -> Result<(), GraphError> {
        places.bias.map_or(Ok(()), |bias| self.vector(bias, rows.columns))?;
        match places.residual.filter(|&residual| *self.shapes[residual] != rows.shape) {
            Some(residual) => Err(self.wrong(residual, &rows.shape.to_string())),
            None => Ok(()),
        }
    }

    /// A value per expert for each row at the first input.
    fn logits(&self, input: usize, routing: Routing) -> Result<(), GraphError> {
        let expected = self.shapes[0].with_columns(routing.num_experts);
        if *self.shapes[input] == expected { Ok(()) } else { Err(self.wrong(input, &expected.to_string())) }
    }

    fn feed_forward(&self, parts: &FeedForwardParts) -> Result<Shape, GraphError> {
        let places = parts.places();
        match parts.norm {
            Some(_) => self.count_with_optional(places.next + 1)?,
            None => self.count(places.next)?,
        }
        let up = self.product(0, 1)?;
        parts.up_bias().map_or(Ok(()), |bias| self.vector(bias, up.columns))?;
        let hidden = match parts.hidden {
            Hidden::Activation(_) => up.columns,
            Hidden::Gate(_) if up.columns.is_multiple_of(2) => up.columns / 2,
            Hidden::Gate(_) => return Err(self.wrong(1, "an even number of rows")),
        };
        let rows = self.product_of(&up.with_columns(hidden), 2)?;
        self.addends(places, &rows)?;
        match parts.norm {
            Some(_) => self.norm_of(rows, places.next),
            None => Ok(rows.shape),
        }
    }

    /// Rows at `x` with the weights of a norm from `weights` on.
    fn norm(&self, x: usize, weights: usize) -> Result<Shape, GraphError> {
        self.norm_of(self.rows(x)?, weights)
    }

    /// Rows with the weights of a norm from `weights` on: gain and, if it is given, offset, the last inputs.
    fn norm_of(&self, rows: Rows, weights: usize) -> Result<Shape, GraphError> {
        (weights..self.shapes.len()).try_for_each(|input| self.vector(input, rows.columns))?;
        Ok(rows.shape)
    }

    /// From a row per token that holds these heads to a row of their columns alone.
    fn columns_of_heads(&self, input: usize, heads: HeadColumns) -> Result<Shape, GraphError> {
        let expected = format!("a row per token that holds heads {heads}");
        let width = self.per_token(input, &expected)?;
        if heads.width() == 0 || heads.end() > width {
            return Err(self.wrong(input, &expected));
        }
        Ok(self.shapes[input].with_columns(heads.width()))
    }

    /// Rows of heads at the first input, and at the second a row of them for each position.
    fn position_scores(&self, heads: HeadColumns, positions: PositionBuckets) -> Result<Shape, GraphError> {
        let rows = match *self.shapes[0].0 {
            // only of the tokens that are read
            [Dim::BatchSize | Dim::SelectedRows, Dim::Fixed(width)]
                if heads.width() > 0 && heads.end() <= width =>
            {
                self.shapes[0].clone()
            }
            _ => self.columns_of_heads(0, heads)?,
        };
        positions.check(self.op)?;
        let table = Shape::fixed(&[positions.count(), heads.width()]);
        if *self.shapes[1] != table {
            return Err(self.wrong(1, &table.to_string()));
        }
        Ok(rows.with_columns(heads.num_heads.saturating_mul(positions.count())))
    }

    fn rotary_table(&self, input: usize, head_dim: usize) -> Result<(), GraphError> {
        match self.shapes[input].0[..] {
            [Dim::Fixed(_), Dim::Fixed(columns)] if columns == head_dim && columns.is_multiple_of(2) => {
                Ok(())
            }
            _ => Err(self.wrong(input, &format!("[positions, {head_dim}], an even number of columns"))),
        }
    }

    /// Scores at the first input. A mask or bias that depends on the position of a query needs a row per token.
    fn scores(&self, mask: AttentionMask, bias: Option<(usize, DistanceBias)>) -> Result<Shape, GraphError> {
        let HeadTensor { num_heads, rows, columns } = self.heads(0)?;
        let places = mask != AttentionMask::Full || bias.is_some();
        match (rows, columns) {
            (Dim::PaddedLen, Dim::PaddedLen) => {}
            (_, Dim::PaddedLen) if !places => {}
            _ if places => return Err(self.wrong(0, "[batch_size, num_heads, padded_len, padded_len]")),
            _ => return Err(self.wrong(0, "[batch_size, num_heads, rows, padded_len]")),
        }
        if let Some((input, bias)) = bias {
            let rows = Shape::per_token(&[0]);
            self.bias_inputs(input, bias, num_heads, [&rows; 2])?;
        }
        Ok(self.shapes[0].clone())
    }

    /// The inputs of a bias, from `input` on; `rows` have the rows of queries and of keys.
    fn bias_inputs(
        &self,
        input: usize,
        bias: DistanceBias,
        num_heads: usize,
        rows: [&Shape; 2],
    ) -> Result<(), GraphError> {
        match bias {
            DistanceBias::Alibi => Ok(()),
            DistanceBias::Buckets(buckets) => self.bias_table(input, buckets, num_heads),
            DistanceBias::Disentangled(positions) => {
                let width = num_heads.saturating_mul(positions.count());
                (input..).zip(rows).try_for_each(|(input, rows)| {
                    let expected = rows.with_columns(width);
                    if *self.shapes[input] == expected {
                        return Ok(());
                    }
                    Err(self
                        .wrong(input, &format!("scores with {} positions, {expected}", positions.count())))
                })
            }
        }
    }

    fn bias_table(
        &self,
        input: usize,
        RelativeBuckets { num_buckets, max_distance }: RelativeBuckets,
        num_heads: usize,
    ) -> Result<(), GraphError> {
        let expected = Shape::fixed(&[num_buckets, num_heads]);
        if *self.shapes[input] != expected {
            return Err(self.wrong(input, &expected.to_string()));
        }
        // half of the buckets of each side hold one distance each, and the others all greater distances
        if num_buckets < 4 || max_distance <= num_buckets / 4 {
            let expected = format!("at least 4 buckets, a quarter of them below distance {max_distance}");
            return Err(self.wrong(input, &expected));
        }
        Ok(())
    }

    /// Contexts of queries, keys and values at the first three inputs.
    fn attention(&self, q: HeadColumns, k: HeadColumns, v: HeadColumns) -> Result<Shape, GraphError> {
        let keys = self.columns_of_heads(1, k)?;
        for (input, heads) in [(1, k), (2, v)] {
            let own = self.columns_of_heads(input, heads)?;
            let fits = heads.head_dim == q.head_dim
                && heads.num_heads == k.num_heads
                && q.num_heads.is_multiple_of(heads.num_heads);
            if !fits || own != keys {
                return Err(self.wrong(input, &format!("rows of heads that fit the queries' {q}")));
            }
        }
        Ok(keys.with_columns(q.width()))
    }

    /// The contexts of the tokens that have queries, given the `contexts` of all; the queries have as many rows.
    fn queries(&self, queries: Queries, q: HeadColumns, contexts: &Shape) -> Result<Shape, GraphError> {
        let (rows, expected) = match queries {
            Queries::All => (contexts.clone(), format!("a row per token that holds heads {q}")),
            Queries::First | Queries::Last => {
                let rows = Shape(vec![Dim::BatchSize, Dim::Fixed(q.width())]);
                (rows, format!("a row per sequence that holds heads {q}"))
            }
        };
        let fits = |width| q.end() <= width && *self.shapes[0] == rows.with_columns(width);
        if q.width() > 0 && self.shapes[0].last_fixed().is_some_and(fits) {
            Ok(rows)
        } else {
            Err(self.wrong(0, &expected))
        }
    }

    fn heads(&self, input: usize) -> Result<HeadTensor, GraphError> {
        match self.shapes[input].0[..] {
            [Dim::BatchSize, Dim::Fixed(num_heads), rows, columns] => {
                Ok(HeadTensor { num_heads, rows, columns })
            }
            _ => Err(self.wrong(input, "[batch_size, num_heads, rows, columns]")),
        }
    }

    /// The shape that an operand has once its heads are apart.
    fn heads_of(&self, input: usize, heads: Heads) -> Result<Shape, GraphError> {
        let Heads::Within(columns) = heads else {
            self.heads(input)?;
            return Ok(self.shapes[input].clone());
        };
        let fits = |width: usize| columns.head_dim > 0 && columns.num_heads > 0 && columns.end() <= width;
        match self.shapes[input].0[..] {
            [Dim::BatchSize, rows @ Dim::PaddedLen, Dim::Fixed(width)] if fits(width) => {
                let HeadColumns { num_heads, head_dim, .. } = columns;
                Ok(Shape(vec![Dim::BatchSize, Dim::Fixed(num_heads), rows, Dim::Fixed(head_dim)]))
            }
            _ => {
                Err(self
                    .wrong(input, &format!("[batch_size, padded_len, columns] that hold heads {columns}")))
            }
        }
    }

    fn batched_product(&self, rhs: Rhs, a: Heads, b: Heads, out: Heads) -> Result<Shape, GraphError> {
        let (a, b) = (self.heads_of(0, a)?, self.heads_of(1, b)?);
        let (columns, inner) = if rhs == Rhs::Transposed { (b.0[2], b.0[3]) } else { (b.0[3], b.0[2]) };
        let grouped = match (a.0[1], b.0[1]) {
            (Dim::Fixed(queries), Dim::Fixed(keys)) => keys > 0 && queries.is_multiple_of(keys),
            _ => false,
        };
        if !grouped || a.0[3] != inner {
            return Err(self.wrong(1, &format!("heads that fit {a}")));
        }
        match (out, a.0[1]) {
            (Heads::Within(_), Dim::Fixed(num_heads)) => merged(a.0[2], num_heads, columns)
                .ok_or_else(|| self.wrong(1, "heads of a fixed number of columns")),
            _ => Ok(Shape(vec![Dim::BatchSize, a.0[1], a.0[2], columns])),
        }
    }
}
