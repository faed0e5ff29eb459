//! The schemas of bodies and answers. For an optional field, `null` counts as leaving it out; fields that are not named
//! are ignored.

use serde_json::{Value, json};

use crate::http::vllm::NAMES;

fn of(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn some(items: Value) -> Value {
    json!({ "type": "array", "items": items, "minItems": 1 })
}

fn any<const N: usize>(schemas: [Value; N]) -> Value {
    json!({ "anyOf": Vec::from(schemas) })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn number() -> Value {
    json!({ "type": "number" })
}

fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

/// The schema of an optional field.
fn maybe(kind: &str) -> Value {
    json!({ "type": [kind, "null"] })
}

fn maybe_from(minimum: u32) -> Value {
    json!({ "type": ["integer", "null"], "minimum": minimum })
}

fn maybe_one_of<const N: usize>(words: [&str; N]) -> Value {
    let words = words.map(Value::from).into_iter().chain([Value::Null]);
    json!({ "enum": words.collect::<Vec<_>>() })
}

/// The schema of an object, with the fields that it must have.
fn object<const N: usize>(properties: Value, required: [&str; N]) -> Value {
    json!({ "type": "object", "properties": properties, "required": Vec::from(required) })
}

/// All schemas, by name.
pub(super) fn all() -> Value {
    let mut all = json!({});
    for part in
        [inputs(), tei(), rerank(), openai(), cohere(), vllm(), pipeline(), kserve(), server(), errors()]
    {
        let Value::Object(part) = part else { unreachable!("every part is an object") };
        all.as_object_mut().expect("it is one, too").extend(part);
    }
    all
}

fn inputs() -> Value {
    let id = json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX });
    json!({
        "Ids": some(id),
        "Inputs": any([text(), of("Ids"), some(any([text(), of("Ids")]))]),
        "TextOrTexts": any([text(), some(text())]),
        "Direction": maybe_one_of(["Left", "left", "Right", "right"]),
    })
}

fn tei() -> Value {
    let sentences = object(
        json!({ "source_sentence": text(), "sentences": some(text()) }),
        ["source_sentence", "sentences"],
    );
    let parameters = json!({
        "type": ["object", "null"],
        "properties": {
            "truncate": maybe("boolean"), "truncation_direction": of("Direction"), "prompt_name": maybe("string"),
        },
    });
    let one_or_two = json!({ "type": "array", "items": text(), "minItems": 1, "maxItems": 2 });
    let prediction = object(json!({ "score": number(), "label": text() }), ["score", "label"]);
    let token = json!({
        "id": count(), "text": text(), "special": { "type": "boolean" },
        "start": maybe_from(0), "stop": maybe_from(0),
    });
    let weight = object(json!({ "index": count(), "value": number() }), ["index", "value"]);
    json!({
        "EmbedRequest": object(
            json!({
                "inputs": of("Inputs"), "truncate": maybe("boolean"), "truncation_direction": of("Direction"),
                "prompt_name": maybe("string"), "normalize": maybe("boolean"), "dimensions": maybe_from(1),
            }),
            ["inputs"],
        ),
        "Vectors": list(list(number())),
        "TokensRequest": object(
            json!({
                "inputs": of("Inputs"), "truncate": maybe("boolean"), "truncation_direction": of("Direction"),
                "prompt_name": maybe("string"),
            }),
            ["inputs"],
        ),
        "TokenVectors": list(list(list(number()))),
        "SparseVectors": list(list(weight)),
        "SimilarityRequest": object(json!({ "inputs": sentences, "parameters": parameters }), ["inputs"]),
        "Similarities": list(json!({ "type": "number", "minimum": -1, "maximum": 1 })),
        "PredictRequest": object(
            json!({
                "inputs": any([text(), one_or_two.clone(), some(one_or_two)]), "truncate": maybe("boolean"),
                "truncation_direction": of("Direction"), "raw_scores": maybe("boolean"),
                "parameters": { "type": ["object", "null"], "properties": { "candidate_labels": { "type": "null" } } },
            }),
            ["inputs"],
        ),
        "Predictions": any([some(prediction.clone()), some(some(prediction))]),
        "TokenizeRequest": object(
            json!({
                "inputs": of("TextOrTexts"), "add_special_tokens": maybe("boolean"), "prompt_name": maybe("string"),
            }),
            ["inputs"],
        ),
        "TokenLists": list(list(object(token, ["id", "text", "special", "start", "stop"]))),
        "DecodeRequest": object(
            json!({
                "ids": any([of("Ids"), some(of("Ids"))]),
                "skip_special_tokens": maybe("boolean"),
            }),
            ["ids"],
        ),
        "Texts": list(text()),
        "AnyRequest": json!({ "type": "object" }),
        "AnyAnswer": json!({ "type": ["array", "object"] }),
        "VertexRequest": object(json!({ "instances": list(of("AnyRequest")) }), ["instances"]),
        "VertexAnswer": object(json!({ "predictions": list(of("AnyAnswer")) }), ["predictions"]),
    })
}

