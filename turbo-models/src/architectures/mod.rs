//! The models that can be drawn: one file each, and one line in [`ALL`].

mod bert;

use turbo_graph::{Graph, Pooling};

use crate::{ModelConfig, ModelError, drawing::Drawing, weights::Weights};

/// Every architecture there is.
pub(crate) const ALL: &[Architecture] = &[bert::BERT];

/// Name of the graph output with a row per token.
pub(crate) const TOKENS: &str = "last_hidden_state";
/// Name of the graph output with a row per sequence.
pub(crate) const POOLED: &str = "pooled";

/// How the models of one family are recognised, and drawn.
pub(crate) struct Architecture {
    /// `model_type` of their configuration.
    pub(crate) model_type: &'static str,
    /// What the names of their classes begin with.
    pub(crate) class_prefix: &'static str,
    /// What a model with a head puts before the names of its encoder's tensors.
    pub(crate) tensor_prefix: &'static str,
    /// Draws the encoder, from ids to the hidden state of every token.
    draw: fn(&mut Drawing<'_>, &ModelConfig) -> Result<turbo_graph::ValueId, ModelError>,
}

impl Architecture {
    /// The textbook graph of a model of this family, checked against its weights.
    pub(crate) fn graph(
        &self,
        config: &ModelConfig,
        weights: &Weights,
        pooling: Pooling,
    ) -> Result<Graph, ModelError> {
        let mut drawing = Drawing::new(self.model_type, weights);
        let tokens = (self.draw)(&mut drawing, config)?;
        drawing.graph.layer(None);
        let pooled = drawing.graph.pool(tokens, pooling)?;
        drawing.graph.output(TOKENS, tokens);
        drawing.graph.output(POOLED, pooled);
        drawing.finish()
    }
}
