"""Triton's own clients, which speak KServe's protocol: texts and ids, as bytes and as JSON, on both ways; streams; what is
told of models; models that come and go; errors. Asks a server of `embedder`, `ranker` and the ensemble `topics`."""

import importlib
import json
import queue
import sys
from urllib.request import Request, urlopen

import numpy
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

kind, address = sys.argv[1:]
triton = importlib.import_module(f"tritonclient.{kind}")
client = triton.InferenceServerClient(address)
over_http = kind == "http"
told = {} if over_http else {"as_json": True}
# Over HTTP tensors are bytes or JSON, each for itself; messages of gRPC have them as bytes.
ways = [{"binary_data": True}, {"binary_data": False}] if over_http else [{}]


def tensor(name, array, **way):
    it = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return it.set_data_from_numpy(array, **way) or it


def wanted(name, **options):
    return triton.InferRequestedOutput(name, **options)


def refused(said, ask, *arguments, **options):
    try:
        ask(*arguments, **options)
    except InferenceServerException as error:
        assert said in error.message(), error
    else:
        raise AssertionError(f"{arguments} was answered, expected {said!r}")


# what there is
assert client.is_server_live() and client.is_server_ready()
assert client.is_model_ready("embedder") and client.is_model_ready("embedder", "1")
assert not client.is_model_ready("embedder", "7") and not client.is_model_ready("nobody")
assert "binary_tensor_data" in client.get_server_metadata(**told)["extensions"]
about = client.get_model_metadata("embedder", **told)
assert about["versions"] == ["1"] and about["inputs"][0]["datatype"] == "BYTES", about
assert [it["name"] for it in about["outputs"]][0] == "sentence_embedding", about
config = client.get_model_config("embedder", **told)
config = config if over_http else config["config"]
assert config["input"][0]["data_type"] == "TYPE_STRING" and int(config["max_batch_size"]) > 1, config

# texts
texts = numpy.array(["the cat sat on the mat", "ein Mädchen 🐈"], dtype=object)
answer = client.infer("embedder", [tensor("text", texts)], request_id="7")
response = answer.get_response(**told)
assert response["id"] == "7" and response["model_name"] == "embedder", response
vectors = answer.as_numpy("sentence_embedding")
assert vectors.dtype == numpy.float32 and vectors.shape[0] == 2 and vectors.shape[1] > 1, vectors
assert numpy.allclose(numpy.linalg.norm(vectors, axis=1), 1, atol=1e-5)
for there in ways:
    for back in ways:
        inputs, outputs = [tensor("text", texts.reshape(2, 1), **there)], [wanted("sentence_embedding", **back)]
        answer = client.infer("embedder", inputs, model_version="1", outputs=outputs)
        assert numpy.array_equal(answer.as_numpy("sentence_embedding"), vectors), (there, back)

# ids: the same bits, with padding and without
body = json.dumps({"inputs": list(texts)}).encode()
asked = Request(f"http://{address}/models/embedder/tokenize", body, {"content-type": "application/json"})
ids = [[token["id"] for token in tokens] for tokens in json.load(urlopen(asked, timeout=60))]
width = max(map(len, ids))
padded = numpy.array([row + [0] * (width - len(row)) for row in ids])
mask = numpy.array([[1] * len(row) + [0] * (width - len(row)) for row in ids])
for there in ways:
    for integers, bits in [(numpy.int64, numpy.int64), (numpy.int32, numpy.bool_), (numpy.uint16, numpy.int8)]:
        inputs = [
            tensor("input_ids", padded.astype(integers), **there),
            tensor("attention_mask", mask.astype(bits), **there),
            tensor("token_type_ids", numpy.zeros_like(padded).astype(integers), **there),
        ]
        rows = client.infer("embedder", inputs).as_numpy("sentence_embedding")
        assert numpy.array_equal(rows, vectors), (there, integers)

# what is asked for by name, and parameters
for back in ways:
    outputs = [wanted("token_embeddings", **back), wanted("attention_mask", **back)]
    answer = client.infer("embedder", [tensor("text", texts)], outputs=outputs)
    assert answer.as_numpy("token_embeddings").shape == (2, width, vectors.shape[1])
    assert numpy.array_equal(answer.as_numpy("attention_mask"), mask)
    best = client.infer(
        "embedder", [tensor("text", texts)], outputs=[wanted("sentence_embedding", class_count=2, **back)]
    ).as_numpy("sentence_embedding")
    # Elements of `BYTES` are bytes, or strings where they came as JSON.
    first = best[0][0] if isinstance(best[0][0], str) else best[0][0].decode()
    assert best.shape == (2, 2) and int(first.split(":")[1]) == vectors[0].argmax(), best