fn rerank() -> Value {
    let rank = json!({ "index": count(), "score": number(), "text": text() });
    let document = any([text(), object(json!({ "text": text() }), ["text"])]);
    let result = json!({
        "index": count(), "relevance_score": { "type": "number", "minimum": 0, "maximum": 1 },
        "document": object(json!({ "text": text() }), ["text"]),
    });
    let meta = json!({
        "api_version": object(json!({ "version": text() }), ["version"]),
        "billed_units": object(json!({ "search_units": count() }), ["search_units"]),
        "tokens": object(json!({ "input_tokens": count() }), ["input_tokens"]),
    });
    let reranked = json!({
        "id": text(), "object": { "const": "list" }, "model": text(),
        "results": some(object(result, ["index", "relevance_score"])),
        "meta": object(meta, ["api_version", "billed_units", "tokens"]), "usage": of("Usage"),
    });
    json!({
        "TextsRequest": object(
            json!({
                "query": text(), "texts": some(text()), "truncate": maybe("boolean"),
                "truncation_direction": of("Direction"), "raw_scores": maybe("boolean"),
                "return_text": maybe("boolean"),
            }),
            ["query", "texts"],
        ),
        "Ranks": some(object(rank, ["index", "score"])),
        "DocumentsRequest": object(
            json!({
                "model": maybe("string"), "query": text(), "documents": some(document), "top_n": maybe_from(1),
                "return_documents": maybe("boolean"), "max_tokens_per_doc": maybe_from(1),
                "rank_fields": { "enum": [["text"], null] }, "instruction": maybe("string"),
                "padding": maybe_one_of(["do_not_pad"]), "chat_template_kwargs": { "type": "null" },
            }),
            ["query", "documents"],
        ),
        "Reranked": object(reranked, ["id", "object", "model", "results", "meta", "usage"]),
        "AnyRerankRequest": any([of("TextsRequest"), of("DocumentsRequest")]),
        "AnyRanks": any([of("Ranks"), of("Reranked")]),
    })
}

fn openai() -> Value {
    let embedding = json!({
        "object": { "const": "embedding" },
        "embedding": any([list(number()), json!({ "type": "string", "contentEncoding": "base64" })]),
        "index": count(),
    });
    let model = json!({
        "id": text(), "object": { "const": "model" }, "created": count(), "owned_by": text(), "root": text(),
    });
    json!({
        "EmbeddingsRequest": object(
            with_extensions(json!({
                "input": of("Inputs"), "dimensions": maybe_from(1),
                "encoding_format": maybe_one_of(["float", "base64"]), "messages": { "type": "null" },
                "prompt_name": maybe("string"), "use_activation": maybe("boolean"), "normalize": maybe("boolean"),
                "add_special_tokens": { "enum": [true, null] }, "embed_dtype": maybe("string"),
                "endianness": maybe_one_of(["native", "little", "big"]),
            })),
            ["input"],
        ),
        "EmbeddingList": object(
            json!({
                "object": { "const": "list" }, "data": list(object(embedding, ["object", "embedding", "index"])),
                "model": text(), "usage": of("Usage"),
            }),
            ["object", "data", "model", "usage"],
        ),
        "Usage": object(json!({ "prompt_tokens": count(), "total_tokens": count() }), ["prompt_tokens", "total_tokens"]),
        "Model": object(model, ["id", "object", "created", "owned_by", "root"]),
        "ModelList": object(json!({ "object": { "const": "list" }, "data": list(of("Model")) }), ["object", "data"]),
    })
}

