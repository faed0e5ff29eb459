//! All operations, by protocol.

use serde_json::{Value, json};

use super::Operation;

/// Error statuses of a request about a model that may have to be loaded for it.
const LOADING: [u16; 4] = [400, 404, 503, 504];

/// Operations of text-embeddings-inference.
pub(in crate::http) mod tei {
    use super::*;

    const TAG: &str = "text-embeddings-inference";

    pub(in crate::http) fn embed() -> Operation {
        let summary = "A vector per input";
        Operation::new("embed", TAG, summary, "Vectors").timed().asks(
            "EmbedRequest",
            [
                ("text", json!({ "inputs": "What is a good soup?" })),
                ("texts", json!({ "inputs": ["a cat", "a dog"], "normalize": false, "truncate": true })),
                ("ids", json!({ "inputs": [[2, 5, 3], "a cat"], "dimensions": 2 })),
            ],
        )
    }

    pub(in crate::http) fn embed_all() -> Operation {
        let summary = "A vector per token of each input";
        Operation::new("embed_all", TAG, summary, "TokenVectors").timed().asks(
            "TokensRequest",
            [
                ("text", json!({ "inputs": "a cat", "truncation_direction": "left" })),
                ("ids", json!({ "inputs": [2, 5, 3] })),
            ],
        )
    }

    pub(in crate::http) fn embed_sparse() -> Operation {
        let summary = "The words that each input is about, with their weights (SPLADE)";
        Operation::new("embed_sparse", TAG, summary, "SparseVectors")
            .timed()
            .asks("TokensRequest", [("text", json!({ "inputs": ["a cat", [2, 5, 3]] }))])
    }

    pub(in crate::http) fn similarity() -> Operation {
        Operation::new("similarity", TAG, "How similar each sentence is to the source", "Similarities")
            .timed()
            .asks(
                "SimilarityRequest",
                [(
                    "sentences",
                    json!({
                        "inputs": { "source_sentence": "a cat", "sentences": ["a dog", "the soup"] },
                        "parameters": { "truncate": true },
                    }),
                )],
            )
    }

    pub(in crate::http) fn predict() -> Operation {
        let summary = "Scores of labels, the best first";
        Operation::new("predict", TAG, summary, "Predictions").timed().asks(
            "PredictRequest",
            [
                ("text", json!({ "inputs": "I like soup" })),
                ("pair", json!({ "inputs": ["soup is hot", "soup is cold"], "raw_scores": true })),
                ("batch", json!({ "inputs": [["a text"], ["one", "of a pair"]] })),
            ],
        )
    }

    pub(in crate::http) fn tokenize() -> Operation {
        let summary = "The tokens that texts are made of";
        Operation::new("tokenize", TAG, summary, "TokenLists")
            .asks("TokenizeRequest", [("text", json!({ "inputs": ["a cat"], "add_special_tokens": false }))])
    }

    pub(in crate::http) fn decode() -> Operation {
        let summary = "The texts that tokens make";
        Operation::new("decode", TAG, summary, "Texts").asks(
            "DecodeRequest",
            [
                ("one", json!({ "ids": [97, 98] })),
                ("several", json!({ "ids": [[97], [98, 99]], "skip_special_tokens": false })),
            ],
        )
    }

    pub(in crate::http) fn root(id: &'static str) -> Operation {
        let summary = "What the model is for: as the route of that task, or as /similarity where `inputs` has a `source_sentence`";
        Operation::new(id, TAG, summary, "AnyAnswer").timed().like_asked().asks(
            "AnyRequest",
            [
                ("text", json!({ "inputs": "a cat" })),
                ("sentences", json!({ "inputs": { "source_sentence": "a cat", "sentences": ["a dog"] } })),
                ("rank", json!({ "query": "pets", "texts": ["a cat", "a soup"] })),
            ],
        )
    }

    pub(in crate::http) fn vertex() -> Operation {
        let summary = "Several requests in one, as Vertex AI sends them: each is one for the model's route";
        Operation::new("vertex", TAG, summary, "VertexAnswer").like_asked().asks(
            "VertexRequest",
            [("two", json!({ "instances": [{ "inputs": "a cat" }, { "inputs": "a dog" }] }))],
        )
    }
}

/// Operations of rerankers.
pub(in crate::http) mod rerank {
    use super::*;

