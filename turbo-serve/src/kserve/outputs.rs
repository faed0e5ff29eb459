//! From rows to a model's output tensors.

use turbo_models::tasks::{LabelScore, classify, rank};

use super::{OutputTensor, Parameter, Values};
use crate::{
    engine::{ModelInfo, Row, Rows, ScoreFunction, Task},
    http::{ApiError, score_function},
};

/// Most values of one tensor: 256 MiB. Rows of different lengths are padded to the longest, so a small answer may
/// become a large tensor.
pub(super) const MOST_VALUES: usize = 64 << 20;

/// An output that a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    /// The protocol's extension "classification": this many of the largest values, as `value:index:label`. `None`, also
    /// for 0 classes, gives the numbers themselves.
    pub(crate) classes: Option<usize>,
}

/// The parameter of an output that asks for classes.
pub(crate) const CLASSIFICATION: &str = "classification";

impl Wanted {
    /// An output, with the value of its parameter [`CLASSIFICATION`].
    pub(crate) fn new(name: String, classes: Option<&Parameter>) -> Result<Self, ApiError> {
        let count = |classes: &Parameter| {
            classes.count().ok_or_else(|| {
                let expected = "expected a number that is not negative";
                ApiError::validation(format!("output `{name}`: `{CLASSIFICATION}` is {classes}, {expected}"))
            })
        };
        let classes = classes.map(count).transpose()?.filter(|&classes| classes > 0);
        Ok(Self { classes, name })
    }
}

/// A tensor that a model can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tensor {
    /// The pooled rows of embeddings.
    SentenceEmbedding,
    TokenEmbeddings,
    /// Which rows of the other tensors are tokens, and which are padding.
    AttentionMask,
    /// The pooled rows of classifiers.
    Logits,
    /// The pooled rows of classifiers, as probabilities.
    Scores,
    TokenLogits,
    StartLogits,
    EndLogits,
    /// Rows of mask tokens.
    MaskLogits,
}

impl Tensor {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::SentenceEmbedding => "sentence_embedding",
            Self::TokenEmbeddings => "token_embeddings",
            Self::AttentionMask => "attention_mask",
            Self::Logits | Self::TokenLogits | Self::MaskLogits => "logits",
            Self::Scores => "scores",
            Self::StartLogits => "start_logits",
            Self::EndLogits => "end_logits",
        }
    }

    /// The rows that it is made of.
    pub(super) fn rows(self, task: Task) -> Rows {
        match self {
            Self::SentenceEmbedding | Self::Logits | Self::Scores => Rows::Pooled,
            Self::TokenEmbeddings | Self::TokenLogits | Self::StartLogits | Self::EndLogits => Rows::Tokens,
            Self::MaskLogits => Rows::Selected,
            // Rows of any kind know how many tokens there are.
            Self::AttentionMask => match task {
                Task::Embedding { .. } => Rows::Pooled,
                _ => Rows::Tokens,
            },
        }
    }

    /// The labels of its values. An embedding has none: labels in its model's folder are of a head that the model does
    /// not have.
    fn labels(self, model: &ModelInfo) -> &[String] {
        match self {
            Self::Logits | Self::Scores => &model.labels,
            _ => &[],
        }
    }

    /// Its shape; -1 for a size that depends on the request.
    pub(super) fn shape(self, model: &ModelInfo) -> Vec<i64> {
        let width = |width: Option<usize>| width.and_then(|width| i64::try_from(width).ok()).unwrap_or(-1);
        let rows = &model.rows;
        match self {
            Self::SentenceEmbedding | Self::Logits | Self::Scores => vec![-1, width(rows.pooled)],
            Self::TokenEmbeddings | Self::TokenLogits => vec![-1, -1, width(rows.tokens)],
            Self::MaskLogits => vec![-1, -1, width(rows.selected)],
            Self::AttentionMask | Self::StartLogits | Self::EndLogits => vec![-1, -1],
        }
    }
}

/// The tensors that a model gives if none is asked for by name, and the others that it has.
pub(super) fn given(task: Task) -> (&'static [Tensor], &'static [Tensor]) {
    match task {
        Task::Embedding { .. } => {
            (&[Tensor::SentenceEmbedding], &[Tensor::TokenEmbeddings, Tensor::AttentionMask])
        }
        Task::SparseEmbedding => (&[Tensor::SentenceEmbedding], &[]),
        Task::SequenceClassification => (&[Tensor::Logits, Tensor::Scores], &[]),
        Task::TokenClassification => (&[Tensor::TokenLogits, Tensor::AttentionMask], &[]),
        Task::QuestionAnswering => (&[Tensor::StartLogits, Tensor::EndLogits, Tensor::AttentionMask], &[]),
        Task::MaskedLm => (&[Tensor::MaskLogits], &[]),
    }
}