fn cohere() -> Value {
    let types = list(json!({ "enum": ["float", "base64", "binary", "ubinary"] }));
    let of_bits =
        |least: i32| list(list(json!({ "type": "integer", "minimum": least, "maximum": least + 255 })));
    let tokens = object(json!({ "input_tokens": count() }), ["input_tokens"]);
    let meta = json!({
        "api_version": object(json!({ "version": text() }), ["version"]), "billed_units": tokens, "tokens": tokens,
    });
    json!({
        "VectorsByTypeRequest": object(
            json!({
                "model": maybe("string"), "texts": of("TextOrTexts"), "images": { "type": "null" },
                "inputs": { "type": "null" }, "input_type": maybe("string"),
                "embedding_types": any([types, json!({ "type": "null" })]),
                "truncate": maybe_one_of(["END", "START", "NONE"]), "max_tokens": maybe_from(1),
                "output_dimension": maybe_from(1),
            }),
            ["texts"],
        ),
        "VectorsByType": object(
            json!({
                "id": text(),
                "embeddings": object(
                    json!({
                        "float": list(list(number())),
                        "base64": list(json!({ "type": "string", "contentEncoding": "base64" })),
                        "binary": of_bits(-128), "ubinary": of_bits(0),
                    }),
                    [],
                ),
                "texts": list(text()), "meta": object(meta, ["api_version", "billed_units", "tokens"]),
                "response_type": { "const": "embeddings_by_type" },
            }),
            ["id", "embeddings", "texts", "meta", "response_type"],
        ),
    })
}

/// A route's own fields, with those that all of vLLM's routes share.
fn with_extensions(own: Value) -> Value {
    let mut all = json!({
        "model": maybe("string"), "truncate_prompt_tokens": any([json!({ "const": -1 }), maybe_from(1)]),
        "truncation_side": maybe_one_of(["left", "right"]), "padding": maybe_one_of(["do_not_pad"]),
    });
    if let (Some(all), Value::Object(own)) = (all.as_object_mut(), own) {
        all.extend(own);
    }
    all
}

fn vllm() -> Value {
    let mut asked = json!({
        "use_activation": maybe("boolean"), "activation": maybe("boolean"), "softmax": maybe("boolean"),
        "request_id": maybe("string"),
        "max_tokens_per_query": maybe_from(0), "max_tokens_per_doc": maybe_from(0),
        "instruction": maybe("string"), "chat_template_kwargs": { "type": "null" },
    });
    for (first, second) in NAMES {
        (asked[first], asked[second]) = (of("TextOrTexts"), of("TextOrTexts"));
    }
    let mut request = object(with_extensions(asked), []);
    request["oneOf"] = NAMES
        .map(|pair| {
            let names = NAMES.iter().flat_map(|&(first, second)| [first, second]);
            let others = names.filter(|name| ![pair.0, pair.1].contains(name));
            let others: Vec<Value> = others.map(|name| json!({ "required": [name] })).collect();
            json!({ "required": [pair.0, pair.1], "not": { "anyOf": others } })
        })
        .into();
    let score = json!({ "index": count(), "object": { "const": "score" }, "score": number() });
    let classified = with_extensions(json!({
        "input": of("Inputs"), "messages": { "type": "null" }, "add_special_tokens": { "enum": [true, null] },
        "use_activation": maybe("boolean"), "activation": maybe("boolean"), "softmax": maybe("boolean"),
        "request_id": maybe("string"),
    }));
    let class = json!({
        "index": count(), "label": maybe("string"), "probs": some(number()), "num_classes": count(),
    });
    let pooled = with_extensions(json!({
        "input": of("Inputs"), "messages": { "type": "null" }, "data": { "type": "null" },
        "dimensions": { "type": "null" }, "add_special_tokens": { "enum": [true, null] },
        "task": maybe_one_of(["embed", "token_embed", "classify", "token_classify"]),
        "encoding_format": maybe_one_of(["float", "base64"]), "embed_dtype": maybe("string"),
        "endianness": maybe_one_of(["native", "little", "big"]),
        "use_activation": maybe("boolean"), "activation": maybe("boolean"), "softmax": maybe("boolean"),
        "normalize": maybe("boolean"), "request_id": maybe("string"),
    }));
    let values =
        any([list(number()), list(list(number())), json!({ "type": "string", "contentEncoding": "base64" })]);
    let rows = json!({ "index": count(), "object": { "const": "pooling" }, "data": values });
    json!({
        "PoolingRequest": object(pooled, ["input"]),
        "PoolingList": scored_list(object(rows, ["index", "object", "data"])),
        "ClassesRequest": object(classified, ["input"]),
        "ClassList": scored_list(object(class, ["index", "label", "probs", "num_classes"])),
        "ScoreRequest": request,
        "ScoreList": scored_list(object(score, ["index", "object", "score"])),
    })
}