    const TAG: &str = "rerank";

    pub(in crate::http) fn any() -> Operation {
        let summary = "Texts ordered by how well they fit a query, in the fields of three APIs";
        Operation::new("rerank", TAG, summary, "AnyRanks").timed().like_asked().asks(
            "AnyRerankRequest",
            [
                ("texts", json!({ "query": "pets", "texts": ["a cat", "a soup"], "return_text": true })),
                (
                    "documents",
                    json!({ "query": "pets", "documents": ["a cat", { "text": "a soup" }], "top_n": 1 }),
                ),
            ],
        )
    }

    pub(in crate::http) fn documents(id: &'static str) -> Operation {
        let summary = "Documents ordered by how well they fit a query, as Cohere's and Jina's clients ask";
        Operation::new(id, TAG, summary, "Reranked").timed().like_rerank().asks(
            "DocumentsRequest",
            [
                (
                    "documents",
                    json!({ "model": "rerank", "query": "pets", "documents": ["a cat", "a soup"] }),
                ),
                (
                    "options",
                    json!({
                        "query": "pets", "documents": [{ "text": "a cat" }, "a soup"],
                        "top_n": 1, "return_documents": true, "max_tokens_per_doc": 4, "rank_fields": ["text"],
                    }),
                ),
            ],
        )
    }
}

/// Operations of OpenAI.
pub(in crate::http) mod openai {
    use super::*;

    const TAG: &str = "OpenAI";

    pub(in crate::http) fn embeddings(id: &'static str) -> Operation {
        let summary = "A vector per input";
        Operation::new(id, TAG, summary, "EmbeddingList").timed().like_openai().asks(
            "EmbeddingsRequest",
            [
                ("text", json!({ "model": "embed", "input": "a cat" })),
                (
                    "base64",
                    json!({ "model": "embed", "input": ["a cat", [2, 5, 3]], "encoding_format": "base64" }),
                ),
                (
                    "vLLM's",
                    json!({
                        "input": "a cat", "truncate_prompt_tokens": 8, "use_activation": false,
                        "add_special_tokens": true,
                    }),
                ),
            ],
        )
    }

    pub(in crate::http) fn models() -> Operation {
        Operation::new("models", TAG, "The names that a request may use", "ModelList").like_openai()
    }

    pub(in crate::http) fn model() -> Operation {
        let summary = "What one of these names stands for";
        Operation::new("model", TAG, summary, "Model").like_openai().with_parameter("name").refuses(&[404])
    }
}

/// Operations of Cohere.
pub(in crate::http) mod cohere {
    use super::*;

    const TAG: &str = "Cohere";

    pub(in crate::http) fn embed() -> Operation {
        let summary = "A vector per text, in each type that is asked for";
        Operation::new("embed_v2", TAG, summary, "VectorsByType").timed().like_openai().asks(
            "VectorsByTypeRequest",
            [
                (
                    "texts",
                    json!({ "model": "embed", "texts": ["a cat", "a dog"], "input_type": "search_document" }),
                ),
                (
                    "options",
                    json!({
                        "texts": ["a cat"], "embedding_types": ["float", "base64"], "truncate": "START",
                        "max_tokens": 8, "output_dimension": 2,
                    }),
                ),
            ],
        )
    }
}

/// Operations of vLLM's pooling models.
pub(in crate::http) mod vllm {
    use super::*;

    const TAG: &str = "vLLM";

    pub(in crate::http) fn classify() -> Operation {
        let summary = "The label of each input, and how likely every label is";
        Operation::new("classify", TAG, summary, "ClassList").timed().like_openai().asks(
            "ClassesRequest",
            [
                ("text", json!({ "input": "I like soup" })),
                (
                    "options",
                    json!({
                        "model": "classify", "input": ["a", [2, 5, 3]], "use_activation": false,
                        "truncate_prompt_tokens": -1, "add_special_tokens": true,
                    }),
                ),
            ],
        )
    }

    pub(in crate::http) fn pooling() -> Operation {
        let summary = "What the model makes of each input as a whole, or of each of its tokens";
        Operation::new("pooling", TAG, summary, "PoolingList").timed().like_openai().asks(
            "PoolingRequest",
            [
                ("text", json!({ "input": "a cat" })),
                ("tokens", json!({ "model": "embed", "input": ["a cat", [2, 5, 3]], "task": "token_embed" })),
                (
                    "options",
                    json!({
                        "input": "I like soup", "task": "classify", "use_activation": false,
                        "encoding_format": "base64", "truncate_prompt_tokens": -1,
                    }),
                ),
            ],
        )
    }

