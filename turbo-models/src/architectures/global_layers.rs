//! Which layers see the whole input, of a model whose others see what is near.

use crate::{ModelConfig, ModelError};

/// Which they are.
pub(super) enum GlobalLayers {
    /// They come at regular distances.
    Every {
        /// From one to the next.
        distance: u32,
        /// The first of them.
        first: u32,
    },
    /// The file says it of each layer.
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

    /// Whether `layer` is one.
    pub(super) fn has(&self, layer: u32) -> bool {
        match self {
            Self::Every { distance, first } => layer % distance == *first,
            Self::Listed(is_global) => is_global[layer as usize],
        }
    }
}