/// The tensors that a request wants, in its order.
pub(super) fn wanted(task: Task, asked: &[Wanted]) -> Result<Vec<(Tensor, Option<usize>)>, ApiError> {
    let (usual, others) = given(task);
    if asked.is_empty() {
        return Ok(usual.iter().map(|&tensor| (tensor, None)).collect());
    }
    let all = || usual.iter().chain(others);
    let mut found: Vec<(Tensor, Option<usize>)> = Vec::new();
    for Wanted { name, classes } in asked {
        let Some(&tensor) = all().find(|tensor| tensor.name() == name) else {
            let known = all().map(|tensor| tensor.name()).collect::<Vec<_>>().join("`, `");
            return Err(ApiError::validation(format!(
                "output `{name}` is not known: this model has `{known}`"
            )));
        };
        // So an answer has few tensors, however many names a request sends.
        if found.iter().any(|(other, _)| *other == tensor) {
            return Err(ApiError::validation(format!("output `{name}` is asked for twice")));
        }
        found.push((tensor, *classes));
    }
    Ok(found)
}

/// Makes a tensor of these rows, one for each input.
pub(super) fn tensor(
    tensor: Tensor,
    classes: Option<usize>,
    rows: &[Row],
    model: &ModelInfo,
) -> Result<OutputTensor, ApiError> {
    let (shape, values) = match tensor {
        Tensor::SentenceEmbedding | Tensor::Logits => pooled(rows),
        Tensor::Scores => (pooled(rows).0, Values::F32(scores(rows, score_function(model, None))?)),
        Tensor::TokenEmbeddings | Tensor::TokenLogits | Tensor::MaskLogits => {
            let width = rows.iter().map(|row| row.row_len).max().unwrap_or(0);
            filled(rows, width, |values| values)?
        }
        Tensor::StartLogits => flat(filled(rows, 1, |values| &values[..1])?),
        Tensor::EndLogits => flat(filled(rows, 1, |values| &values[1..])?),
        Tensor::AttentionMask => mask(rows)?,
    };
    let (shape, values) = match (classes, shape.as_slice(), values) {
        (None, _, values) => (shape, values),
        (Some(count), &[_, width], Values::F32(values)) => {
            largest(count, width, &values, tensor.labels(model))
        }
        (Some(_), ..) => {
            let name = tensor.name();
            return Err(ApiError::validation(format!(
                "output `{name}`: `classification` is for a row of numbers for each input, but the shape is {shape:?}"
            )));
        }
    };
    Ok(OutputTensor { name: tensor.name(), shape, values })
}

type Shaped = (Vec<usize>, Values);

fn pooled(rows: &[Row]) -> Shaped {
    let width = rows.first().map_or(0, |row| row.row_len);
    (vec![rows.len(), width], Values::F32(rows.iter().flat_map(|row| &row.values).copied().collect()))
}

/// Probabilities, in the order of the labels.
fn scores(rows: &[Row], function: ScoreFunction) -> Result<Vec<f32>, ApiError> {
    let mut scores = Vec::new();
    for row in rows {
        let start = scores.len();
        scores.resize(start + row.values.len(), 0.0);
        for LabelScore { index, score } in classify(&row.values, function)? {
            scores[start + index] = score;
        }
    }
    Ok(scores)
}

/// The rows of each input, one under the other, padded with rows of zeros to the input that has the most; of each row,
/// `part`, which has `width` values.
fn filled(rows: &[Row], width: usize, part: impl Fn(&[f32]) -> &[f32]) -> Result<Shaped, ApiError> {
    let count = |row: &Row| row.values.len() / row.row_len.max(1);
    let most = rows.iter().map(count).max().unwrap_or(0);
    let mut values = Vec::with_capacity(size(rows.len(), most, width)?);
    for row in rows {
        row.rows().for_each(|row| values.extend_from_slice(part(row)));
        values.resize(values.len() + (most - count(row)) * width, 0.0);
    }
    Ok((vec![rows.len(), most, width], Values::F32(values)))
}