    pub(in crate::http) fn score(id: &'static str) -> Operation {
        let summary = "How well two texts go together: a score of each pair, or the cosine of their vectors";
        Operation::new(id, TAG, summary, "ScoreList").timed().like_openai().asks(
            "ScoreRequest",
            [
                ("documents", json!({ "queries": "pets", "documents": ["a cat", "a soup"] })),
                (
                    "pairs",
                    json!({ "model": "rerank", "text_1": ["pets", "food"], "text_2": ["a cat", "a soup"] }),
                ),
                (
                    "options",
                    json!({
                        "queries": "pets", "documents": "a cat", "use_activation": false,
                        "truncate_prompt_tokens": 8, "max_tokens_per_query": 2, "max_tokens_per_doc": 4,
                    }),
                ),
            ],
        )
    }
}

/// Operations of Hugging Face's inference clients.
pub(in crate::http) mod pipeline {
    use super::*;

    const TAG: &str = "Hugging Face";

    pub(in crate::http) fn feature_extraction() -> Operation {
        Operation::new("feature-extraction", TAG, "As /embed", "Vectors")
            .timed()
            .asks("EmbedRequest", [("text", json!({ "inputs": "a cat" }))])
    }

    pub(in crate::http) fn sentence_similarity() -> Operation {
        Operation::new("sentence-similarity", TAG, "As /similarity", "Similarities").timed().asks(
            "SimilarityRequest",
            [("sentences", json!({ "inputs": { "source_sentence": "a cat", "sentences": ["a dog"] } }))],
        )
    }

    pub(in crate::http) fn text_classification() -> Operation {
        let summary = "Scores of labels, the best first";
        Operation::new("text-classification", TAG, summary, "LabelLists").timed().asks("ClassificationRequest", [
            ("text", json!({ "inputs": "I like soup" })),
            ("best", json!({ "inputs": ["a", "b"], "parameters": { "top_k": 1, "function_to_apply": "sigmoid" } })),
        ])
    }

    pub(in crate::http) fn token_classification() -> Operation {
        let summary = "Words that have labels";
        Operation::new("token-classification", TAG, summary, "Entities").timed().asks(
            "EntitiesRequest",
            [
                ("text", json!({ "inputs": "Ada lives in London" })),
                ("tokens", json!({ "inputs": ["Ada"], "parameters": { "aggregation_strategy": "none" } })),
            ],
        )
    }

    pub(in crate::http) fn question_answering() -> Operation {
        let inputs = json!({ "question": "Where is Ada?", "context": "Ada lives in London." });
        let summary = "Where in a text an answer is";
        Operation::new("question-answering", TAG, summary, "Answers").timed().asks(
            "QuestionRequest",
            [
                ("one", json!({ "inputs": inputs })),
                ("two", json!({ "inputs": inputs, "parameters": { "top_k": 2, "max_answer_len": 4 } })),
            ],
        )
    }

    pub(in crate::http) fn fill_mask() -> Operation {
        let summary = "Words for a gap";
        Operation::new("fill-mask", TAG, summary, "Words").timed().asks(
            "GapRequest",
            [
                ("text", json!({ "inputs": "the [MASK] sat" })),
                ("best", json!({ "inputs": "the [MASK] sat", "parameters": { "top_k": 1 } })),
            ],
        )
    }
}

/// Operations of KServe's Open Inference Protocol v2.
pub(in crate::http) mod kserve {
    use super::*;

    const TAG: &str = "KServe";

    fn told(id: &'static str, summary: &'static str, schema: &str) -> Operation {
        Operation::new(id, TAG, summary, schema).like_kserve()
    }

    fn of_model(id: &'static str, summary: &'static str, schema: &str) -> Operation {
        told(id, summary, schema).with_parameter("name")
    }

    pub(in crate::http) fn server() -> Operation {
        told("kserve_server", "What the server is", "KserveServer")
    }

    pub(in crate::http) fn live() -> Operation {
        told("kserve_live", "Whether there is a server", "KserveLive").public()
    }

