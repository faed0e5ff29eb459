//! Tables of relative positions, projected for the heads of a layer that scores with them (DeBERTa). Norm and matrix
//! are constants, so they are applied once while a model is loaded, and not for every batch.

use std::num::NonZeroUsize;

use turbo_graph::{
    GraphError,
    kernels::{
        BiasAct, Cpu, CpuOptions, DType, Device, Epilogue, Gemm, KernelError, Norm, norm::NormWeights,
    },
};

use crate::{ModelError, weights::Weights};

/// The rows of a table, optionally normed, times a published matrix, with its bias:
/// `factor · (norm(rows) · matrixᵀ + bias)`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PositionTable {
    /// The table, `[positions, inputs]`.
    pub(crate) rows: String,
    /// A layer norm of the rows, `{name}.weight` and `{name}.bias`, and its epsilon, which is added to the variance.
    pub(crate) norm: Option<(String, f32)>,
    /// Factor of the whole result.
    pub(crate) factor: f32,
}

/// Stands for no norm in a name.
const NO_NORM: &str = "-";

impl PositionTable {
    /// A name that tells this table from everything else that is made of a matrix; no blanks at either end.
    pub(crate) fn name(&self) -> String {
        let Self { rows, norm, factor } = self;
        let (norm, epsilon) = norm.as_ref().map_or((NO_NORM, 0.0), |(norm, epsilon)| (norm, *epsilon));
        format!("{rows} {norm} {epsilon} {factor}")
    }

    /// Parses a result of [`Self::name`].
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let mut words = name.split(' ');
        let [rows, norm] = [words.next()?, words.next()?].map(str::to_owned);
        let (epsilon, factor) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let norm = (norm != NO_NORM).then_some((norm, epsilon));
        words.next().is_none().then_some(Self { rows, norm, factor })
    }

    /// Its values, `[positions, outputs]`, projected by the published matrix `{name}.weight`, `[outputs, inputs]`.
    pub(crate) fn values(
        &self,
        weights: &Weights,
        name: &str,
        (positions, inputs, outputs): (usize, usize, usize),
    ) -> Result<Vec<f32>, ModelError> {
        let rows = weights.values(&self.rows, &[positions, inputs])?;
        let matrix = weights.values(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = weights.values(&format!("{name}.bias"), &[outputs])?;
        let norm = match &self.norm {
            None => None,
            Some((name, epsilon)) => {
                let part = |part: &str| weights.values(&format!("{name}.{part}"), &[inputs]);
                Some((part("weight")?, part("bias")?, *epsilon))
            }
        };
        let norm = norm.as_ref().map(|(gain, offset, epsilon)| NormWeights {
            gain: &gain[..],
            offset: Some(&offset[..]),
            epsilon: *epsilon,
        });
        multiply(&rows, norm, (&matrix, &bias), self.factor).map_err(|error| GraphError::from(error).into())
    }
}

/// Runs on one thread, because several tables are made at a time.
fn multiply(
    rows: &[f32],
    norm: Option<NormWeights<&[f32]>>,
    (matrix, bias): (&[f32], &[f32]),
    factor: f32,
) -> Result<Vec<f32>, KernelError> {
    let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(1), ..CpuOptions::default() })?;
    let mut queue = cpu.queue()?;
    let (outputs, inputs) = (bias.len(), matrix.len() / bias.len());
    let mut normed = rows.to_vec();
    if let Some(norm) = norm {
        cpu.layer_norm(&mut queue, rows, norm, &mut normed)?;
    }
    let matrix = cpu.pack(matrix, outputs, inputs, DType::F32)?;
    let mut products = vec![0.0; rows.len() / inputs * outputs];
    cpu.gemm(&mut queue, &normed, &matrix, Epilogue::Bias(bias), &mut products)?;
    let mut scaled = vec![0.0; products.len()];
    cpu.scale(&mut queue, &products, factor, &mut scaled)?;
    Ok(scaled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_they_name() {
        for norm in [None, Some(("encoder.LayerNorm".to_owned(), 1e-7))] {
            let table =
                PositionTable { rows: "encoder.rel_embeddings.weight".into(), norm, factor: 0.07216878 };
            assert_eq!(PositionTable::parse(&table.name()), Some(table));
        }
        assert_eq!(PositionTable::parse("a b 0 1 2"), None);
    }

    /// Two rows of two values, by hand.
    #[test]
    fn rows_are_normed_multiplied_and_scaled() {
        let (rows, matrix, bias) = ([1.0, 3.0, 8.0, 4.0], [1.0, 0.0, 0.0, 2.0, 1.0, 1.0], [0.5, 0.0, -1.0]);
        let plain = multiply(&rows, None, (&matrix, &bias), 2.0).unwrap();
        assert_eq!(plain, [3.0, 12.0, 6.0, 17.0, 16.0, 22.0]);
        // normed: (−1, 1) and (1, −1), times the gain
        let norm = NormWeights { gain: &[2.0, 1.0][..], offset: Some(&[0.0, 1.0][..]), epsilon: 0.0 };
        let normed = multiply(&rows, Some(norm), (&matrix, &bias), 1.0).unwrap();
        for (got, want) in normed.into_iter().zip([-1.5, 4.0, -1.0, 2.5, 0.0, 1.0]) {
            assert!((got - want).abs() < 1e-6, "{got}, expected {want}");
        }
    }
}
