//! The dense modules that the sentence-transformers library puts behind pooling: a matrix and an activation each.

use turbo_graph::ValueId;

use crate::{
    ModelError,
    drawing::{Bias, Drawing},
    modules::Dense,
};

/// Prefix of the names of the tensors of module `index`.
pub(crate) fn prefix(index: usize) -> String {
    format!("dense.{index}.")
}

/// Draws the modules, from the pooled row of `columns` values to the row of the last module. The tensors of a module
/// are those of its folder.
pub(super) fn draw(
    drawing: &mut Drawing<'_>,
    modules: &[Dense],
    mut x: ValueId,
    mut columns: usize,
) -> Result<ValueId, ModelError> {
    for (index, module) in modules.iter().enumerate() {
        if module.in_features != columns {
            let why = format!("is {}, expected {columns}", module.in_features);
            let file = module.path.join("config.json");
            return Err(ModelError::Field { file, field: "in_features", why });
        }
        let bias = if module.bias { Bias::With } else { Bias::Without };
        let name = format!("{}linear", prefix(index));
        x = drawing.linear_with(x, &name, (columns, module.out_features), bias)?;
        if let Some(activation) = module.activation {
            x = drawing.graph.activate(x, activation)?;
        }
        columns = module.out_features;
    }
    Ok(x)
}