    pub(in crate::http) fn ready() -> Operation {
        told("kserve_ready", "Whether all models that are there answer", "KserveReady")
            .refuses(&[503])
            .public()
    }

    pub(in crate::http) fn metadata() -> Operation {
        of_model("kserve_model", "Tensors that a model reads and gives", "KserveModel").refuses(&LOADING)
    }

    pub(in crate::http) fn config() -> Operation {
        let summary = "The same as Triton's tools ask for it: sizes without that of the batch";
        of_model("kserve_model_config", summary, "KserveConfig").refuses(&LOADING)
    }

    pub(in crate::http) fn model_ready() -> Operation {
        of_model("kserve_model_ready", "Whether a model answers", "KserveReady").refuses(&[404, 503])
    }

    pub(in crate::http) fn all_statistics() -> Operation {
        told("kserve_statistics", "What all models have done", "KserveStatistics")
    }

    pub(in crate::http) fn statistics() -> Operation {
        of_model("kserve_model_statistics", "What a model has done", "KserveStatistics").refuses(&[404, 503])
    }

    pub(in crate::http) fn infer() -> Operation {
        let text = json!({ "name": "text", "datatype": "BYTES", "shape": [2], "data": ["a cat", "a dog"] });
        let ids = |name: &str, data: Value| json!({ "name": name, "datatype": "INT64", "shape": [2, 3], "data": data });
        let summary = "Tensors for tensors: a text or ids per row, as JSON, or as bytes behind it where \
            `Inference-Header-Content-Length` says how long the JSON is";
        of_model("kserve_infer", summary, "KserveAnswer")
            .timed()
            .asks(
                "KserveRequest",
                [
                    ("texts", json!({ "id": "7", "inputs": [text], "parameters": { "truncate": true } })),
                    (
                        "ids",
                        json!({ "inputs": [
                            ids("input_ids", json!([[2, 5, 3], [2, 3, 0]])),
                            ids("attention_mask", json!([1, 1, 1, 1, 1, 0])),
                        ] }),
                    ),
                ],
            )
            .or_bytes()
    }

    pub(in crate::http) fn index() -> Operation {
        told("kserve_index", "All versions of all models, and their states", "KserveIndex")
            .may_ask("KserveIndexRequest", [("ready", json!({ "ready": true }))])
            .refuses(&[400, 408, 413, 415, 422, 429])
    }

    pub(in crate::http) fn load() -> Operation {
        of_model("kserve_load", "Loads a model, or one version of it (`name/version`)", "KserveDone")
            .may_ask("KserveChange", [("plain", json!({ "parameters": {} }))])
            .refuses(&[400, 404, 408, 413, 415, 422, 429, 503])
    }

    pub(in crate::http) fn unload() -> Operation {
        of_model("kserve_unload", "Unloads a model, or one version of it, once it has answered", "KserveDone")
            .may_ask("KserveChange", [("triton", json!({ "parameters": { "unload_dependents": false } }))])
            .refuses(&[400, 404, 408, 413, 415, 422, 429])
    }
}

/// Operations about the server.
pub(in crate::http) mod server {
    use super::*;

    const TAG: &str = "server";

    pub(in crate::http) fn info() -> Operation {
        Operation::new("info", TAG, "What is served, and within which limits", "Info").refuses(&LOADING)
    }

    pub(in crate::http) fn health(id: &'static str) -> Operation {
        Operation::nothing(id, TAG, "Whether requests are answered").refuses(&[404, 503]).public()
    }

    pub(in crate::http) fn metrics() -> Operation {
        Operation::text("metrics", TAG, "Metrics for Prometheus", "text/plain").public()
    }

    pub(in crate::http) fn openapi(id: &'static str) -> Operation {
        Operation::new(id, TAG, "This document", "Document").public()
    }

    pub(in crate::http) fn page() -> Operation {
        Operation::text("docs", TAG, "This document as a page", "text/html").public()
    }

    pub(in crate::http) fn dashboard() -> Operation {
        Operation::text("dashboard", TAG, "A page that shows what the server does", "text/html").public()
    }

    pub(in crate::http) fn dashboard_data() -> Operation {
        Operation::new("dashboard_data", TAG, "What that page shows of a model", "DashboardData")
            .refuses(&[404])
    }
}