/// vLLM's list of one item per input.
fn scored_list(item: Value) -> Value {
    object(
        json!({
            "id": text(), "object": { "const": "list" }, "created": count(), "model": text(), "data": some(item),
            "usage": of("Usage"),
        }),
        ["id", "object", "created", "model", "data", "usage"],
    )
}

fn pipeline() -> Value {
    let parameters = |properties: Value| json!({ "type": ["object", "null"], "properties": properties });
    let label = object(json!({ "label": text(), "score": number() }), ["label", "score"]);
    let place = json!({ "score": number(), "word": text(), "start": count(), "end": count() });
    let (mut token, mut group) = (place.clone(), place);
    (token["entity"], token["index"], group["entity_group"]) = (text(), count(), text());
    let entity = any([
        object(token, ["entity", "score", "index", "word", "start", "end"]),
        object(group, ["entity_group", "score", "word", "start", "end"]),
    ]);
    let answer = json!({ "score": number(), "start": count(), "end": count(), "answer": text() });
    let answer = object(answer, ["score", "start", "end", "answer"]);
    let word = json!({ "score": number(), "token": count(), "token_str": text(), "sequence": text() });
    let word = object(word, ["score", "token", "token_str", "sequence"]);
    json!({
        "ClassificationRequest": object(
            json!({
                "inputs": of("TextOrTexts"),
                "parameters": parameters(json!({
                    "function_to_apply": maybe_one_of(["sigmoid", "softmax", "none"]), "top_k": maybe_from(1),
                    "candidate_labels": { "type": "null" },
                })),
            }),
            ["inputs"],
        ),
        "LabelLists": list(list(label)),
        "EntitiesRequest": object(
            json!({
                "inputs": of("TextOrTexts"),
                "parameters": parameters(json!({
                    "aggregation_strategy": maybe_one_of(["none", "simple", "first", "average", "max"]),
                    "ignore_labels": { "type": ["array", "null"], "items": text() },
                    "stride": { "enum": [0, null] },
                })),
            }),
            ["inputs"],
        ),
        "Entities": any([list(entity.clone()), list(list(entity))]),
        "QuestionRequest": object(
            json!({
                "inputs": object(json!({ "question": text(), "context": text() }), ["question", "context"]),
                "parameters": parameters(json!({
                    "top_k": maybe_from(1), "doc_stride": maybe_from(0), "max_answer_len": maybe_from(1),
                    "max_seq_len": maybe_from(1), "handle_impossible_answer": maybe("boolean"),
                    "align_to_words": maybe("boolean"),
                })),
            }),
            ["inputs"],
        ),
        "Answers": any([answer.clone(), list(answer)]),
        "GapRequest": object(
            json!({
                "inputs": text(),
                "parameters": parameters(json!({
                    "top_k": maybe_from(1), "targets": { "type": ["array", "null"], "items": text(), "minItems": 1 },
                })),
            }),
            ["inputs"],
        ),
        "Words": any([list(word.clone()), list(list(word))]),
    })
}

