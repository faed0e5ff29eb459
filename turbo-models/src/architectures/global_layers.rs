//! Which layers see the whole input, in a model whose other layers see only nearby tokens.

use crate::{ModelConfig, ModelError};

/// The set of these layers.
pub(super) enum GlobalLayers {
    /// Layers at regular distances.
    Every {
        /// From one such layer to the next.
        distance: u32,
        /// The first such layer.
        first: u32,
    },
    /// The file says so for each layer.
    Listed(Vec<bool>),
}

impl GlobalLayers {
    /// Those that the file lists, or else `regular`.
    pub(super) fn listed_or(
        config: &ModelConfig,
        regular: impl FnOnce() -> Result<Self, ModelError>,
    ) -> Result<Self, ModelError> {
        const LIST: &str = "layer_types";
        let Some(list) = config.optional::<Vec<String>>(LIST)? else { return regular() };
        if list.len() != config.num_hidden_layers as usize {
            let why = format!("lists {} of {} layers", list.len(), config.num_hidden_layers);
            return Err(config.wrong(LIST, why));
        }
        let is_global = |name: &String| match name.as_str() {
            "full_attention" => Ok(true),
            "sliding_attention" => Ok(false),
            other => Err(config.unsupported(LIST, other, "full_attention, sliding_attention")),
        };
        Ok(Self::Listed(list.iter().map(is_global).collect::<Result<_, _>>()?))
    }

    /// Whether `layer` is in the set.
    pub(super) fn has(&self, layer: u32) -> bool {
        match self {
            Self::Every { distance, first } => layer % distance == *first,
            Self::Listed(is_global) => is_global[layer as usize],
        }
    }
}
