//! Ids and lengths of the batch on the device, in fixed blocks: a captured launch keeps reading the same addresses.

use turbo_kernels::{Device, Layout};

use crate::{
    GraphError, LayoutKind, Op, Program, Staging,
    dim::Extents,
    graph::{Input, Storage},
};

pub(crate) struct Inputs<D: Device> {
    layout: LayoutKind,
    /// The inputs that the program reads, each with a block that has a `u32` per row.
    ids: Vec<(Input, D::Block)>,
    /// `cu_seqlens` when packed, `seq_lens` when padded.
    lengths: D::Block,
    /// Rows of the selected tokens, where the program selects.
    selected: Option<D::Block>,
    max_selected: usize,
    max_rows: usize,
    max_lengths: usize,
    rows: usize,
    batch_size: usize,
    padded_len: usize,
    selected_rows: usize,
    /// Where ids and lengths are laid out before they are copied.
    laid_out: Vec<u32>,
}

impl<D: Device> Inputs<D> {
    pub(crate) fn new(device: &D, program: &Program) -> Result<Self, GraphError> {
        let mut ids: Vec<(Input, D::Block)> = Vec::new();
        for (_, value) in program.graph().live_values() {
            match value.storage {
                Storage::Input(input) if ids.iter().all(|(known, _)| *known != input) => {
                    ids.push((input, device.allocate(0)?));
                }
                _ => {}
            }
        }
        let selects = program.nodes().iter().any(|node| node.op == Op::Select);
        Ok(Inputs {
            layout: program.layout(),
            ids,
            lengths: device.allocate(0)?,
            selected: selects.then(|| device.allocate(0)).transpose()?,
            max_selected: 0,
            max_rows: 0,
            max_lengths: 0,
            rows: 0,
            batch_size: 0,
            padded_len: 0,
            selected_rows: 0,
            laid_out: Vec::new(),
        })
    }

    /// Makes room for `rows` rows of `batch_size` sequences, `selected` of them selected.
    pub(crate) fn grow(
        &mut self,
        device: &D,
        rows: usize,
        batch_size: usize,
        selected: usize,
    ) -> Result<(), GraphError> {
        if rows > self.max_rows {
            for (_, block) in &mut self.ids {
                *block = device.allocate(rows.saturating_mul(size_of::<u32>()))?;
            }
            self.max_rows = rows;
        }
        if batch_size + 1 > self.max_lengths {
            self.lengths = device.allocate((batch_size + 1).saturating_mul(size_of::<u32>()))?;
            self.max_lengths = batch_size + 1;
        }
        if let Some(block) = self.selected.as_mut().filter(|_| selected > self.max_selected) {
            *block = device.allocate(selected.saturating_mul(size_of::<u32>()))?;
            self.max_selected = selected;
        }
        self.laid_out.clear(); // room is counted from the length
        self.laid_out.reserve(self.max_rows.max(self.max_lengths).max(self.max_selected));
        Ok(())
    }

    /// Copies the ids and lengths of `batch`. In the packed layout `extents` may have more rows and sequences than the
    /// batch: the extra rows belong to no sequence, and the extra sequences are empty.
    pub(crate) fn upload(
        &mut self,
        device: &D,
        queue: &mut D::Queue,
        batch: &Staging,
        extents: &Extents,
    ) -> Result<(), GraphError> {
        (self.batch_size, self.padded_len) = (extents.batch_size, batch.max_seq_len());
        let (rows, padded_len) = match self.layout {
            LayoutKind::Packed => (extents.total_tokens, None),
            LayoutKind::Padded => (self.batch_size * self.padded_len, Some(self.padded_len)),
        };
        (self.rows, self.selected_rows) = (rows, batch.selected_rows());
        self.grow(device, self.rows, self.batch_size, self.selected_rows)?;
        for (input, block) in &mut self.ids {
            let ids = batch.rows(*input, padded_len, rows, &mut self.laid_out);
            device.upload(queue, ids, device.view_mut(block, 0, rows)?)?;
        }
        if let Some(block) = &mut self.selected {
            batch.lay_out_selected(padded_len, &mut self.laid_out);
            device.upload(queue, &self.laid_out, device.view_mut(block, 0, self.laid_out.len())?)?;
        }
        let lengths = match self.layout {
            LayoutKind::Packed if self.batch_size == batch.batch_size() => batch.cu_seqlens(),
            LayoutKind::Packed => {
                self.laid_out.clear();
                self.laid_out.extend_from_slice(batch.cu_seqlens());
                self.laid_out.resize(self.batch_size + 1, batch.total_tokens() as u32);
                &self.laid_out
            }
            LayoutKind::Padded => {
                self.laid_out.clear();
                self.laid_out.extend((0..batch.batch_size()).map(|index| batch.seq_len(index) as u32));
                &self.laid_out
            }
        };
        Ok(device.upload(queue, lengths, device.view_mut(&mut self.lengths, 0, lengths.len())?)?)
    }

    /// How many of `rows` selected rows the program reads: none if it selects nothing.
    pub(crate) fn read_of_selected(&self, rows: usize) -> usize {
        if self.selected.is_some() { rows } else { 0 }
    }

    /// One id per row.
    pub(crate) fn ids(&self, device: &D, input: Input) -> Result<D::View<'_, u32>, GraphError> {
        let found = self.ids.iter().find(|(known, _)| *known == input);
        let (_, block) = found.expect("every input that the program reads is listed");
        Ok(device.view(block, 0, self.rows)?)
    }

    /// The rows of the selected tokens.
    pub(crate) fn selected(&self, device: &D) -> Result<D::View<'_, u32>, GraphError> {
        let block = self.selected.as_ref().expect("the program selects, so there is a block");
        Ok(device.view(block, 0, self.selected_rows)?)
    }

    /// Real tokens of each sequence, in the padded layout.
    pub(crate) fn seq_lens(&self, device: &D) -> Result<D::View<'_, u32>, GraphError> {
        Ok(device.view(&self.lengths, 0, self.batch_size)?)
    }

    /// How the rows of the batch are divided among sequences.
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