fn kserve() -> Value {
    let parameters = json!({ "type": ["object", "null"] });
    let datatype = json!({ "enum": ["BYTES", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"] });
    let shape = list(json!({ "type": "integer", "minimum": 0 }));
    let data = json!({ "type": ["array", "null"] });
    let input = json!({
        "name": text(), "datatype": datatype, "shape": shape, "parameters": parameters, "data": data,
    });
    let wanted = object(json!({ "name": text(), "parameters": parameters }), ["name"]);
    let output = json!({
        "name": text(), "datatype": { "enum": ["FP32", "INT64", "BYTES"] }, "shape": shape,
        "parameters": object(json!({ "binary_data_size": count() }), ["binary_data_size"]), "data": { "type": "array" },
    });
    let tensor = json!({ "name": text(), "datatype": text(), "shape": list(json!({ "type": "integer", "minimum": -1 })) });
    let tensors = list(object(tensor, ["name", "datatype", "shape"]));
    let configured = json!({
        "name": text(), "data_type": text(), "dims": some(json!({ "type": "integer", "minimum": -1 })),
    });
    let configured = list(object(configured, ["name", "data_type", "dims"]));
    let spent = object(json!({ "count": count(), "ns": count() }), ["count", "ns"]);
    let batch = json!({
        "batch_size": count(), "compute_input": spent, "compute_infer": spent, "compute_output": spent,
    });
    let batch = object(batch, ["batch_size", "compute_input", "compute_infer", "compute_output"]);
    let phases = [
        "success",
        "fail",
        "queue",
        "compute_input",
        "compute_infer",
        "compute_output",
        "cache_hit",
        "cache_miss",
    ];
    let inference = phases.map(|phase| (phase.to_owned(), spent.clone())).into_iter().collect();
    let statistics = json!({
        "name": text(), "version": text(), "last_inference": count(), "inference_count": count(),
        "execution_count": count(), "inference_stats": object(Value::Object(inference), phases),
        "batch_stats": list(batch),
    });
    let statistics = object(
        statistics,
        [
            "name",
            "version",
            "last_inference",
            "inference_count",
            "execution_count",
            "inference_stats",
            "batch_stats",
        ],
    );
    let state = json!({ "enum": ["READY", "LOADING", "UNLOADING", "UNAVAILABLE"] });
    let indexed = json!({ "name": text(), "version": text(), "state": state, "reason": text() });
    json!({
        "KserveServer": object(
            json!({ "name": text(), "version": text(), "extensions": list(text()) }),
            ["name", "version", "extensions"],
        ),
        "KserveLive": object(json!({ "live": { "const": true } }), ["live"]),
        "KserveReady": object(json!({ "name": text(), "ready": { "const": true } }), ["ready"]),
        "KserveModel": object(
            json!({
                "name": text(), "versions": some(text()), "platform": text(), "inputs": tensors, "outputs": tensors,
            }),
            ["name", "versions", "platform", "inputs", "outputs"],
        ),
        "KserveConfig": object(
            json!({
                "name": text(), "platform": text(), "backend": text(), "max_batch_size": count(),
                "input": configured, "output": configured,
            }),
            ["name", "platform", "backend", "max_batch_size", "input", "output"],
        ),
        "KserveRequest": object(
            json!({
                "id": maybe("string"), "parameters": parameters,
                "inputs": some(object(input, ["name", "datatype", "shape"])),
                "outputs": { "type": ["array", "null"], "items": wanted },
            }),
            ["inputs"],
        ),
        "KserveAnswer": object(
            json!({
                "model_name": text(), "model_version": text(), "id": text(),
                "outputs": list(object(output, ["name", "datatype", "shape"])),
            }),
            ["model_name", "model_version", "outputs"],
        ),
        "KserveStatistics": object(json!({ "model_stats": list(statistics) }), ["model_stats"]),
        "KserveIndexRequest": object(json!({ "ready": maybe("boolean") }), []),
        "KserveIndex": list(object(indexed, ["name", "version", "state", "reason"])),
        "KserveChange": object(json!({ "parameters": parameters }), []),
        "KserveDone": object(json!({}), []),
    })
}

fn server() -> Value {
    let info = json!({
        "model_id": text(), "model_sha": maybe("string"), "model_dtype": text(), "served_model_name": text(),
        "model_type": { "type": "object", "minProperties": 1, "maxProperties": 1 },
        "max_concurrent_requests": count(), "max_input_length": count(), "max_batch_tokens": count(),
        "max_batch_requests": maybe_from(1), "max_client_batch_size": count(), "auto_truncate": { "type": "boolean" },
        "tokenization_workers": count(), "cache_bytes": count(), "version": text(), "sha": maybe("string"),
        "docker_label": maybe("string"),
    });
    let required: Vec<String> =
        info.as_object().map(|info| info.keys().cloned().collect()).unwrap_or_default();
    json!({
        "Info": json!({ "type": "object", "properties": info, "required": required }),
        "Document": json!({ "type": "object", "required": ["openapi", "info", "paths"] }),
        "DashboardData": dashboard(),
    })
}

/// Units are in the names; times without a date are counted from the model's start.
fn dashboard() -> Value {
    let all = |properties: Value| {
        let required: Vec<String> =
            properties.as_object().map(|all| all.keys().cloned().collect()).unwrap_or_default();
        json!({ "type": "object", "properties": properties, "required": required })
    };
    let or_nothing = |schema: Value| any([schema, json!({ "type": "null" })]);
    let percentiles = json!({ "p50_ms": number(), "p90_ms": number(), "p99_ms": number() });
    let mut interval = percentiles.clone();
    interval["began_s"] = number();
    let model = all(json!({
        "name": text(), "version": text(), "reason": maybe("string"),
        "state": { "enum": ["on demand", "loading", "ready", "unloading", "unloaded", "unavailable"] },
    }));
    let engine = all(json!({
        "model_id": text(), "task": text(), "dtype": text(), "device": text(),
        "health": { "enum": ["ready", "starting", "failing", "stopping"] },
        "max_input_length": count(), "max_batch_tokens": count(), "max_concurrent_requests": count(),
        "cache_bytes": maybe("integer"), "label": maybe("string"),
        "mask_token": maybe("string"), "answered_metric": text(),
    }));
    let batch = all(json!({
        "number": count(), "done_s": number(), "seq_lens": list(count()), "batch_size": count(),
        "max_seq_len": count(), "tokens": count(), "padded_tokens": count(), "waiting": count(),
        "predicted_ms": number(), "took_ms": number(), "longest_wait_ms": number(), "mean_wait_ms": number(),
    }));
    let batch_second = all(json!({
        "second": count(), "batches": count(), "inputs": count(), "tokens": count(), "padded_tokens": count(),
        "took_ms": number(), "most_waiting": count(), "largest_inputs": count(), "largest_tokens": count(),
        "planned_bytes": maybe("integer"),
    }));
    let request_second = all(json!({
        "second": count(), "answered": count(), "cache_memory": count(), "cache_folder": count(),
        "cache_redis": count(), "cache_shared": count(), "cache_misses": count(), "refused_slots": count(),
        "refused_deadline": count(), "expired": count(), "late": count(),
    }));
    let class = all(json!({
        "priority": { "enum": ["high", "normal", "low"] }, "waiting": count(), "answered": count(),
        "inputs_of_minute": count(), "minute": or_nothing(all(percentiles.clone())),
    }));
    let memory = all(json!({
        "largest_planned_bytes": count(), "last_planned_bytes": count(), "weights_bytes": count(),
        "activations_bytes": count(),
    }));
    let costs = all(json!({
        "layout": { "enum": ["packed", "padded"] }, "seq_lens": list(count()), "batch_sizes": list(count()),
        "cells_ms": list(list(maybe("number"))), "extrapolated": list(list(json!({ "type": "boolean" }))),
        "line_ms": or_nothing(all(json!({
            "fixed": number(), "per_token": number(), "per_len_sq": number(), "per_request": number(),
        }))),
        "measured": list(all(json!({
            "batch_size": count(), "max_seq_len": count(), "tokens": count(), "took_ms": number(),
        }))),
    }));
    let observed = all(json!({
        "began_unix_ms": count(), "now_s": number(), "kept_s": count(),
        "totals": all(json!({
            "batches": count(), "inputs": count(), "tokens": count(), "padded_tokens": count(),
            "answered": count(), "cache_memory": count(), "cache_folder": count(), "cache_redis": count(),
            "cache_shared": count(), "cache_misses": count(), "refused_slots": count(),
            "refused_deadline": count(), "expired": count(), "late": count(),
        })),
        "waiting": count(), "oldest_wait_ms": maybe("number"), "until_empty_ms": number(),
        "classes": list(class), "unseen_batches": count(), "batches": list(batch),
        "batch_seconds": list(batch_second), "request_seconds": list(request_second),
        "latencies": all(json!({
            "inputs_of_minute": count(), "minute": or_nothing(all(percentiles)), "interval_s": count(),
            "intervals": list(all(interval)),
        })),
        "costs": costs, "memory": memory,
    }));
    all(json!({
        "server": all(json!({ "version": text(), "resident_bytes": maybe("integer") })),
        "models": list(model.clone()), "model": model, "engine": or_nothing(engine),
        "observed": or_nothing(observed),
    }))
}

fn errors() -> Value {
    let kind = json!({ "enum": ["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty", "Unauthorized", "Forbidden", "Expired"] });
    let coded = json!({
        "message": text(), "type": kind, "code": any([count(), json!({ "const": "model_not_found" }), text()]),
    });
    let as_openai = json!({
        "message": text(), "type": kind, "param": { "type": "null" }, "code": maybe("string"),
    });
    let (mut nested, mut detailed) = (coded.clone(), coded);
    nested["error"] = object(as_openai, ["message", "type", "param", "code"]);
    detailed["detail"] = text();
    json!({
        "Error": object(json!({ "error": text(), "error_type": kind }), ["error", "error_type"]),
        "OpenAiError": object(nested, ["message", "type", "code", "error"]),
        "KserveError": object(json!({ "error": text() }), ["error"]),
        "AnyError": any([of("Error"), of("RerankError")]),
        "RerankError": object(detailed, ["message", "detail", "type", "code"]),
    })
}