short = client.infer("embedder", [tensor("text", texts)], parameters={"dimensions": 8, "normalize": False})
assert short.as_numpy("sentence_embedding").shape == (2, 8)
pairs = numpy.array([["a cat", "the cat sat"], ["a cat", "soup"]], dtype=object)
scores = client.infer("ranker", [tensor("text", pairs)]).as_numpy("scores")
assert scores.shape == (2, 1) and ((0 < scores) & (scores < 1)).all(), scores
assert client.get_model_metadata("topics", **told)["inputs"][0]["datatype"] == "BYTES"
outputs = [wanted("logits", class_count=1), wanted("scores")]
topics = client.infer("topics", [tensor("text", texts)], outputs=outputs)
assert topics.as_numpy("logits")[0][0].endswith(b":0:animals"), topics.as_numpy("logits")
assert numpy.allclose(topics.as_numpy("scores").sum(axis=1), 1, atol=1e-6)

urgent = client.infer("embedder", [tensor("text", texts)], priority=1, timeout=60_000_000)
assert numpy.array_equal(urgent.as_numpy("sentence_embedding"), vectors)

# errors
text = [tensor("text", texts)]
refused("no model `nobody`", client.infer, "nobody", text)
refused("no version `7`", client.infer, "embedder", text, model_version="7")
refused("output `logits` is not known", client.infer, "embedder", text, outputs=[wanted("logits")])
refused("datatype is `FP32`", client.infer, "embedder", [tensor("text", numpy.zeros((1, 1), numpy.float32))])
refused("batch size 999", client.infer, "embedder", [tensor("text", numpy.array(["a"] * 999, dtype=object))])
refused("`dimensions` is -1", client.infer, "embedder", text, parameters={"dimensions": -1})

# many at a time, one of them wrong
if over_http:
    asked = [client.async_infer("embedder", text, request_id=str(i)) for i in range(4)]
    assert [it.get_result().get_response()["id"] for it in asked] == ["0", "1", "2", "3"]
else:
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put(error or result))
    for i in range(5):
        client.async_stream_infer("nobody" if i == 2 else "embedder", text, request_id=str(i))
    got = [answers.get(timeout=60) for _ in range(5)]
    client.stop_stream()
    assert "no model `nobody`" in got.pop(2).message()
    assert [it.get_response().id for it in got] == ["0", "1", "3", "4"]

    # packed
    many = numpy.repeat(texts, 8)
    rows = client.infer("embedder", [tensor("text", many)]).as_numpy("sentence_embedding")
    for packed in ["gzip", "deflate"]:
        answer = client.infer("embedder", [tensor("text", many)], compression_algorithm=packed)
        assert numpy.array_equal(answer.as_numpy("sentence_embedding"), rows), packed
    client.start_stream(lambda result, error: answers.put(error or result), compression_algorithm="gzip")
    client.async_stream_infer("embedder", [tensor("text", many)])
    assert numpy.array_equal(answers.get(timeout=60).as_numpy("sentence_embedding"), rows)
    client.stop_stream()


# what was done
def statistics(name):
    (stats,) = client.get_inference_statistics(name, **told)["model_stats"]
    return stats


def count(stats, what, of="count"):
    # Zeros are left out where a message is told as JSON, and large numbers are strings.
    return int(stats["inference_stats"].get(what, {}).get(of, 0))


before = statistics("ranker")
client.infer("ranker", [tensor("text", pairs)], parameters={"truncate": True})
refused("4000000000", client.infer, "ranker", [tensor("input_ids", numpy.array([[4_000_000_000]]))])
after = statistics("ranker")
assert after["name"] == "ranker" and after["version"] == "1"
assert int(after["inference_count"]) == int(before["inference_count"]) + 2
assert int(after["last_inference"]) > 1_700_000_000_000
# The pairs were asked for before: nothing was computed for them again.
new = [count(after, it) - count(before, it) for it in ("success", "fail", "cache_hit", "cache_miss", "queue")]
assert new == [1, 1, 1, 0, 0], (before, after)
assert count(after, "success", "ns") > count(after, "compute_infer", "ns") > 0
batches = {int(it["batch_size"]): int(it["compute_infer"]["count"]) for it in after["batch_stats"]}
assert sum(batches.values()) == int(after["execution_count"]) and sum(k * n for k, n in batches.items()) == 2
assert len(client.get_inference_statistics(**told)["model_stats"]) == 3


# models come and go
def states():
    index = client.get_model_repository_index(**told)
    return {it["name"]: it["state"] for it in (index if over_http else index["models"])}


assert states() == {"embedder": "READY", "ranker": "READY", "topics": "READY"}
client.unload_model("ranker")
assert states() == {"embedder": "READY", "ranker": "UNAVAILABLE", "topics": "READY"} and not client.is_model_ready("ranker")
refused("model `ranker/1` is not loaded", client.infer, "ranker", [tensor("text", pairs)])
client.load_model("ranker")
assert client.is_model_ready("ranker")
assert numpy.array_equal(client.infer("ranker", [tensor("text", pairs)]).as_numpy("scores"), scores)
refused("no model `nobody`", client.load_model, "nobody")
refused("parameter `config`", client.load_model, "ranker", config="{}")
