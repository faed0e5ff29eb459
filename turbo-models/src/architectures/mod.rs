//! The supported model families: one file each, and one line in [`ALL`].
//!
//! A file says how configurations name the family, what they call its sizes, and how its weights are drawn as a graph.
//! What several families share has files of its own: [`post_norm`], [`decoder`], [`attention`], [`rotary`] positions,
//! [`global_layers`], and [`heads`].

mod albert;
mod attention;
mod bert;
mod deberta_v2;
mod decoder;
mod dense;
mod distilbert;
mod electra;
mod gemma3;
mod global_layers;
mod gte;
mod heads;
mod jina_bert;
mod llama;
mod logit_score;
mod mistral;
mod modernbert;
mod mpnet;
mod nomic;
mod post_norm;
mod qwen2;
mod qwen3;
mod roberta;
mod rotary;

use half::f16;
use turbo_graph::{Graph, Pooling, kernels::Float};

pub(crate) use self::dense::prefix as dense_prefix;
use self::heads::{Head, Step};
use crate::{
    ModelConfig, ModelError, Outputs, Task,
    config::ConfigFields,
    drawing::Drawing,
    modules::SentenceModules,
    rows::{HIDDEN, POOLED, SELECTED, TOKEN_LOGITS},
    weights::Weights,
};

/// All supported architectures.
pub(crate) const ALL: &[Architecture] = &[
    jina_bert::JINA_BERT,
    bert::BERT,
    roberta::ROBERTA,
    roberta::XLM_ROBERTA,
    distilbert::DISTILBERT,
    electra::ELECTRA,
    albert::ALBERT,
    mpnet::MPNET,
    deberta_v2::DEBERTA_V2,
    modernbert::MODERNBERT,
    nomic::NOMIC,
    gte::GTE,
    gte::GTE_OF_LIBRARY,
    qwen3::QWEN3,
    qwen3::PPLX,
    qwen2::QWEN2,
    llama::LLAMA,
    llama::BIDIRECTIONAL,
    mistral::MISTRAL,
    gemma3::GEMMA3,
];

/// How the models of one family are recognised, read and drawn.
pub(crate) struct Architecture {
    /// Names of the family; several names for the same thing are one architecture.
    pub(crate) names: &'static [Name],
    /// What a model with a head puts before the names of its encoder's tensors. Each prefix is stripped if it is there,
    /// in this order.
    pub(crate) tensor_prefixes: &'static [&'static str],
    /// What `config.json` calls their sizes.
    pub(crate) fields: ConfigFields,
    /// How large the values between its operations become.
    activations: ActivationRange,
    /// What may follow the encoder, besides pooling.
    heads: &'static [Head],
    /// Draws the encoder, from ids to the hidden state of every token.
    draw: fn(&mut Drawing<'_>, &ModelConfig) -> Result<turbo_graph::ValueId, ModelError>,
}

/// How large the activations of a family become.
enum ActivationRange {
    /// f16 holds them, as all wider types do.
    WithinF16,
    /// They exceed the greatest f16: stored as f16 they would become infinite, and what follows from them NaN.
    BeyondF16,
}

/// How a configuration names its family.
pub(crate) struct Name {
    /// `model_type` of the configuration.
    pub(crate) model_type: &'static str,
    /// What the names of the model's classes begin with.
    pub(crate) class_prefix: &'static str,
}

impl Architecture {
    /// Whether the values of its vectors become whole numbers if no list of modules says what becomes of them. Like
    /// text-embeddings-inference, this looks at the family alone.
    pub(crate) fn makes_whole_numbers(&self) -> bool {
        self.names.iter().any(|name| name.model_type == qwen3::PPLX_TYPE)
    }

    /// The textbook graph of a model of this family, checked against its weights, with those of the outputs of `task`
    /// that `outputs` asks for. The dense `modules` follow the pooling of an embedding, and a module that makes a score
    /// replaces the family's own classifier.
    pub(crate) fn graph(
        &self,
        config: &ModelConfig,
        weights: &Weights,
        modules: &SentenceModules,
        task: Task,
        outputs: Outputs,
    ) -> Result<Graph, ModelError> {
        let mut drawing = Drawing::new(&config.model_type, weights);
        heads::stand_in_for_table(self.heads, &mut drawing, config)?;
        let hidden = (self.draw)(&mut drawing, config)?;
        drawing.graph.layer(None);
        let result = match (task, modules.score) {
            (Task::Embedding { pooling }, _) => {
                if outputs == Outputs::All {
                    drawing.graph.output(HIDDEN, hidden);
                }
                let pooled = drawing.graph.pool(hidden, pooling)?;
                let columns = drawing.graph.columns(pooled).unwrap_or(config.hidden_size);
                dense::draw(&mut drawing, &modules.dense, pooled, columns)?
            }
            (Task::SequenceClassification, Some(score)) => {
                logit_score::draw(&mut drawing, config, score, hidden)?
            }
            _ => heads::draw(self.heads, &mut drawing, config, task, hidden)?,
        };
        drawing.graph.output(output(task), result);
        drawing.finish()
    }

    /// Refuses a device whose float type `F` cannot hold the activations of the family.
    ///
    /// # Errors
    /// [`ModelError::Range`].
    pub(crate) fn check_float<F: Float>(&self, config: &ModelConfig) -> Result<(), ModelError> {
        match self.activations {
            ActivationRange::BeyondF16 if F::GREATEST <= f16::GREATEST => Err(ModelError::Range {
                model_type: config.model_type.clone(),
                float: F::NAME,
                supported: "f32, bf16",
            }),
            ActivationRange::BeyondF16 | ActivationRange::WithinF16 => Ok(()),
        }
    }

    /// The padding id, if `task` reads the last token of an input: the reference takes the last one that is not
    /// padding.
    ///
    /// # Errors
    /// If the other tokens would see the padding that is dropped then.
    pub(crate) fn padding_id(&self, config: &ModelConfig, task: Task) -> Result<Option<u32>, ModelError> {
        let reads_last = |head: &Head| {
            head.task == task && head.steps.iter().any(|step| matches!(step, Step::Pool(Pooling::LastToken)))
        };
        if !self.heads.iter().any(reads_last) {
            return Ok(None);
        }
        // some files say -1 for none
        let id = config.optional::<i64>("pad_token_id")?.and_then(|id| u32::try_from(id).ok());
        if id.is_some() {
            decoder::refuse_full_attention(config)?;
        }
        Ok(id)
    }
}

/// Name of the graph output with the result of `task`.
fn output(task: Task) -> &'static str {
    match task {
        Task::Embedding { .. } | Task::SparseEmbedding | Task::SequenceClassification => POOLED,
        Task::TokenClassification | Task::QuestionAnswering => TOKEN_LOGITS,
        Task::MaskedLm => SELECTED,
    }
}

#[cfg(test)]
mod tests {
    /// The README quotes one of the files here.
    #[test]
    fn the_readme_shows_a_file_as_it_is() {
        let file = include_str!("electra.rs");
        let mut shown = include_str!("../../README.md").split("```rs\n").skip(1).map(|rest| {
            let (shown, _) = rest.split_once("```\n").unwrap();
            shown
        });
        let (architecture, head) = (shown.next().unwrap(), shown.next().unwrap());
        assert!(architecture.len() > 500 && file.ends_with(architecture), "{architecture}");
        let head: String = head.lines().map(|line| format!("    {line}\n")).collect();
        assert!(head.len() > 300 && file.contains(&head), "{head}");
    }
}
