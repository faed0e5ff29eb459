//! Loads the constants of a program: several threads read, pack and upload them, each one constant after the other.

use std::{
    borrow::Cow,
    collections::HashMap,
    panic::resume_unwind,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use turbo_kernels::{DType, Float, Gemm};

use super::{PackedStore, WeightSource};
use crate::{
    GraphError, Op, Program, ValueId,
    graph::{NamedWeight, Storage, Value},
};

/// A constant on the device.
pub(super) struct Loaded<D: Gemm> {
    /// Unpacked, with the number of its values.
    pub(super) plain: Option<(D::Block, usize)>,
    /// Packed as the matrix of products, in the parts that its operator needs, with the number of its bytes.
    pub(super) packed: Option<(Vec<D::Weight>, usize)>,
}

/// What loading needs to know.
pub(super) struct Loader<'a, D: Gemm> {
    device: &'a D,
    queue: Mutex<&'a mut D::Queue>,
    program: &'a Program,
    source: &'a dyn WeightSource,
    store: Option<&'a dyn PackedStore>,
    /// How many constants are still to be made of each tensor.
    pending: Mutex<HashMap<&'a str, usize>>,
}

impl<'a, D: Gemm> Loader<'a, D> {
    pub(super) fn new(
        device: &'a D,
        queue: &'a mut D::Queue,
        program: &'a Program,
        source: &'a dyn WeightSource,
        store: Option<&'a dyn PackedStore>,
    ) -> Self {
        let mut pending = HashMap::new();
        for (_, value) in program.graph().live_values() {
            parts(value).iter().for_each(|part| *pending.entry(part.name.as_str()).or_default() += 1);
        }
        Loader { device, queue: Mutex::new(queue), program, source, store, pending: Mutex::new(pending) }
    }

    /// Every constant of the program, in order of id. Packing is bound by memory, but also by conversions and page
    /// faults, so as many threads as the process may use are worthwhile.
    ///
    /// # Errors
    /// The error of the first constant that could not be loaded.
    pub(super) fn load_all(&self) -> Result<Vec<(ValueId, Loaded<D>)>, GraphError> {
        let is_constant = |value: &Value| matches!(value.storage, Storage::Weight(_) | Storage::Computed(_));
        let constants = self.program.graph().live_values().filter(|(_, value)| is_constant(value));
        let constants: Vec<ValueId> = constants.map(|(value, _)| value).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            let mut loaded = Vec::new();
            while let Some(&value) = constants.get(next.fetch_add(1, Ordering::Relaxed)) {
                let result = self.load(value);
                if result.is_err() {
                    next.store(constants.len(), Ordering::Relaxed); // what comes later is not needed any more
                }
                loaded.push((value, result));
            }
            loaded
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(constants.len());
        let mut loaded = thread::scope(|scope| {
            // a thread that cannot be spawned leaves its work to the others
            let helper = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
            let helpers: Vec<_> = (1..threads).filter_map(helper).collect();
            let mut loaded = work();
            for helper in helpers {
                loaded.extend(helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
            }
            loaded
        });
        // threads take constants in order, so the first of those that fail is always among the results
        loaded.sort_by_key(|(value, _)| *value);
        loaded.into_iter().map(|(value, loaded)| Ok((value, loaded?))).collect()
    }

    fn load(&self, value: ValueId) -> Result<Loaded<D>, GraphError> {
        let described = self.program.value(value);
        let forms = Forms::of(self.program, value);
        let matrix = forms.factor_of.map(|op| Matrix::of::<D>(self.program, value, &op));
        let mut packed = matrix.as_ref().and_then(|matrix| self.restore(matrix));
        let mut plain = None;
        if forms.plain || (matrix.is_some() && packed.is_none()) {
            let values = self.values(described)?;
            if let (Some(matrix), None) = (&matrix, &packed) {
                packed = Some(self.pack(matrix, &values)?);
            }
            if forms.plain {
                plain = Some((self.upload(&values)?, values.len()));
            }
        }
        parts(described).iter().for_each(|part| self.is_done_with(&part.name));
        let of_packed = |weights: Vec<D::Weight>| {
            let bytes =
                weights.iter().map(|weight| self.device.image(weight).map(<[u8]>::len)).sum::<Option<_>>();
            let bytes = bytes.or(matrix.as_ref().map(Matrix::bytes)).unwrap_or(0);
            (weights, bytes)
        };
        Ok(Loaded { plain, packed: packed.map(of_packed) })
    }

    /// A matrix that was packed at an earlier start; `None` if the store lacks any part.
    fn restore(&self, matrix: &Matrix) -> Option<Vec<D::Weight>> {
        let (store, packing) = (self.store_of(matrix)?, self.device.packing(matrix.dtype));
        let [out_features, in_features] = matrix.features_of_part();
        let restore = |part: usize| {
            let image = store.load(&matrix.name_of(part), &packing)?;
            self.device.restore(&image, out_features, in_features, matrix.dtype).ok()
        };
        (0..matrix.parts.count()).map(restore).collect()
    }

    fn pack(&self, matrix: &Matrix, values: &[f32]) -> Result<Vec<D::Weight>, GraphError> {
        let [out_features, in_features] = matrix.features_of_part();
        let pack = |part: usize| {
            let values = matrix.values_of(part, values);
            let weight = self.device.pack(&values, out_features, in_features, matrix.dtype)?;
            if let (Some(store), Some(image)) = (self.store_of(matrix), self.device.image(&weight)) {
                store.store(&matrix.name_of(part), &self.device.packing(matrix.dtype), image);
            }
            Ok(weight)
        };
        (0..matrix.parts.count()).map(pack).collect()
    }

    /// The store, for a matrix of the checkpoint.
    fn store_of(&self, matrix: &Matrix) -> Option<&'a dyn PackedStore> {
        self.store.filter(|_| !matrix.name.is_empty())
    }

