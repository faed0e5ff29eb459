//! Runs a program on a device: weights uploaded once, activations in planned chunks, one launch per node.
//!
//! An executor has one owner and one queue, and runs its nodes in order. For each batch it finds or makes the binding,
//! copies the ids and launches. Within a reserved capacity this allocates nothing and looks nothing up by name.

mod bindings;
mod constants;
mod flights;
mod heads;
mod inputs;
mod launch;
mod load;
mod memory;
mod recordings;
mod sources;
mod weights;

use turbo_alloc::PlannerConfig;
use turbo_kernels::EncoderKernels;

use crate::{
    Capacity, GraphError, Program, Staging, ValueId,
    dim::{Dim, Extents},
    graph::Node,
    memory::scratch_bytes,
};
use bindings::Bindings;
use flights::{Flights, OutputPlaces};
use inputs::Inputs;
use launch::Launch;
use memory::Memory;
use recordings::Recordings;
pub use sources::{PackedStore, WeightSource};
pub use weights::WeightBytes;
use weights::Weights;

/// How an executor keeps its plans.
#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    /// Chunk sizes and when chunks are released.
    pub planner: PlannerConfig,
    /// How many bindings are kept; [`Executor::reserve`] raises this to hold those that it makes. When it is reached,
    /// all are dropped. A kept binding pins its chunks. With 0, every batch is planned anew for its own sizes, as in
    /// the paper, and the planner's policy releases chunks.
    pub cached_bindings: usize,
}

impl Default for ExecutorConfig {
    fn default() -> Self {
        ExecutorConfig { planner: PlannerConfig::default(), cached_bindings: 4096 }
    }
}

impl From<PlannerConfig> for ExecutorConfig {
    fn from(planner: PlannerConfig) -> Self {
        ExecutorConfig { planner, ..ExecutorConfig::default() }
    }
}

/// A named result of the program of one executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OutputId(usize);

/// Some of the results of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OutputSet(u64);

impl OutputSet {
    /// All of them.
    pub const ALL: OutputSet = OutputSet(u64::MAX);
    const NONE: OutputSet = OutputSet(0);

    /// All outputs beyond the 63rd share one bit: a set has all of them or none.
    fn of(output: usize) -> Self {
        OutputSet(1 << output.min(63))
    }

    /// Whether the sets have an output in common.
    fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl FromIterator<OutputId> for OutputSet {
    fn from_iter<I: IntoIterator<Item = OutputId>>(outputs: I) -> Self {
        OutputSet(outputs.into_iter().fold(0, |set, output| set | OutputSet::of(output.0).0))
    }
}

/// A program on a device.
pub struct Executor<D: EncoderKernels> {
    device: D,
    queue: D::Queue,
    program: Program,
    weights: Weights<D>,
    inputs: Inputs<D>,
    memory: Memory<D>,
    recordings: Recordings<D>,
    bindings: Bindings,
    outputs: Vec<ValueId>,
    /// For every node, the outputs that need it.
    needed: Vec<OutputSet>,
    flights: Flights<D>,
}

impl<D: EncoderKernels> Executor<D> {
    /// Loads the weights of `program` onto `device`.
    ///
    /// # Errors
    /// A weight that the source cannot give, or that has the wrong length; no device memory; an invalid planner
    /// configuration.
    pub fn new(
        device: D,
        program: Program,
        weights: &dyn WeightSource,
        config: impl Into<ExecutorConfig>,
    ) -> Result<Self, GraphError> {
        Self::load(device, program, weights, None, config)
    }

    /// As [`Executor::new`], but takes packed matrices from `store` where it has them, and gives it those that it
    /// lacks.
    ///
    /// # Errors
    /// As [`Executor::new`].
    pub fn load(
        device: D,
        program: Program,
        weights: &dyn WeightSource,
        store: Option<&dyn PackedStore>,
        config: impl Into<ExecutorConfig>,
    ) -> Result<Self, GraphError> {
        let mut queue = device.queue()?;
        let program = program.with_element_bytes(size_of::<D::Float>());
        let weights = Weights::load(&device, &mut queue, &program, weights, store)?;
        let outputs: Vec<ValueId> = program.graph().outputs().map(|(value, _)| value).collect();
        Ok(Executor {
            inputs: Inputs::new(&device, &program)?,
            memory: Memory::new(&device, outputs.len())?,
            recordings: Recordings::new(),
            bindings: Bindings::new(config.into())?,
            needed: needed(&program, &outputs),
            flights: Flights::new(&device, &mut queue, outputs.len())?,
            device,
            queue,
            program,
            weights,
            outputs,
        })
    }

