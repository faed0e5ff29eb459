//! The ids of one batch, side by side, as the device wants them. Reused from batch to batch.

use crate::{
    GraphError,
    bind::Capacity,
    dim::Extents,
    graph::{Input, Positions},
};

/// A batch being put together: packed rows, whatever the layout in which it will run.
#[derive(Clone, Debug)]
pub struct Staging {
    input_ids: Vec<u32>,
    token_type_ids: Vec<u32>,
    cu_seqlens: Vec<u32>,
}

impl Default for Staging {
    fn default() -> Self {
        Self::new()
    }
}

impl Staging {
    /// An empty batch.
    pub fn new() -> Self {
        Self::with_capacity(Capacity::default())
    }

    /// An empty batch that takes batches within `capacity` without allocating.
    pub fn with_capacity(capacity: Capacity) -> Self {
        let mut cu_seqlens = Vec::with_capacity(capacity.batch_size + 1);
        cu_seqlens.push(0);
        let ids = || Vec::with_capacity(capacity.total_tokens);
        Staging { input_ids: ids(), token_type_ids: ids(), cu_seqlens }
    }

    /// Forgets the sequences and keeps the memory.
    pub fn clear(&mut self) {
        self.input_ids.clear();
        self.token_type_ids.clear();
        self.cu_seqlens.truncate(1);
    }

    /// Appends a sequence. No `token_type_ids` means all 0.
    ///
    /// # Errors
    /// [`GraphError::EmptyBatch`] for a sequence without tokens, [`GraphError::TokenTypes`]; nothing is appended then.
    pub fn push(&mut self, input_ids: &[u32], token_type_ids: &[u32]) -> Result<(), GraphError> {
        if input_ids.is_empty() {
            return Err(GraphError::EmptyBatch);
        }
        if !token_type_ids.is_empty() && token_type_ids.len() != input_ids.len() {
            return Err(GraphError::TokenTypes { expected: input_ids.len(), got: token_type_ids.len() });
        }
        self.input_ids.extend_from_slice(input_ids);
        self.token_type_ids.extend_from_slice(token_type_ids);
        self.token_type_ids.resize(self.input_ids.len(), 0);
        self.cu_seqlens.push(u32::try_from(self.input_ids.len()).expect("a batch has fewer than 2³² tokens"));
        Ok(())
    }

    /// Sequences.
    pub fn batch_size(&self) -> usize {
        self.cu_seqlens.len() - 1
    }

    /// Sum of `seq_len`.
    pub fn total_tokens(&self) -> usize {
        self.input_ids.len()
    }

    /// Tokens of sequence `index`.
    ///
    /// # Panics
    /// When there is no such sequence.
    pub fn seq_len(&self, index: usize) -> usize {
        (self.cu_seqlens[index + 1] - self.cu_seqlens[index]) as usize
    }

    /// Longest `seq_len`.
    pub fn max_seq_len(&self) -> usize {
        (0..self.batch_size()).map(|index| self.seq_len(index)).max().unwrap_or(0)
    }

    /// The sizes of this batch.
    pub fn extents(&self) -> Extents {
        Extents {
            batch_size: self.batch_size(),
            padded_len: self.max_seq_len(),
            total_tokens: self.total_tokens(),
            sum_len_sq: (0..self.batch_size()).map(|index| self.seq_len(index).pow(2)).sum(),
        }
    }

    /// What the graph asks for, one `u32` per row: sequences one after the other, or with a `padded_len` each filled
    /// up with zeros. What does not lie here as it is asked for is laid out in `room`.
    pub(crate) fn rows<'a>(
        &'a self,
        input: Input,
        padded_len: Option<usize>,
        room: &'a mut Vec<u32>,
    ) -> &'a [u32] {
        match (input, padded_len) {
            (Input::InputIds, None) => &self.input_ids,
            (Input::TokenTypeIds, None) => &self.token_type_ids,
            _ => {
                self.lay_out(input, padded_len, room);
                room
            }
        }
    }

    fn lay_out(&self, input: Input, padded_len: Option<usize>, to: &mut Vec<u32>) {
        to.clear();
        for (index, ends) in self.cu_seqlens.windows(2).enumerate() {
            let tokens = ends[0] as usize..ends[1] as usize;
            match input {
                Input::InputIds => to.extend_from_slice(&self.input_ids[tokens]),
                Input::TokenTypeIds => to.extend_from_slice(&self.token_type_ids[tokens]),
                Input::PositionIds(Positions::FromZero) => to.extend((0..).take(tokens.len())),
                Input::PositionIds(Positions::AfterPad { pad_id }) => {
                    to.extend(positions_after(pad_id, &self.input_ids[tokens]));
                }
            }
            if let Some(padded_len) = padded_len {
                to.resize((index + 1) * padded_len, 0);
            }
        }
    }

    pub(crate) fn cu_seqlens(&self) -> &[u32] {
        &self.cu_seqlens
    }
}

/// The positions of one sequence: `pad_id` plus the number of tokens up to here that are not padding, or `pad_id`.
fn positions_after(pad_id: u32, input_ids: &[u32]) -> impl Iterator<Item = u32> {
    input_ids.iter().scan(pad_id, move |last, &id| {
        let is_token = id != pad_id;
        *last = last.saturating_add(is_token.into());
        Some(if is_token { *last } else { pad_id })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Token 1 is padding, token types are left to their default.
    fn rows(input: Input, padded_len: Option<usize>) -> Vec<u32> {
        let mut batch = Staging::new();
        for ids in [&[7, 1, 8, 9][..], &[1], &[5, 6]] {
            batch.push(ids, &[]).unwrap();
        }
        batch.rows(input, padded_len, &mut vec![99; 3]).to_vec()
    }

    #[test]
    fn inputs_are_laid_out_as_the_rows_are() {
        let cases: [(Input, [u32; 7]); 4] = [
            (Input::InputIds, [7, 1, 8, 9, 1, 5, 6]),
            (Input::TokenTypeIds, [0; 7]),
            (Input::PositionIds(Positions::FromZero), [0, 1, 2, 3, 0, 0, 1]),
            (Input::PositionIds(Positions::AfterPad { pad_id: 1 }), [2, 1, 3, 4, 1, 2, 3]),
        ];
        for (input, [a, b, c, d, e, f, g]) in cases {
            assert_eq!(rows(input, None), [a, b, c, d, e, f, g]);
            assert_eq!(rows(input, Some(4)), [a, b, c, d, e, 0, 0, 0, f, g, 0, 0]);
        }
    }

    #[test]
    fn positions_of_an_absurd_padding_id_do_not_overflow() {
        assert_eq!(positions_after(u32::MAX, &[1, u32::MAX]).collect::<Vec<_>>(), [u32::MAX; 2]);
    }
}
