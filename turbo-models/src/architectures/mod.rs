//! The models that can be drawn: one file each, and one line in [`ALL`].
//!
//! A file says how configurations name the family, what they call its sizes, and how the weights are drawn together.
//! What several families share stands beside them: [`post_norm`].

mod albert;
mod bert;
mod distilbert;
mod electra;
mod post_norm;
mod roberta;

use turbo_graph::Graph;

use crate::{ModelConfig, ModelError, Task, config_fields::ConfigFields, drawing::Drawing, weights::Weights};

/// Every architecture there is.
pub(crate) const ALL: &[Architecture] = &[
    bert::BERT,
    roberta::ROBERTA,
    roberta::XLM_ROBERTA,
    distilbert::DISTILBERT,
    electra::ELECTRA,
    albert::ALBERT,
];

/// Name of the graph output with the hidden state of every token.
pub(crate) const HIDDEN: &str = "last_hidden_state";
/// Name of the graph output with the logits of every token.
pub(crate) const TOKEN_LOGITS: &str = "token_logits";
/// Name of the graph output with a row per selected token.
pub(crate) const SELECTED: &str = "selected_logits";
/// Name of the graph output with a row per sequence.
pub(crate) const POOLED: &str = "pooled";

/// How the models of one family are recognised, read and drawn.
pub(crate) struct Architecture {
    /// What they are called; several names for one thing are one architecture.
    pub(crate) names: &'static [Name],
    /// What a model with a head puts before the names of its encoder's tensors.
    pub(crate) tensor_prefix: &'static str,
    /// What `config.json` calls their sizes.
    pub(crate) fields: ConfigFields,
    /// Draws the encoder, from ids to the hidden state of every token.
    draw: fn(&mut Drawing<'_>, &ModelConfig) -> Result<turbo_graph::ValueId, ModelError>,
}

/// How a configuration names its family.
pub(crate) struct Name {
    /// `model_type` of the configuration.
    pub(crate) model_type: &'static str,
    /// What the names of the model's classes begin with.
    pub(crate) class_prefix: &'static str,
}

impl Architecture {
    /// The textbook graph of a model of this family, checked against its weights.
    pub(crate) fn graph(
        &self,
        config: &ModelConfig,
        weights: &Weights,
        task: Task,
    ) -> Result<Graph, ModelError> {
        let Task::Embedding { pooling } = task else {
            let (model_type, supported) = (config.model_type.clone(), "embedding".to_owned());
            return Err(ModelError::Head { model_type, task, supported });
        };
        let mut drawing = Drawing::new(&config.model_type, weights);
        let tokens = (self.draw)(&mut drawing, config)?;
        drawing.graph.layer(None);
        let pooled = drawing.graph.pool(tokens, pooling)?;
        drawing.graph.output(HIDDEN, tokens);
        drawing.graph.output(POOLED, pooled);
        drawing.finish()
    }
}

#[cfg(test)]
mod tests {
    /// The README builds one of the files here.
    #[test]
    fn the_readme_shows_a_file_as_it_is() {
        let (_, shown) = include_str!("../../README.md").split_once("```rs\n").unwrap();
        let (shown, _) = shown.split_once("```\n").unwrap();
        assert!(shown.len() > 500 && include_str!("electra.rs").ends_with(shown), "{shown}");
    }
}
