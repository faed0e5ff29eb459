//! Constants on the device, in the form that their operators want: plain, or packed for products.

use std::borrow::Cow;

use turbo_kernels::{DType, Gemm};

use crate::{
    GraphError, Op, Program, ValueId,
    graph::{NamedWeight, Storage},
};

/// Where named weights come from.
pub trait WeightSource {
    /// The values of a tensor in row-major order as f32, whatever the file stores.
    ///
    /// # Errors
    /// When there is no such tensor, or it has another shape.
    fn weight(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<Cow<'_, [f32]>, Box<dyn std::error::Error + Send + Sync>>;
}

/// The constants of a program, by value.
pub(crate) struct Weights<D: Gemm> {
    plain: Vec<Option<(D::Block, usize)>>,
    packed: Vec<Option<D::Weight>>,
}

impl<D: Gemm> Weights<D> {
    pub(crate) fn load(
        device: &D,
        queue: &mut D::Queue,
        program: &Program,
        source: &dyn WeightSource,
    ) -> Result<Self, GraphError> {
        let mut weights = Weights { plain: Vec::new(), packed: Vec::new() };
        for (value, described) in program.graph().live_values() {
            let values = match &described.storage {
                Storage::Weight(parts) => read(source, parts)?,
                Storage::Computed(table) => Cow::Owned(table.values()),
                Storage::Input(_) | Storage::Activation | Storage::Output(_) => continue,
            };
            let forms = Forms::of(program, value);
            if forms.packed {
                let [out_features, in_features] = dims(&described.shape);
                let packed = device.pack(&values, out_features, in_features, DType::F32)?;
                set(&mut weights.packed, value, packed);
            }
            if forms.plain {
                let block = upload(device, queue, &values)?;
                set(&mut weights.plain, value, (block, values.len()));
            }
        }
        Ok(weights)
    }

    /// A table or vector.
    pub(crate) fn plain(&self, device: &D, value: ValueId) -> Result<D::View<'_, f32>, GraphError> {
        let (block, len) =
            self.plain[value.index()].as_ref().expect("the program reads this weight as it is");
        Ok(device.view(block, 0, *len)?)
    }

    /// A factor of a product.
    pub(crate) fn packed(&self, value: ValueId) -> &D::Weight {
        self.packed[value.index()].as_ref().expect("the program multiplies by this weight")
    }
}

/// How the operators of a program read a weight; a tied one may be read both ways.
struct Forms {
    plain: bool,
    packed: bool,
}

impl Forms {
    fn of(program: &Program, value: ValueId) -> Self {
        let mut forms = Forms { plain: false, packed: false };
        for node in program.nodes() {
            for (index, _) in node.inputs.iter().enumerate().filter(|(_, input)| **input == value) {
                let is_factor = is_product(&node.op) && index == 1;
                forms.packed |= is_factor;
                forms.plain |= !is_factor;
            }
        }
        forms
    }
}

fn upload<D: Gemm>(device: &D, queue: &mut D::Queue, values: &[f32]) -> Result<D::Block, GraphError> {
    let mut block = device.allocate(std::mem::size_of_val(values))?;
    device.upload(queue, values, device.view_mut(&mut block, 0, values.len())?)?;
    Ok(block)
}

/// Whether the second input is the matrix of a product.
fn is_product(op: &Op) -> bool {
    matches!(op, Op::MatMul | Op::Linear { .. } | Op::ResidualLinear | Op::LinearMaxPool)
}

/// The tensors one below the other.
fn read<'a>(source: &'a dyn WeightSource, parts: &[NamedWeight]) -> Result<Cow<'a, [f32]>, GraphError> {
    let mut values = Vec::new();
    for part in parts {
        let failed = |source| GraphError::Weight { name: part.name.clone(), source };
        let tensor = source.weight(&part.name, &part.shape).map_err(failed)?;
        let expected = part.shape.iter().product();
        if tensor.len() != expected {
            return Err(GraphError::WeightLength { name: part.name.clone(), expected, got: tensor.len() });
        }
        if parts.len() == 1 {
            return Ok(tensor);
        }
        values.extend_from_slice(&tensor);
    }
    Ok(Cow::Owned(values))
}

fn dims(shape: &crate::dim::Shape) -> [usize; 2] {
    match shape.0[..] {
        [crate::dim::Dim::Fixed(out_features), crate::dim::Dim::Fixed(in_features)] => {
            [out_features, in_features]
        }
        _ => unreachable!("the verifier checked that a factor is a matrix of fixed size"),
    }
}

fn set<T>(list: &mut Vec<Option<T>>, value: ValueId, item: T) {
    if list.len() <= value.index() {
        list.resize_with(value.index() + 1, || None);
    }
    list[value.index()] = Some(item);
}
