//! Embeddings on the CPU: every id is checked before the first row is written.

use super::{Embed, Lookup};
use crate::{
    KernelError,
    device::{Cpu, CpuQueue},
    lanes,
    norm::{NormWeights, for_each_row, normalize},
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
        lookups: [Lookup<&[f32], &[u32]>; 3],
        weights: NormWeights<&[f32]>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        const NAME: &str = "embed_sum_layer_norm";
        let hidden_size = weights.checked(NAME, out, out)?;
        let tokens = KernelError::check_rows(NAME, "out", hidden_size, out.len())?;
        for lookup in &lookups {
            lookup.check(NAME, hidden_size, tokens)?;
        }
        for_each_row(queue, hidden_size, out, |first, out| {
            let rows = lookups.each_ref().map(|lookup| lookup.row(first / hidden_size, hidden_size));
            self.supported_isa().run(SumNormRow { rows, weights, out });
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

struct SumNormRow<'a> {
    rows: [&'a [f32]; 3],
    weights: NormWeights<&'a [f32]>,
    out: &'a mut [f32],
}

impl Kernel for SumNormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let [a, b, c] = self.rows.map(|row| row.chunks(S::LANES));
        for (((a, b), c), out) in a.zip(b).zip(c).zip(self.out.chunks_mut(S::LANES)) {
            let sum = s.add(lanes::read(s, a, 0.0), lanes::read(s, b, 0.0));
            lanes::write(s, s.add(sum, lanes::read(s, c, 0.0)), out);
        }
        normalize(s, self.out, self.weights);
    }
}