    /// The output of this name.
    pub fn output(&self, name: &str) -> Option<OutputId> {
        self.program.graph().outputs().position(|(_, output)| output == name).map(OutputId)
    }

    /// The device that this runs on.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The program that this runs.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Bytes of the kernels' scratch, which grows to what the largest operation so far needed.
    pub fn scratch_bytes(&self) -> usize {
        self.device.scratch_bytes(&self.queue)
    }

    /// Bytes of the weights on the device.
    pub fn weight_bytes(&self) -> WeightBytes {
        self.weights.bytes()
    }

    /// Bytes of all chunks that are allocated now.
    pub fn footprint_bytes(&self) -> usize {
        self.bindings.bytes()
    }

    /// Bytes of the outputs' memory, which is not planned: enough for the largest batch so far, or for the reserved
    /// capacity.
    pub fn output_bytes(&self) -> usize {
        self.memory.output_bytes()
    }

    /// The footprint of a batch of `capacity`, planned without any chunks to reuse, plus the scratch of operators on a
    /// device with memory of its own. Changes nothing.
    ///
    /// # Errors
    /// Errors of the planner.
    pub fn planned_bytes(&self, capacity: Capacity) -> Result<usize, GraphError> {
        let planned_for = self.planned_for(&capacity.usable().extents());
        let footprint = self.bindings.footprint_alone(&self.program, planned_for)?;
        if !self.flights.have_landings() {
            return Ok(footprint);
        }
        // scratch follows the rows that are selected, not the rows that are planned for
        let selected_rows = self.inputs.read_of_selected(capacity.selected_rows);
        let extents = Extents { selected_rows, ..planned_for.extents() };
        Ok(footprint.saturating_add(scratch_bytes(&self.program, &extents)))
    }

    /// Bytes that the outputs of a batch of `capacity` take in addition; saturates at `usize::MAX`.
    pub fn output_bytes_of(&self, capacity: Capacity) -> usize {
        let of_each = self.outputs.iter().map(|&output| self.bytes_of_output(output, capacity));
        of_each.fold(0, usize::saturating_add)
    }

    /// Prepares for every batch within `capacity`: binds all buckets, sizes inputs and outputs, and launches every
    /// kernel on the longest sequence, or on as many rows as there may be, so that its scratch grows. Of launches that
    /// are alike, such as those of repeated layers, only one is made: eight thousand tokens take a while.
    ///
    /// Afterwards such batches allocate nothing, unless [`ExecutorConfig::cached_bindings`] is 0. The exceptions are
    /// two kinds of host memory that a GPU needs: recordings of buckets, and landings for outputs of more than 16 MiB.
    ///
    /// There are some hundreds of buckets, and some thousands if the program selects tokens; a program that selects
    /// none needs no room for them. Leaves nothing to [`Executor::read`].
    ///
    /// # Errors
    /// No device memory; errors of the planner; a longest sequence that has no row in a table of positions, where the
    /// device can tell.
    pub fn reserve(&mut self, capacity: Capacity) -> Result<(), GraphError> {
        let selected_rows = self.inputs.read_of_selected(capacity.selected_rows);
        let capacity = Capacity { selected_rows, ..capacity.usable() };
        let batch_size = capacity.batch_size;
        // recorded launches run with the sizes of their bucket
        let room = match self.device.records() {
            true => capacity.rounded(self.program.layout()),
            false => capacity,
        };
        self.inputs.grow(&self.device, room.total_tokens, room.batch_size, selected_rows)?;
        self.reserve_outputs(room)?;
        let output_bytes: Vec<usize> =
            self.outputs.iter().map(|&output| self.bytes_of_output(output, room)).collect();
        self.flights.clear();
        self.flights.reserve(&self.device, batch_size, &output_bytes)?;
        if self.bindings.keeps_any() {
            let buckets = capacity.buckets(self.program.layout());
            self.bindings.make_room(buckets.len()); // otherwise the last ones would push out the first
            for bucket in buckets {
                self.bindings.bind(&self.device, &self.program, &mut self.memory, bucket)?;
            }
        }
        let staging = self.staging_of_most_scratch(room)?;
        let kinds = self.program.graph().distinct_nodes();
        self.launch(&staging, OutputSet::ALL, |position, _| Ok(kinds.contains(&position)))?;
        self.flights.clear();
        Ok(())
    }

