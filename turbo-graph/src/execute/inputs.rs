//! Ids and lengths of the batch on the device, in fixed blocks: a captured launch keeps reading the same addresses.

use turbo_kernels::{Device, Layout};

use crate::{GraphError, LayoutKind, Staging, graph::Input};

const INPUTS: [Input; 3] = [Input::InputIds, Input::TokenTypeIds, Input::PositionIds];

pub(crate) struct Inputs<D: Device> {
    layout: LayoutKind,
    /// One block per input, a `u32` per row.
    ids: [D::Block; 3],
    /// `cu_seqlens` when packed, `seq_lens` when padded.
    lengths: D::Block,
    max_rows: usize,
    max_lengths: usize,
    rows: usize,
    batch_size: usize,
    padded_len: usize,
    /// Where padded ids are laid out before they are copied.
    padded: Vec<u32>,
}

impl<D: Device> Inputs<D> {
    pub(crate) fn new(device: &D, layout: LayoutKind) -> Result<Self, GraphError> {
        let block = || device.allocate(0);
        Ok(Inputs {
            layout,
            ids: [block()?, block()?, block()?],
            lengths: block()?,
            max_rows: 0,
            max_lengths: 0,
            rows: 0,
            batch_size: 0,
            padded_len: 0,
            padded: Vec::new(),
        })
    }

    /// Makes room for `rows` rows and `batch_size` sequences.
    pub(crate) fn grow(&mut self, device: &D, rows: usize, batch_size: usize) -> Result<(), GraphError> {
        if rows > self.max_rows {
            for block in &mut self.ids {
                *block = device.allocate(rows.saturating_mul(size_of::<u32>()))?;
            }
            self.max_rows = rows;
        }
        if batch_size + 1 > self.max_lengths {
            self.lengths = device.allocate((batch_size + 1).saturating_mul(size_of::<u32>()))?;
            self.max_lengths = batch_size + 1;
        }
        if self.layout == LayoutKind::Padded {
            self.padded.clear(); // room is counted from the length
            self.padded.reserve(self.max_rows.max(self.max_lengths));
        }
        Ok(())
    }

    /// Copies the ids and lengths of `batch`.
    pub(crate) fn upload(
        &mut self,
        device: &D,
        queue: &mut D::Queue,
        batch: &Staging,
    ) -> Result<(), GraphError> {
        (self.batch_size, self.padded_len) = (batch.batch_size(), batch.max_seq_len());
        self.rows = match self.layout {
            LayoutKind::Packed => batch.total_tokens(),
            LayoutKind::Padded => self.batch_size * self.padded_len,
        };
        self.grow(device, self.rows, self.batch_size)?;
        for (block, input) in self.ids.iter_mut().zip(INPUTS) {
            let ids = match self.layout {
                LayoutKind::Packed => batch.ids(input),
                LayoutKind::Padded => pad(batch, input, self.padded_len, &mut self.padded),
            };
            device.upload(queue, ids, device.view_mut(block, 0, ids.len())?)?;
        }
        let lengths = match self.layout {
            LayoutKind::Packed => batch.cu_seqlens(),
            LayoutKind::Padded => {
                self.padded.clear();
                self.padded.extend((0..batch.batch_size()).map(|index| batch.seq_len(index) as u32));
                &self.padded
            }
        };
        Ok(device.upload(queue, lengths, device.view_mut(&mut self.lengths, 0, lengths.len())?)?)
    }

    /// One id per row.
    pub(crate) fn ids(&self, device: &D, input: Input) -> Result<D::View<'_, u32>, GraphError> {
        let index = INPUTS.iter().position(|&known| known == input).expect("every input is listed");
        Ok(device.view(&self.ids[index], 0, self.rows)?)
    }

    /// Real tokens of each sequence, in the padded layout.
    pub(crate) fn seq_lens(&self, device: &D) -> Result<D::View<'_, u32>, GraphError> {
        Ok(device.view(&self.lengths, 0, self.batch_size)?)
    }

    /// How the rows of the batch are shared out.
    pub(crate) fn layout(&self, device: &D) -> Result<Layout<D::View<'_, u32>>, GraphError> {
        Ok(match self.layout {
            LayoutKind::Packed => {
                Layout::Packed { cu_seqlens: device.view(&self.lengths, 0, self.batch_size + 1)? }
            }
            LayoutKind::Padded => {
                Layout::Padded { seq_lens: self.seq_lens(device)?, padded_len: self.padded_len }
            }
        })
    }
}

/// The ids of `input`, each sequence filled up with zeros to `padded_len`.
fn pad<'a>(batch: &Staging, input: Input, padded_len: usize, to: &'a mut Vec<u32>) -> &'a [u32] {
    to.clear();
    let mut ids = batch.ids(input);
    for index in 0..batch.batch_size() {
        let (sequence, rest) = ids.split_at(batch.seq_len(index));
        to.extend_from_slice(sequence);
        to.resize((index + 1) * padded_len, 0);
        ids = rest;
    }
    to
}