    /// The values of a constant, its tensors one after the other.
    fn values(&self, constant: &Value) -> Result<Cow<'a, [f32]>, GraphError> {
        if let Storage::Computed(table) = &constant.storage {
            return Ok(Cow::Owned(table.values()?));
        }
        let (parts, values_of) = (parts(constant), |part: &NamedWeight| part.shape.iter().product::<usize>());
        let stacked = if parts.len() > 1 { parts.iter().map(values_of).sum() } else { 0 };
        let mut values = Vec::with_capacity(stacked);
        for part in parts {
            let failed = |why| GraphError::Weight { name: part.name.clone(), why };
            let tensor = self.source.weight(&part.name, &part.shape).map_err(failed)?;
            let (expected, got) = (values_of(part), tensor.len());
            if got != expected {
                return Err(GraphError::WeightLength { name: part.name.clone(), expected, got });
            }
            if parts.len() == 1 {
                return Ok(tensor);
            }
            values.extend_from_slice(&tensor);
        }
        Ok(Cow::Owned(values))
    }

    fn upload(&self, values: &[f32]) -> Result<D::Block, GraphError> {
        let stored = D::Float::from_f32s(values);
        let mut block = self.device.allocate(size_of_val(&stored[..]))?;
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.device.upload(&mut **queue, &stored, self.device.view_mut(&mut block, 0, stored.len())?)?;
        Ok(block)
    }

    /// Tells the source when this was the last constant made of a tensor.
    fn is_done_with(&self, name: &str) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = pending.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                drop(pending);
                self.source.done(name);
            }
        }
    }
}

/// A matrix of products.
struct Matrix {
    /// Its name in a store; empty if it is not of a checkpoint.
    name: String,
    out_features: usize,
    in_features: usize,
    dtype: DType,
    parts: Parts,
}

/// The parts that are packed separately.
#[derive(Clone, Copy)]
enum Parts {
    /// The whole matrix.
    Whole,
    /// Equally many rows for each of this many experts.
    Rows(usize),
    /// Equally many columns for each of this many experts.
    Columns(usize),
}

impl Parts {
    fn count(self) -> usize {
        match self {
            Parts::Whole => 1,
            Parts::Rows(count) | Parts::Columns(count) => count,
        }
    }
}

impl Matrix {
    /// The matrix `value`, which this operator reads as this input.
    fn of<D: Gemm>(program: &Program, value: ValueId, (op, input): &(Op, usize)) -> Self {
        let graph = program.graph();
        let ([out_features, in_features], dtype) = (graph.matrix(value), graph.matrix_dtype(value));
        let name = match graph.value(value).storage.weight_name() {
            tensors if tensors.is_empty() => tensors,
            tensors => format!("{tensors}[{out_features},{in_features}]"),
        };
        let parts = match (op, input) {
            (Op::Experts { routing, .. }, 2) if D::EXPERTS_APART => Parts::Rows(routing.num_experts),
            (Op::Experts { routing, .. }, _) if D::EXPERTS_APART => Parts::Columns(routing.num_experts),
            _ => Parts::Whole,
        };
        Matrix { name, out_features, in_features, dtype, parts }
    }

    /// Bytes of its values, for a device that does not report how many it takes.
    fn bytes(&self) -> usize {
        self.out_features * self.in_features * self.dtype.bytes()
    }

    /// The output and input features of a part.
    fn features_of_part(&self) -> [usize; 2] {
        match self.parts {
            Parts::Whole => [self.out_features, self.in_features],
            Parts::Rows(count) => [self.out_features / count, self.in_features],
            Parts::Columns(count) => [self.out_features, self.in_features / count],
        }
    }

    /// The name of a part in a store.
    fn name_of(&self, part: usize) -> String {
        match self.parts {
            Parts::Whole => self.name.clone(),
            Parts::Rows(count) => format!("{} rows, part {} of {count}", self.name, part + 1),
            Parts::Columns(count) => format!("{} columns, part {} of {count}", self.name, part + 1),
        }
    }

    /// The values of a part, taken from those of the whole matrix.
    fn values_of<'v>(&self, part: usize, values: &'v [f32]) -> Cow<'v, [f32]> {
        let [rows, columns] = self.features_of_part();
        match self.parts {
            Parts::Whole => Cow::Borrowed(values),
            Parts::Rows(_) => Cow::Borrowed(&values[part * rows * columns..][..rows * columns]),
            Parts::Columns(_) => {
                let mut own = Vec::with_capacity(rows * columns);
                for row in values.chunks_exact(self.in_features) {
                    own.extend_from_slice(&row[part * columns..][..columns]);
                }
                Cow::Owned(own)
            }
        }
    }
}

/// How the operators of a program read a constant; a tied one may be read both ways.
struct Forms {
    plain: bool,
    /// An operator that multiplies by it, and as which input; any one of several, since all need the same form.
    factor_of: Option<(Op, usize)>,
}

impl Forms {
    fn of(program: &Program, value: ValueId) -> Self {
        let mut forms = Forms { plain: false, factor_of: None };
        for node in program.nodes() {
            for (index, _) in node.inputs.iter().enumerate().filter(|(_, input)| **input == value) {
                match node.op.factors().contains(&index) {
                    true => forms.factor_of = Some((node.op, index)),
                    false => forms.plain = true,
                }
            }
        }
        forms
    }
}

/// The tensors of a checkpoint that a value is made of.
fn parts(value: &Value) -> &[NamedWeight] {
    match &value.storage {
        Storage::Weight(parts) => parts,
        _ => &[],
    }
}