    /// Computes all outputs for `batch`; read them with [`Executor::read`] before the next run. Earlier outputs can no
    /// longer be read.
    ///
    /// # Errors
    /// [`GraphError::EmptyBatch`]; an id outside its table, if the device can tell (otherwise the row of its token is
    /// NaN); no device memory. The executor stays usable, and there is nothing to read until a run succeeds.
    pub fn run(&mut self, batch: &Staging) -> Result<(), GraphError> {
        self.run_while(batch, || true)
    }

    /// As [`Executor::run`], but calls `observe` with each node right before it is launched. On a device that computes
    /// as it launches, the caller can time each node this way.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn run_observed(
        &mut self,
        batch: &Staging,
        mut observe: impl FnMut(&Node),
    ) -> Result<(), GraphError> {
        self.launch(batch, OutputSet::ALL, |_, node| {
            observe(node);
            Ok(true)
        })
    }

    /// As [`Executor::run`], but calls `keep_going` before the first layer, between layers and after the last, so that
    /// the caller can stop a long batch. For a small batch, whose launches a device records and enqueues all at once,
    /// it is called once, before all of them.
    ///
    /// # Errors
    /// As [`Executor::run`]; [`GraphError::Stopped`] as soon as `keep_going` returns `false`.
    pub fn run_while(&mut self, batch: &Staging, keep_going: impl FnMut() -> bool) -> Result<(), GraphError> {
        self.run_for(batch, OutputSet::ALL, keep_going)
    }

    /// As [`Executor::run_while`], but computes only what `outputs` need; other outputs cannot be read.
    ///
    /// # Errors
    /// As [`Executor::run_while`].
    pub fn run_for(
        &mut self,
        batch: &Staging,
        outputs: OutputSet,
        mut keep_going: impl FnMut() -> bool,
    ) -> Result<(), GraphError> {
        self.flights.clear();
        if let Some(recorded) = self.recorded_as(batch) {
            return match keep_going() {
                true => self.launch_as(batch, Some(recorded), outputs, &mut |_, _| Ok(true)),
                false => Err(GraphError::Stopped),
            };
        }
        let mut layer = None;
        self.launch(batch, outputs, |_, node| {
            if std::mem::replace(&mut layer, node.layer) != node.layer && !keep_going() {
                return Err(GraphError::Stopped);
            }
            Ok(true)
        })
    }

    /// The most batches in flight, run but not yet read: 2 on a device that computes asynchronously, else 1.
    pub fn depth(&self) -> usize {
        self.flights.depth()
    }

    /// As [`Executor::run_for`], but behind the batches in flight, which can still be read, the oldest first: the
    /// device finds more work when it is done. Returns as soon as the batch is launched; its outputs are copied to the
    /// host behind it.
    ///
    /// # Errors
    /// As [`Executor::run`]; [`GraphError::Full`] if [`Executor::depth`] batches wait to be read. The earlier batches
    /// are unaffected.
    pub fn run_behind(&mut self, batch: &Staging, outputs: OutputSet) -> Result<(), GraphError> {
        let depth = self.flights.depth();
        if self.flights.count() == depth {
            return Err(GraphError::Full { depth });
        }
        // the new batch overwrites these outputs
        self.fetch_newest()?;
        self.launch_as(batch, self.recorded_as(batch), outputs, &mut |_, _| Ok(true))?;
        self.fetch_newest().inspect_err(|_| self.flights.forget_newest())
    }

    /// Whether the oldest batch can be read without waiting; `true` if there is none. Does not wait.
    ///
    /// # Errors
    /// A device failure.
    pub fn is_done(&mut self) -> Result<bool, GraphError> {
        let (places, flights) = self.places_and_flights();
        flights.oldest().map_or(Ok(true), |flight| flight.is_done(&places))
    }

