//! The ids of one batch, side by side, as the device wants them. Reused from batch to batch.

use crate::{GraphError, bind::Capacity, dim::Extents, graph::Input};

/// A batch being put together: packed rows, whatever the layout in which it will run.
#[derive(Clone, Debug)]
pub struct Staging {
    input_ids: Vec<u32>,
    token_type_ids: Vec<u32>,
    position_ids: Vec<u32>,
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
        Staging { input_ids: ids(), token_type_ids: ids(), position_ids: ids(), cu_seqlens }
    }

    /// Forgets the sequences and keeps the memory.
    pub fn clear(&mut self) {
        for ids in [&mut self.input_ids, &mut self.token_type_ids, &mut self.position_ids] {
            ids.clear();
        }
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
        self.position_ids.extend((0..).take(input_ids.len()));
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

    pub(crate) fn ids(&self, input: Input) -> &[u32] {
        match input {
            Input::InputIds => &self.input_ids,
            Input::TokenTypeIds => &self.token_type_ids,
            Input::PositionIds => &self.position_ids,
        }
    }

    pub(crate) fn cu_seqlens(&self) -> &[u32] {
        &self.cu_seqlens
    }
}
