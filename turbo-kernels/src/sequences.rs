//! A layout whose lengths the host can read, checked once, so that no kernel meets a wrong one.

use std::ops::Range;

use crate::{KernelError, Layout};

/// Where the sequences of a batch lie among `rows` rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sequences<'a> {
    Padded { seq_lens: &'a [u32], padded_len: usize },
    Packed { cu_seqlens: &'a [u32] },
}

impl<'a> Sequences<'a> {
    /// Checks the layout against itself and against `values`, which must be its rows times `row_len`.
    ///
    /// # Errors
    /// [`KernelError::Size`] for a layout that contradicts itself, [`KernelError::Length`] for another number of
    /// values.
    pub(crate) fn checked(
        kernel: &'static str,
        layout: Layout<&'a [u32]>,
        argument: &'static str,
        row_len: usize,
        values: usize,
    ) -> Result<Self, KernelError> {
        let size = |argument, expected, got| Err(KernelError::Size { kernel, argument, expected, got });
        let (sequences, rows) = match layout {
            Layout::Padded { seq_lens, padded_len } => {
                if let Some(b) = seq_lens.iter().position(|&len| len as usize > padded_len) {
                    let expected = format!("at most {padded_len}, the padded length (sequence {b})");
                    return size("a sequence length", expected.into(), seq_lens[b] as usize);
                }
                let Some(rows) = seq_lens.len().checked_mul(padded_len) else {
                    let (most, batch_size) = (usize::MAX / seq_lens.len(), seq_lens.len());
                    let expected =
                        format!("at most {most}, so that the rows of {batch_size} sequences can be counted");
                    return size("padded_len", expected.into(), padded_len);
                };
                (Self::Padded { seq_lens, padded_len }, rows)
            }
            Layout::Packed { cu_seqlens } => {
                let (Some(&first), Some(&last)) = (cu_seqlens.first(), cu_seqlens.last()) else {
                    return Err(KernelError::Length { kernel, argument: "cu_seqlens", expected: 1, got: 0 });
                };
                if first != 0 {
                    return size("the first prefix sum", "0".into(), first as usize);
                }
                if let Some(b) = cu_seqlens.windows(2).position(|pair| pair[0] > pair[1]) {
                    let expected = format!("at least {}, the one before it (sequence {b})", cu_seqlens[b]);
                    return size("a prefix sum", expected.into(), cu_seqlens[b + 1] as usize);
                }
                (Self::Packed { cu_seqlens }, last as usize)
            }
        };
        KernelError::check_length(kernel, argument, rows.saturating_mul(row_len), values)?;
        Ok(sequences)
    }

    /// Sequences in the batch.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Padded { seq_lens, .. } => seq_lens.len(),
            Self::Packed { cu_seqlens } => cu_seqlens.len() - 1,
        }
    }

    /// Rows of all sequences, padding included.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Padded { seq_lens, padded_len } => seq_lens.len() * padded_len,
            Self::Packed { cu_seqlens } => cu_seqlens[cu_seqlens.len() - 1] as usize,
        }
    }

    /// The rows of sequence `b` that are tokens.
    pub(crate) fn tokens(&self, b: usize) -> Range<usize> {
        match self {
            Self::Padded { seq_lens, padded_len } => b * padded_len..b * padded_len + seq_lens[b] as usize,
            Self::Packed { cu_seqlens } => cu_seqlens[b] as usize..cu_seqlens[b + 1] as usize,
        }
    }

    /// One past the last row of sequence `b`, padding included.
    pub(crate) fn end(&self, b: usize) -> usize {
        match self {
            Self::Padded { padded_len, .. } => (b + 1) * padded_len,
            Self::Packed { cu_seqlens } => cu_seqlens[b + 1] as usize,
        }
    }

    /// The sequence that holds `row`, which is below [`Sequences::rows`]. O(log batch_size).
    pub(crate) fn of_row(&self, row: usize) -> usize {
        match self {
            Self::Padded { padded_len, .. } => row / padded_len,
            Self::Packed { cu_seqlens } => cu_seqlens.partition_point(|&start| start as usize <= row) - 1,
        }
    }

    /// Rows of the longest sequence, padding included.
    pub(crate) fn most_rows(&self) -> usize {
        match self {
            Self::Padded { padded_len, .. } => *padded_len,
            Self::Packed { .. } => self.max_seq_len(),
        }
    }

    /// Tokens of the longest sequence.
    pub(crate) fn max_seq_len(&self) -> usize {
        (0..self.len()).map(|b| self.tokens(b).len()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(cu_seqlens: &[u32], values: usize) -> Result<Sequences<'_>, KernelError> {
        Sequences::checked("k", Layout::Packed { cu_seqlens }, "x", 2, values)
    }

    #[test]
    fn rows_belong_to_their_sequence() {
        let sequences = packed(&[0, 2, 2, 5], 10).unwrap();
        assert_eq!((0..5).map(|row| sequences.of_row(row)).collect::<Vec<_>>(), [0, 0, 2, 2, 2]);
        assert_eq!((sequences.len(), sequences.rows(), sequences.max_seq_len()), (3, 5, 3));
        assert_eq!((sequences.tokens(1), sequences.tokens(2), sequences.end(0)), (2..2, 2..5, 2));

        let layout = Layout::Padded { seq_lens: &[1u32, 3][..], padded_len: 3 };
        let sequences = Sequences::checked("k", layout, "x", 2, 12).unwrap();
        assert_eq!((0..6).map(|row| sequences.of_row(row)).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1]);
        assert_eq!((sequences.tokens(0), sequences.end(0), sequences.max_seq_len()), (0..1, 3, 3));
    }

    #[test]
    fn broken_layouts_are_named() {
        let message = |result: Result<Sequences<'_>, KernelError>| result.unwrap_err().to_string();
        assert_eq!(message(packed(&[1, 2], 4)), "k: the first prefix sum is 1, expected 0");
        assert_eq!(
            message(packed(&[0, 3, 2], 4)),
            "k: a prefix sum is 2, expected at least 3, the one before it (sequence 1)"
        );
        assert_eq!(message(packed(&[0, 2], 6)), "k: x holds 6 values, expected 4");
        assert_eq!(message(packed(&[], 0)), "k: cu_seqlens holds 0 values, expected 1");
        let padded = |padded_len| {
            let layout = Layout::Padded { seq_lens: &[1u32, 4][..], padded_len };
            message(Sequences::checked("k", layout, "x", 0, 0))
        };
        assert_eq!(
            padded(3),
            "k: a sequence length is 4, expected at most 3, the padded length (sequence 1)"
        );
        let (many, most) = (usize::MAX / 2 + 1, usize::MAX / 2);
        assert_eq!(
            padded(many),
            format!(
                "k: padded_len is {many}, expected at most {most}, so that the rows of 2 sequences can be counted"
            )
        );
    }
}