/// How many values these rows have when they are padded to the longest.
pub(super) fn values_in(rows: &[Row]) -> usize {
    rows.len().saturating_mul(rows.iter().map(|row| row.values.len()).max().unwrap_or(0))
}

/// How many values a tensor has; an error if it is too large.
pub(super) fn size(inputs: usize, rows: usize, width: usize) -> Result<usize, ApiError> {
    let size = inputs.checked_mul(rows).and_then(|rows| rows.checked_mul(width));
    size.filter(|&size| size <= MOST_VALUES).ok_or_else(|| {
        ApiError::validation(format!(
            "[{inputs}, {rows}, {width}] would be more than {MOST_VALUES} values: send fewer inputs at a time, or inputs \
             of similar length together"
        ))
    })
}

/// Drops the last dimension, which is 1.
fn flat((mut shape, values): Shaped) -> Shaped {
    shape.pop();
    (shape, values)
}

fn mask(rows: &[Row]) -> Result<Shaped, ApiError> {
    let most = rows.iter().map(|row| row.tokens).max().unwrap_or(0);
    size(rows.len(), most, 1)?;
    let bits = |row: &Row| (0..most).map(|token| i64::from(token < row.tokens)).collect::<Vec<_>>();
    Ok((vec![rows.len(), most], Values::I64(rows.iter().flat_map(bits).collect())))
}

/// The largest values of each row, the largest first.
fn largest(count: usize, width: usize, values: &[f32], labels: &[String]) -> Shaped {
    let count = count.min(width);
    let mut texts = Vec::new();
    for row in values.chunks_exact(width.max(1)) {
        texts.extend(rank(row)[..count].iter().map(|&index| match labels.get(index) {
            Some(label) => format!("{:.6}:{index}:{label}", row[index]),
            None => format!("{:.6}:{index}", row[index]),
        }));
    }
    (vec![values.len() / width.max(1), count], Values::Text(texts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[f32], row_len: usize, tokens: usize) -> Row {
        Row { values: values.to_vec(), row_len, tokens }
    }

    #[test]
    fn rows_of_different_lengths_are_filled_up() {
        let rows = [row(&[1.0, 2.0, 3.0, 4.0], 2, 2), row(&[5.0, 6.0], 2, 1)];
        let (shape, values) = filled(&rows, 2, |row| row).unwrap();
        assert_eq!(
            (shape, values),
            (vec![2, 2, 2], Values::F32(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0]))
        );
        let (shape, values) = flat(filled(&rows, 1, |row| &row[1..]).unwrap());
        assert_eq!((shape, values), (vec![2, 2], Values::F32(vec![2.0, 4.0, 6.0, 0.0])));
        assert_eq!(mask(&rows).unwrap(), (vec![2, 2], Values::I64(vec![1, 1, 1, 0])));
    }

    #[test]
    fn a_tensor_does_not_grow_without_bounds() {
        assert_eq!(size(32, 512, 1024).unwrap(), 32 * 512 * 1024);
        for (inputs, rows, width) in [(32, 32_768, 768), (usize::MAX, 2, 1), (usize::MAX, usize::MAX, 2)] {
            assert!(size(inputs, rows, width).is_err(), "{inputs}, {rows}, {width}");
        }
    }

    #[test]
    fn the_largest_values_are_told_with_their_labels() {
        let labels = ["a", "b"].map(str::to_owned);
        let (shape, values) = largest(2, 3, &[1.0, 5.0, 2.5, 3.0, -1.0, 0.0], &labels);
        let expected = ["5.000000:1:b", "2.500000:2", "3.000000:0:a", "0.000000:2"];
        assert_eq!((shape, values), (vec![2, 2], Values::Text(expected.map(str::to_owned).to_vec())));
        assert_eq!(largest(9, 1, &[1.0], &labels).0, [1, 1]);
        assert_eq!(largest(0, 1, &[1.0], &labels), (vec![1, 0], Values::Text(Vec::new())));
    }

    #[test]
    fn scores_have_the_order_of_the_labels() {
        let rows = [row(&[0.0, 2.0_f32.ln()], 2, 1), row(&[3.0_f32.ln(), 0.0], 2, 1)];
        let scores = scores(&rows, ScoreFunction::Softmax).unwrap();
        for (score, expected) in scores.iter().zip([1.0 / 3.0, 2.0 / 3.0, 0.75, 0.25]) {
            assert!((score - expected).abs() < 1e-6, "{scores:?}");
        }
    }
}
