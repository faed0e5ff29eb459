//! What text-embeddings-inference is started with and turbo has no flag of its own for, so that a command line or a
//! Compose file of it starts turbo. What means nothing here is taken, too, and said to mean nothing.

use clap::Args;
use turbo_serve::http::{RootTask, VertexPaths};

use super::{model_arguments::ModelArguments, number::port};

/// Its flags and variables. All but the first are hidden from the help: they are for existing command lines.
#[derive(Args, Clone)]
pub(super) struct TeiArguments {
    /// Name of the model that clients see
    ///
    /// By default, the last part of `--model-id`. Models in a configuration file have their names there.
    #[arg(long, env, value_name = "NAME", help_heading = "Model")]
    served_model_name: Option<String>,
    /// The former name of `--hf-token`
    #[arg(long, env, hide = true, hide_env_values = true)]
    hf_api_token: Option<String>,
    /// With `sentence-similarity`, `POST /` compares texts where the model gives vectors
    #[arg(long, env, hide = true)]
    task: Option<String>,
    /// Port to listen on, whatever `--port` says: Vertex AI's choice
    #[arg(long, env, hide = true, value_parser = port)]
    aip_http_port: Option<u16>,
    /// Path beside `/vertex`
    #[arg(long, env, hide = true, value_parser = path)]
    aip_predict_route: Option<String>,
    /// Path beside `/health`
    #[arg(long, env, hide = true, value_parser = path)]
    aip_health_route: Option<String>,

    /// Accepted and ignored
    #[arg(long, env, hide = true)]
    disable_spans: bool,
    /// Accepted and ignored
    #[arg(long, env, hide = true)]
    prometheus_port: Option<String>,
    /// Accepted and ignored
    #[arg(long, env, hide = true)]
    use_flash_attention: Option<String>,
}

impl TeiArguments {
    /// A line for everything that was set and means nothing, with the reason.
    pub(super) fn warnings(&self) -> Vec<String> {
        let all = [
            (self.disable_spans, "--disable-spans", "spans are not in the log"),
            (self.prometheus_port.is_some(), "--prometheus-port", "metrics are at /metrics of the main port"),
            (
                self.use_flash_attention.is_some(),
                "USE_FLASH_ATTENTION",
                "attention is always fused, without padding",
            ),
        ];
        let ignored = all.iter().filter(|(set, ..)| *set);
        ignored.map(|(_, name, why)| format!("{name} means nothing here: {why}")).collect()
    }

    /// The name that clients see, where one was chosen.
    pub(super) fn served_model_name(&self) -> Option<&str> {
        self.served_model_name.as_deref().filter(|name| !name.is_empty())
    }

    /// The model, with the token that was given under its old name where there is no other.
    pub(super) fn with_token(&self, model: &ModelArguments) -> ModelArguments {
        // Scripts pass what a variable holds, be it nothing.
        let hf_token = model.hf_token.clone().filter(|token| !token.is_empty()).or(self.hf_api_token.clone());
        ModelArguments { hf_token, ..model.clone() }
    }

    /// The port of the platform's choice.
    pub(super) fn port(&self) -> Option<u16> {
        self.aip_http_port
    }

    /// The paths of the platform's choice.
    pub(super) fn vertex_paths(&self) -> VertexPaths {
        VertexPaths { predict: self.aip_predict_route.clone(), health: self.aip_health_route.clone() }
    }

    /// What `POST /` means. Other tasks than the one looked for follow from the model.
    pub(super) fn root_task(&self) -> RootTask {
        match self.task.as_deref() {
            Some("sentence-similarity") => RootTask::Similarity,
            _ => RootTask::Vectors,
        }
    }
}

fn path(text: &str) -> Result<String, String> {
    if text.starts_with('/') {
        Ok(text.to_owned())
    } else {
        Err("expected a path that begins with `/`".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        tei: TeiArguments,
    }

    fn parse(arguments: &[&str]) -> TeiArguments {
        Line::parse_from([&["turbo"], arguments].concat()).tei
    }

    #[test]
    fn what_means_nothing_is_said_once_and_why() {
        assert!(parse(&[]).warnings().is_empty());
        for (argument, said) in [
            ("--disable-spans", "--disable-spans means nothing here: spans"),
            ("--prometheus-port=9000", "--prometheus-port means nothing here: metrics are at /metrics"),
            ("--use-flash-attention=False", "USE_FLASH_ATTENTION means nothing here: attention is always"),
        ] {
            let warnings = parse(&[argument]).warnings();
            assert!(warnings.len() == 1 && warnings[0].starts_with(said), "{argument}: {warnings:?}");
        }
    }

    #[test]
    fn only_one_task_changes_the_root() {
        assert_eq!(parse(&[]).root_task(), RootTask::Vectors);
        assert_eq!(parse(&["--task=feature-extraction"]).root_task(), RootTask::Vectors);
        assert_eq!(parse(&["--task=sentence-similarity"]).root_task(), RootTask::Similarity);
    }

    #[test]
    fn a_route_is_a_path() {
        let paths = parse(&["--aip-predict-route=/v1/x:predict", "--aip-health-route=/up"]).vertex_paths();
        assert_eq!(paths, VertexPaths { predict: Some("/v1/x:predict".into()), health: Some("/up".into()) });
        assert!(Line::try_parse_from(["turbo", "--aip-predict-route=predict"]).is_err());
    }
}
