//! The shape rule of every operator: from the shapes of its inputs to that of its result.

use turbo_kernels::matmul::Rhs;

use crate::{
    GraphError,
    dim::{Dim, Shape},
    op::{HeadColumns, Heads, Op},
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
            inputs.lookup(0)
        }
        Op::MatMul => {
            inputs.count(2)?;
            inputs.product(0, 1)
        }
        Op::AddBias => {
            inputs.count(2)?;
            inputs.vector(1, inputs.columns(0)?)?;
            Ok(inputs.shapes[0].clone())
        }
        Op::Add => {
            inputs.count(2)?;
            inputs.same(1, 0)
        }
        Op::Scale { .. } | Op::Activate(_) => {
            inputs.count(1)?;
            Ok(inputs.shapes[0].clone())
        }
        Op::LayerNorm { .. } => {
            inputs.count(3)?;
            inputs.norm(0, 1)
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
        Op::Mask | Op::ScaleMaskSoftmax { .. } => {
            inputs.count(1)?;
            if inputs.heads(0)?.columns != Dim::PaddedLen {
                return Err(inputs.wrong(0, "[batch_size, num_heads, rows, padded_len]"));
            }
            Ok(inputs.shapes[0].clone())
        }
        Op::Pool(_) => {
            inputs.count(1)?;
            let hidden = inputs.per_token(0, "a row of hidden_size values per token")?;
            Ok(Shape(vec![Dim::BatchSize, Dim::Fixed(hidden)]))
        }
        Op::Linear { .. } => {
            inputs.count(3)?;
            let product = inputs.product(0, 1)?;
            inputs.vector(2, product.last_fixed().unwrap_or(0))?;
            Ok(product)
        }
        Op::BiasResidualLayerNorm { .. } => {
            inputs.count(5)?;
            inputs.vector(1, inputs.columns(0)?)?;
            inputs.same(2, 0)?;
            inputs.norm(0, 3)
        }
        Op::Attention { num_heads, head_dim, .. } => {
            inputs.count(1)?;
            let hidden = num_heads * head_dim;
            let expected = format!("a row of 3 × {num_heads} × {head_dim} values per token");
            if hidden == 0 || inputs.per_token(0, &expected)? != 3 * hidden {
                return Err(inputs.wrong(0, &expected));
            }
            Ok(with_columns(inputs.shapes[0], hidden))
        }
        Op::EmbedSumLayerNorm { lookups, .. } => {
            let gain = 2 * lookups;
            inputs.count(gain + 2)?;
            let rows = inputs.lookup(0)?;
            for table in (2..gain).step_by(2) {
                if inputs.lookup(table)? != rows {
                    return Err(inputs.wrong(table, &format!("a table of rows {rows}")));
                }
            }
            let hidden = rows.last_fixed().unwrap_or(0);
            inputs.vector(gain, hidden)?;
            inputs.vector(gain + 1, hidden)?;
            Ok(rows)
        }
    }
}

/// `shape` with another last axis.
fn with_columns(shape: &Shape, columns: usize) -> Shape {
    let mut dims = shape.0.clone();
    dims.pop();
    dims.push(Dim::Fixed(columns));
    Shape(dims)
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
    fn lookup(&self, table: usize) -> Result<Shape, GraphError> {
        let [Dim::Fixed(_), hidden @ Dim::Fixed(_)] = self.shapes[table].0[..] else {
            return Err(self.wrong(table, "[rows, hidden_size]"));
        };
        let mut dims = self.shapes[table + 1].0.clone();
        dims.push(hidden);
        Ok(Shape(dims))
    }

    fn product(&self, x: usize, weight: usize) -> Result<Shape, GraphError> {
        let columns = self.columns(x)?;
        match self.shapes[weight].0[..] {
            [Dim::Fixed(out), Dim::Fixed(k)] if k == columns => Ok(with_columns(self.shapes[x], out)),
            _ => Err(self.wrong(weight, &format!("[out, {columns}]"))),
        }
    }

    /// Rows at `x` with gain and offset at `weights` and after it.
    fn norm(&self, x: usize, weights: usize) -> Result<Shape, GraphError> {
        let columns = self.columns(x)?;
        self.vector(weights, columns)?;
        self.vector(weights + 1, columns)?;
        Ok(self.shapes[x].clone())
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
        if a.0[1] != b.0[1] || a.0[3] != inner {
            return Err(self.wrong(1, &format!("heads that fit {a}")));
        }
        match (out, a.0[1]) {
            (Heads::Within(_), Dim::Fixed(num_heads)) => merged(a.0[2], num_heads, columns)
                .ok_or_else(|| self.wrong(1, "heads of a fixed number of columns")),
            _ => Ok(Shape(vec![Dim::BatchSize, a.0[1], a.0[2], columns])),
        }
    }
}
