//! Batches that were launched and whose results can be read, the oldest first.
//!
//! A device that computes asynchronously can be given the next batch before the last one is read: the outputs of a
//! batch are copied to the host right behind it, before the next batch overwrites them on the device.

use std::ops::Range;

use turbo_kernels::{Device, Float, FloatsOn};

use super::{OutputSet, memory::Memory};
use crate::{
    GraphError, Program, Staging, ValueId,
    dim::{Extents, Shape},
};

/// The most batches in flight: one runs, and one waits behind it, so that the device finds work when it is done.
const MOST: usize = 2;
/// The most bytes of an output for which host memory is reserved. A larger output gets its host memory when it is first
/// copied, and more when it has grown: pinned memory is lost to all other processes.
const MOST_RESERVED: usize = 16 << 20;

pub(super) struct Flights<D: Device> {
    /// As many as there may be, used in turn.
    flights: Vec<Flight<D>>,
    oldest: usize,
    count: usize,
}

/// A batch, with what is needed to read its outputs.
pub(super) struct Flight<D: Device> {
    /// The outputs that were computed.
    pub(super) outputs: OutputSet,
    pub(super) extents: Extents,
    cu_seqlens: Vec<u32>,
    cu_selected: Vec<u32>,
    /// For each output, where its copy lands; `None` if the device computes in host memory.
    arrivals: Vec<Option<Arrival<D>>>,
}

struct Arrival<D: Device> {
    landing: D::Landing,
    is_fetched: bool,
}

/// Where outputs are on the device, and the queue that computes them.
pub(super) struct OutputPlaces<'a, D: Device> {
    pub(super) device: &'a D,
    pub(super) queue: &'a mut D::Queue,
    pub(super) memory: &'a Memory<D>,
    pub(super) program: &'a Program,
    pub(super) outputs: &'a [ValueId],
}

impl<'a, D: Device> OutputPlaces<'a, D> {
    /// The shape of output number `output`.
    pub(super) fn shape(&self, output: usize) -> &'a Shape {
        &self.program.value(self.outputs[output]).shape
    }
}

impl<D: Device> Flights<D> {
    pub(super) fn new(device: &D, queue: &mut D::Queue, outputs: usize) -> Result<Self, GraphError> {
        let mut flights = Vec::new();
        for _ in 0..MOST {
            flights.push(Flight::new(device, queue, outputs)?);
        }
        if flights[0].arrivals.iter().all(Option::is_none) {
            flights.truncate(1); // what it computes is read where it lies
        }
        Ok(Flights { flights, oldest: 0, count: 0 })
    }

    /// The most batches in flight.
    pub(super) fn depth(&self) -> usize {
        self.flights.len()
    }

    /// Whether outputs are copied to the host, that is, whether the device has memory of its own.
    pub(super) fn have_landings(&self) -> bool {
        self.flights.iter().any(|flight| flight.arrivals.iter().any(Option::is_some))
    }

    /// The batches in flight.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Makes room for `batch_size` sequences, and for outputs of `output_bytes` each.
    pub(super) fn reserve(
        &mut self,
        device: &D,
        batch_size: usize,
        output_bytes: &[usize],
    ) -> Result<(), GraphError> {
        for flight in &mut self.flights {
            flight.cu_seqlens.reserve(batch_size + 1);
            flight.cu_selected.reserve(batch_size + 1);
            for (arrival, &bytes) in flight.arrivals.iter_mut().zip(output_bytes) {
                if let Some(Arrival { landing, .. }) = arrival.as_mut().filter(|_| bytes <= MOST_RESERVED) {
                    device.reserve_landing(landing, bytes)?;
                }
            }
        }
        Ok(())
    }

    /// From now on there is nothing to read.
    pub(super) fn clear(&mut self) {
        (self.oldest, self.count) = (0, 0);
    }

    /// Adds the batch that was launched last.
    ///
    /// # Panics
    /// If [`Flights::depth`] batches are in flight already.
    pub(super) fn push(&mut self, batch: &Staging, outputs: OutputSet) {
        assert!(self.count < self.depth(), "who launches a batch has made room for it");
        let newest = (self.oldest + self.count) % self.depth();
        self.flights[newest].set(batch, outputs);
        self.count += 1;
    }

    /// The batch to be read.
    pub(super) fn oldest(&mut self) -> Option<&mut Flight<D>> {
        (self.count > 0).then(|| &mut self.flights[self.oldest])
    }

    /// The batch that was launched last.
    pub(super) fn newest(&mut self) -> Option<&mut Flight<D>> {
        let newest = (self.oldest + self.count.checked_sub(1)?) % self.depth();
        Some(&mut self.flights[newest])
    }

    /// Drops the batch that was launched last.
    pub(super) fn forget_newest(&mut self) {
        self.count = self.count.saturating_sub(1);
    }

    /// Drops the oldest batch.
    pub(super) fn forget_oldest(&mut self) {
        if self.count > 0 {
            self.oldest = (self.oldest + 1) % self.depth();
            self.count -= 1;
        }
    }
}