    /// Drops the oldest batch; the one behind it is read next.
    pub fn forget_oldest(&mut self) {
        self.flights.forget_oldest();
    }

    /// Begins to copy the outputs of the batch that was launched last to the host.
    fn fetch_newest(&mut self) -> Result<(), GraphError> {
        let (places, flights) = self.places_and_flights();
        flights.newest().map_or(Ok(()), |flight| flight.fetch_all(&places))
    }

    fn places_and_flights(&mut self) -> (OutputPlaces<'_, D>, &mut Flights<D>) {
        let Self { device, queue, memory, program, outputs, flights, .. } = self;
        (OutputPlaces { device, queue, memory, program, outputs }, flights)
    }

    /// Launches the nodes that `outputs` need and `wanted` accepts, in order, as one region of the device.
    fn launch(
        &mut self,
        batch: &Staging,
        outputs: OutputSet,
        mut wanted: impl FnMut(usize, &Node) -> Result<bool, GraphError>,
    ) -> Result<(), GraphError> {
        self.flights.clear();
        self.launch_as(batch, None, outputs, &mut wanted)
    }

    /// The sizes that a small batch runs with and the bucket that its launches are recorded for, if the device records
    /// them.
    fn recorded_as(&self, batch: &Staging) -> Option<(Extents, Capacity)> {
        let extents = batch.extents();
        if extents.batch_size == 0 || !self.bindings.keeps_any() {
            return None;
        }
        let (bucket, layout) = (self.planned_for(&extents), self.program.layout());
        Some((Recordings::fixed(&self.device, layout, bucket, extents)?, bucket))
    }

    /// Launches nodes with the sizes of `batch`, or with those that its bucket is recorded with.
    fn launch_as(
        &mut self,
        batch: &Staging,
        recorded: Option<(Extents, Capacity)>,
        outputs: OutputSet,
        wanted: &mut dyn FnMut(usize, &Node) -> Result<bool, GraphError>,
    ) -> Result<(), GraphError> {
        let of_batch = batch.extents();
        if of_batch.batch_size == 0 {
            return Err(GraphError::EmptyBatch);
        }
        let extents = recorded.map_or(of_batch, |(fixed, _)| fixed);
        let planned_for = self.planned_for(&of_batch);
        self.bindings.bind(&self.device, &self.program, &mut self.memory, planned_for)?;
        self.grow_outputs(&extents)?;
        self.inputs.upload(&self.device, &mut self.queue, batch, &extents)?;

        let plan = self.bindings.get(planned_for).plan();
        let mut launch = |queue: &mut D::Queue| {
            let mut launch = Launch {
                device: &self.device,
                queue,
                program: &self.program,
                weights: &self.weights,
                inputs: &self.inputs,
                memory: &mut self.memory,
                plan,
                outputs: &self.outputs,
                extents,
            };
            for (position, node) in self.program.nodes().iter().enumerate() {
                if self.needed[position].meets(outputs) && wanted(position, node)? {
                    launch.node(node)?;
                }
            }
            Ok::<_, GraphError>(())
        };
        match recorded {
            Some((_, bucket)) => {
                self.recordings.run(&self.device, &mut self.queue, (bucket, outputs), launch)?;
            }
            None => self.device.region(&mut self.queue, &mut launch)?,
        }
        self.flights.push(batch, outputs);
        Ok(())
    }

    /// Waits until all runs are done: on a device that computes asynchronously, [`Executor::run`] returns earlier.
    /// Reading waits, too, for what is read.
    ///
    /// # Errors
    /// A device failure.
    pub fn finish(&mut self) -> Result<(), GraphError> {
        Ok(self.device.finish(&mut self.queue)?)
    }

