//! The ids of one batch, one after the other, as the device needs them. Reused from batch to batch.

use crate::{
    GraphError,
    bind::Capacity,
    dim::Extents,
    graph::{Input, Positions},
};

/// A batch that is being assembled: packed rows, whichever layout it will run in.
#[derive(Clone, Debug)]
pub struct Staging {
    input_ids: Vec<u32>,
    token_type_ids: Vec<u32>,
    cu_seqlens: Vec<u32>,
    /// Selected tokens, as positions in their sequences.
    selected: Vec<u32>,
    /// As `cu_seqlens`, over the selected tokens.
    cu_selected: Vec<u32>,
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

    /// An empty batch that can grow to `capacity` without allocating.
    pub fn with_capacity(capacity: Capacity) -> Self {
        let prefix_sums = || {
            let mut sums = Vec::with_capacity(capacity.batch_size + 1);
            sums.push(0);
            sums
        };
        let ids = || Vec::with_capacity(capacity.total_tokens);
        Staging {
            input_ids: ids(),
            token_type_ids: ids(),
            cu_seqlens: prefix_sums(),
            selected: Vec::with_capacity(capacity.selected_rows),
            cu_selected: prefix_sums(),
        }
    }

    /// Removes the sequences and keeps the memory.
    pub fn clear(&mut self) {
        self.input_ids.clear();
        self.token_type_ids.clear();
        self.cu_seqlens.truncate(1);
        self.selected.clear();
        self.cu_selected.truncate(1);
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
        self.cu_selected.push(self.cu_selected[self.cu_selected.len() - 1]);
        Ok(())
    }

    /// Selects tokens of the sequence that was pushed last, by their positions in it: everything behind
    /// [`GraphBuilder::select`](crate::GraphBuilder::select) is computed for these, in this order. Further calls
    /// append.
    ///
    /// # Errors
    /// [`GraphError::NoSuchToken`], also when there is no sequence yet; nothing is selected then.
    pub fn select(&mut self, positions: &[u32]) -> Result<(), GraphError> {
        let seq_len = self.batch_size().checked_sub(1).map_or(0, |last| self.seq_len(last));
        if let Some(&position) = positions.iter().find(|&&position| position as usize >= seq_len) {
            return Err(GraphError::NoSuchToken { position, seq_len });
        }
        self.selected.extend_from_slice(positions);
        if let (false, Some(end)) = (positions.is_empty(), self.cu_selected.last_mut()) {
            *end = u32::try_from(self.selected.len()).expect("a batch selects fewer than 2³² tokens");
        }
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

    /// Selected tokens of all sequences.
    pub fn selected_rows(&self) -> usize {
        self.selected.len()
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
            selected_rows: self.selected_rows(),
        }
    }

    /// The values of `input`, one `u32` per row: sequences one after the other, each filled up with zeros if there is a
    /// `padded_len`, and zeros behind them up to `rows` rows. Values that are not stored in this order are laid out in
    /// `room`.
    pub(crate) fn rows<'a>(
        &'a self,
        input: Input,
        padded_len: Option<usize>,
        rows: usize,
        room: &'a mut Vec<u32>,
    ) -> &'a [u32] {
        match (input, padded_len) {
            (Input::InputIds, None) if rows == self.total_tokens() => &self.input_ids,
            (Input::TokenTypeIds, None) if rows == self.total_tokens() => &self.token_type_ids,
            _ => {
                self.lay_out(input, padded_len, room);
                room.resize(rows, 0);
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

    pub(crate) fn cu_selected(&self) -> &[u32] {
        &self.cu_selected
    }

    /// Where the selected tokens lie among the rows of the batch, written to `to`.
    pub(crate) fn lay_out_selected(&self, padded_len: Option<usize>, to: &mut Vec<u32>) {
        to.clear();
        for (index, ends) in self.cu_selected.windows(2).enumerate() {
            let first = match padded_len {
                Some(padded_len) => {
                    u32::try_from(index * padded_len).expect("a batch has fewer than 2³² rows")
                }
                None => self.cu_seqlens[index],
            };
            let positions = &self.selected[ends[0] as usize..ends[1] as usize];
            to.extend(positions.iter().map(|position| first + position));
        }
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
    fn rows(input: Input, padded_len: Option<usize>, rows: usize) -> Vec<u32> {
        let mut batch = Staging::new();
        for ids in [&[7, 1, 8, 9][..], &[1], &[5, 6]] {
            batch.push(ids, &[]).unwrap();
        }
        batch.rows(input, padded_len, rows, &mut vec![99; 3]).to_vec()
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
            assert_eq!(rows(input, None, 7), [a, b, c, d, e, f, g]);
            assert_eq!(rows(input, None, 9), [a, b, c, d, e, f, g, 0, 0], "rows of no sequence");
            assert_eq!(rows(input, Some(4), 12), [a, b, c, d, e, 0, 0, 0, f, g, 0, 0]);
        }
    }

    #[test]
    fn selected_tokens_are_rows_of_the_batch() {
        let mut batch = Staging::new();
        let selects =
            |batch: &mut Staging, positions: &[u32]| batch.select(positions).map_err(|e| e.to_string());
        assert_eq!(
            selects(&mut batch, &[0]).unwrap_err(),
            "token 0 was selected, expected one of the 0 of its sequence, counted from 0"
        );
        batch.push(&[7, 1, 8, 9], &[]).unwrap();
        selects(&mut batch, &[3]).unwrap();
        selects(&mut batch, &[1, 1]).unwrap();
        batch.push(&[1], &[]).unwrap();
        batch.push(&[5, 6], &[]).unwrap();
        assert_eq!(
            selects(&mut batch, &[0, 2]).unwrap_err(),
            "token 2 was selected, expected one of the 2 of its sequence, counted from 0"
        );
        selects(&mut batch, &[1]).unwrap();

        let mut rows = vec![99];
        batch.lay_out_selected(None, &mut rows);
        assert_eq!((rows.as_slice(), batch.cu_selected()), (&[3, 1, 1, 6][..], &[0, 3, 3, 4][..]));
        batch.lay_out_selected(Some(4), &mut rows);
        assert_eq!(rows, [3, 1, 1, 9]);
        batch.clear();
        assert_eq!((batch.selected_rows(), batch.cu_selected()), (0, &[0][..]));
    }

    #[test]
    fn positions_of_an_absurd_padding_id_do_not_overflow() {
        assert_eq!(positions_after(u32::MAX, &[1, u32::MAX]).collect::<Vec<_>>(), [u32::MAX; 2]);
    }
}