impl<D: Device> Flight<D> {
    fn new(device: &D, queue: &mut D::Queue, outputs: usize) -> Result<Self, GraphError> {
        let mut arrivals = Vec::with_capacity(outputs);
        for _ in 0..outputs {
            let landing = device.landing(queue)?;
            arrivals.push(landing.map(|landing| Arrival { landing, is_fetched: false }));
        }
        let (cu_seqlens, cu_selected) = (Vec::new(), Vec::new());
        let extents = Extents::of(&[]);
        Ok(Flight { outputs: OutputSet::NONE, extents, cu_seqlens, cu_selected, arrivals })
    }

    fn set(&mut self, batch: &Staging, outputs: OutputSet) {
        (self.outputs, self.extents) = (outputs, batch.extents());
        self.cu_seqlens.clear();
        self.cu_seqlens.extend_from_slice(batch.cu_seqlens());
        self.cu_selected.clear();
        self.cu_selected.extend_from_slice(batch.cu_selected());
        self.arrivals.iter_mut().flatten().for_each(|arrival| arrival.is_fetched = false);
    }

    /// The rows of the tokens of sequence `sequence`.
    pub(super) fn tokens(&self, sequence: usize) -> Result<Range<usize>, GraphError> {
        self.rows(&self.cu_seqlens, sequence)
    }

    /// The rows of the selected tokens of sequence `sequence`.
    pub(super) fn selected(&self, sequence: usize) -> Result<Range<usize>, GraphError> {
        self.rows(&self.cu_selected, sequence)
    }

    /// The rows of sequence `sequence`, as `prefix_sums` divides them.
    fn rows(&self, prefix_sums: &[u32], sequence: usize) -> Result<Range<usize>, GraphError> {
        match prefix_sums.get(sequence..).and_then(<[u32]>::first_chunk) {
            Some(&[first, end]) => Ok(first as usize..end as usize),
            None => Err(GraphError::NoSuchSequence { sequence, batch_size: self.extents.batch_size }),
        }
    }

    /// Begins to copy all outputs that were computed and are not being copied yet. No other batch may have been
    /// launched since.
    pub(super) fn fetch_all(&mut self, places: &OutputPlaces<'_, D>) -> Result<(), GraphError> {
        (0..self.arrivals.len()).try_for_each(|output| self.fetch(places, output))
    }

    /// Begins to copy output number `output`, if it was computed.
    fn fetch(&mut self, places: &OutputPlaces<'_, D>, output: usize) -> Result<(), GraphError> {
        let Some(arrival) = self.arrivals[output].as_mut().filter(|arrival| !arrival.is_fetched) else {
            return Ok(());
        };
        if self.outputs.meets(OutputSet::of(output)) {
            let all = places.shape(output).elements(&self.extents);
            let from = places.memory.output(places.device, output, 0, all)?;
            places.device.fetch(from, &mut arrival.landing)?;
            arrival.is_fetched = true;
        }
        Ok(())
    }

    /// Whether all computed outputs can be read without waiting.
    pub(super) fn is_done(&mut self, places: &OutputPlaces<'_, D>) -> Result<bool, GraphError> {
        self.fetch_all(places)?;
        for Arrival { landing, is_fetched } in self.arrivals.iter_mut().flatten() {
            if *is_fetched && !places.device.has_landed(landing)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Appends these values of output number `output`; waits until they are there.
    pub(super) fn read(
        &mut self,
        places: OutputPlaces<'_, D>,
        output: usize,
        values: Range<usize>,
        to: &mut Vec<f32>,
    ) -> Result<(), GraphError> {
        self.fetch(&places, output)?;
        let OutputPlaces { device, queue, memory, .. } = places;
        match &mut self.arrivals[output] {
            Some(Arrival { landing, .. }) => {
                let all: &[D::Float] = device.landed(landing)?;
                append(&all[values], to);
                Ok(())
            }
            None => {
                let from = memory.output(device, output, values.start, values.len())?;
                read_in_place(device, queue, from, values.len(), to)
            }
        }
    }
}

/// Appends `count` values from where they were computed. If that is not host memory, they are downloaded: such a device
/// has memory of its own, but no landings.
fn read_in_place<D: Device>(
    device: &D,
    queue: &mut D::Queue,
    from: FloatsOn<'_, D>,
    count: usize,
    to: &mut Vec<f32>,
) -> Result<(), GraphError> {
    if let Some(values) = device.on_host(from) {
        append(values, to);
        return Ok(());
    }
    let mut values = vec![D::Float::from_f32(0.0); count];
    device.download(queue, from, &mut values)?;
    append(&values, to);
    Ok(())
}

fn append<F: Float>(values: &[F], to: &mut Vec<f32>) {
    to.extend(values.iter().map(|value| value.to_f32()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execute::recordings::tests::Recorder;

    #[test]
    fn what_is_not_on_the_host_is_copied() {
        let (mut queue, mut values) = (Vec::new(), vec![1.0]);
        read_in_place(&Recorder::default(), &mut queue, (), 2, &mut values).unwrap();
        assert_eq!((queue, values), (vec!["download"], vec![1.0, 0.0, 0.0]));
    }
}