    /// Appends the values of `output` for sequence `sequence` of the oldest batch that is not yet dropped:
    /// `[seq_len, columns]` if the output has a row per token, `[columns]` if it has a row per sequence, a row per
    /// selected token of the sequence if it has a row for each of these. For any other output, appends the block of the
    /// sequence, padding included.
    ///
    /// # Errors
    /// [`GraphError::NoSuchSequence`]; [`GraphError::NotComputed`] for an output that the run did not compute; a device
    /// failure.
    ///
    /// # Panics
    /// When `output` came from another executor, whose program has more outputs.
    pub fn read(&mut self, output: OutputId, sequence: usize, to: &mut Vec<f32>) -> Result<(), GraphError> {
        let (places, flights) = self.places_and_flights();
        let flight = flights.oldest().ok_or(GraphError::NoSuchSequence { sequence, batch_size: 0 })?;
        let tokens = flight.tokens(sequence)?;
        if !OutputSet::of(output.0).meets(flight.outputs) {
            let name = places.program.graph().outputs().nth(output.0).map_or("", |(_, name)| name);
            return Err(GraphError::NotComputed { output: name.to_owned() });
        }
        let padded_len = flight.extents.padded_len;
        let (rows, of_row) = match &places.shape(output.0).0[..] {
            [Dim::TotalTokens, of_row @ ..] => (tokens, of_row),
            [Dim::BatchSize, Dim::PaddedLen, of_row @ ..] => {
                (sequence * padded_len..sequence * padded_len + tokens.len(), of_row)
            }
            [Dim::SelectedRows, of_row @ ..] => (flight.selected(sequence)?, of_row),
            [_, of_row @ ..] => (sequence..sequence + 1, of_row),
            [] => unreachable!("every shape rule gives a result an axis for the batch"),
        };
        let columns: usize = of_row.iter().map(|dim| dim.size(&flight.extents)).product();
        flight.read(places, output.0, rows.start * columns..rows.end * columns, to)
    }

    /// The sizes that a batch of these extents is planned for.
    fn planned_for(&self, extents: &Extents) -> Capacity {
        let selected_rows = self.inputs.read_of_selected(extents.selected_rows);
        self.bindings.sizes(&Extents { selected_rows, ..*extents }, self.program.layout())
    }

    /// A batch that no batch within `room` exceeds in scratch: the longest sequence, and then as many rows as the
    /// device says.
    fn staging_of_most_scratch(&self, room: Capacity) -> Result<Staging, GraphError> {
        let longest = vec![0; room.max_seq_len.max(1)];
        let rows = self.device.rows_of_most_scratch(room.total_tokens);
        let mut staging = Staging::new();
        staging.push(&longest, &[])?;
        while staging.total_tokens() < rows {
            let left = rows - staging.total_tokens();
            staging.push(&longest[..left.min(longest.len())], &[])?;
        }
        staging.select(&vec![0; room.selected_rows])?;
        Ok(staging)
    }

    /// Makes room for the outputs of every batch within `capacity`.
    fn reserve_outputs(&mut self, capacity: Capacity) -> Result<(), GraphError> {
        for (index, &output) in self.outputs.iter().enumerate() {
            let bytes = self.bytes_of_output(output, capacity);
            self.memory.grow_output(&self.device, index, bytes)?;
        }
        Ok(())
    }

    /// The most bytes that `output` takes for a batch within `capacity`.
    fn bytes_of_output(&self, output: ValueId, capacity: Capacity) -> usize {
        let (shape, extents) = (&self.program.value(output).shape, capacity.extents());
        // padded rows are bounded by `total_tokens`, not by the product of the other two bounds
        let values = match &shape.0[..] {
            [Dim::BatchSize, Dim::PaddedLen, of_row @ ..] => of_row
                .iter()
                .fold(capacity.total_tokens, |values, dim| values.saturating_mul(dim.size(&extents))),
            _ => shape.elements(&extents),
        };
        values.saturating_mul(size_of::<D::Float>())
    }

    fn grow_outputs(&mut self, extents: &Extents) -> Result<(), GraphError> {
        for (index, &output) in self.outputs.iter().enumerate() {
            let bytes =
                self.program.value(output).shape.elements(extents).saturating_mul(size_of::<D::Float>());
            self.memory.grow_output(&self.device, index, bytes)?;
        }
        Ok(())
    }
}

/// For every node, the outputs that need its result.
fn needed(program: &Program, outputs: &[ValueId]) -> Vec<OutputSet> {
    let mut nodes = vec![OutputSet(0); program.nodes().len()];
    for (output, &value) in outputs.iter().enumerate() {
        for position in program.needed_for(value) {
            nodes[position].0 |= OutputSet::of(output).0;
        }
    }
    nodes
}
