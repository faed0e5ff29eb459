//! Embeddings on the CPU: every id is checked before the first row is written.

use super::{Embed, Lookup};
use crate::{
    KernelError,
    device::{Cpu, CpuQueue},
    lanes,
    norm::{NormWeights, for_each_piece, for_each_row, normalize},
    simd::{Kernel, Simd},
};

impl Embed for Cpu {
    fn embed(
        &self,
        queue: &mut CpuQueue,
        lookup: Lookup<&[f32], &[u32]>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        if lookup.ids.is_empty() {
            return KernelError::check_length("embed", "out", 0, out.len());
        }
        let hidden_size = out.len() / lookup.ids.len();
        KernelError::check_length("embed", "out", hidden_size * lookup.ids.len(), out.len())?;
        lookup.check("embed", hidden_size, lookup.ids.len())?;
        for_each_row(queue, hidden_size, out, |first, row| {
            row.copy_from_slice(lookup.row(first / hidden_size, hidden_size));
        })
    }

    fn embed_sum_layer_norm(
        &self,
        queue: &mut CpuQueue,
        lookups: &[Lookup<&[f32], &[u32]>],
        weights: NormWeights<&[f32]>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        const NAME: &str = "embed_sum_layer_norm";
        let hidden_size = weights.checked(NAME, out, out)?;
        let tokens = KernelError::check_rows(NAME, "out", hidden_size, out.len())?;
        let Some((first_lookup, others)) = lookups.split_first() else {
            return Err(KernelError::Size {
                kernel: NAME,
                argument: "lookups",
                expected: "at least 1".into(),
                got: 0,
            });
        };
        for lookup in lookups {
            lookup.check(NAME, hidden_size, tokens)?;
        }
        for_each_piece(queue, hidden_size, out, |first, out| {
            let first_token = first / hidden_size;
            self.supported_isa().run(SumNormRows { first_lookup, others, first_token, weights, out });
        })
    }
}

impl<'a> Lookup<&'a [f32], &'a [u32]> {
    fn check(&self, kernel: &'static str, hidden_size: usize, tokens: usize) -> Result<(), KernelError> {
        KernelError::check_length(kernel, "ids", tokens, self.ids.len())?;
        let rows = KernelError::check_rows(kernel, "table", hidden_size, self.table.len())?;
        match self.ids.iter().find(|&&id| id as usize >= rows) {
            Some(&index) => Err(KernelError::Index { kernel, index, rows }),
            None => Ok(()),
        }
    }

    fn row(&self, token: usize, hidden_size: usize) -> &'a [f32] {
        &self.table[self.ids[token] as usize * hidden_size..][..hidden_size]
    }
}

/// Adds the rows of tokens in all tables, and normalises each sum.
struct SumNormRows<'a> {
    first_lookup: &'a Lookup<&'a [f32], &'a [u32]>,
    others: &'a [Lookup<&'a [f32], &'a [u32]>],
    /// The token of the first row of `out`.
    first_token: usize,
    weights: NormWeights<&'a [f32]>,
    out: &'a mut [f32],
}

impl Kernel for SumNormRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let hidden_size = self.weights.gain.len().max(1);
        for (token, out) in (self.first_token..).zip(self.out.chunks_exact_mut(hidden_size)) {
            out.copy_from_slice(self.first_lookup.row(token, hidden_size));
            for lookup in self.others {
                let row = lookup.row(token, hidden_size);
                lanes::update_with(s, out, [row], |sum, [term]| s.add(sum, term));
            }
        }
        normalize(s, self.out, self.weights);
    }
}
