"""grpcio with stubs made of the published `tei.proto`: every service of text-embeddings-inference, one by one and as
streams. Asks a server whose model is for vectors (`embed`), labels (`predict`) or ranks (`rerank`)."""

import importlib.resources
import sys
import tempfile

import grpc
from grpc_tools import protoc

task, address, folder = sys.argv[1:]
stubs = tempfile.TemporaryDirectory()
there = importlib.resources.files("grpc_tools") / "_proto"
command = ["protoc", f"-I{folder}", f"-I{there}", f"--python_out={stubs.name}", f"--grpc_python_out={stubs.name}"]
assert protoc.main([*command, "tei.proto"]) == 0
sys.path.insert(0, stubs.name)
import tei_pb2 as tei  # noqa: E402
import tei_pb2_grpc as services  # noqa: E402

channel = grpc.insecure_channel(address)
texts = ["the cat sat on the mat", "a dog", "ein Mädchen 🐈"]


def refused(code, ask, message):
    try:
        ask(message, timeout=60)
    except grpc.RpcError as error:
        assert error.code() == code and error.details(), error
    else:
        raise AssertionError(f"{message} was answered, expected {code}")


# health, in bytes: a message without fields, and one whose first field is 1, SERVING
health = channel.unary_unary("/grpc.health.v1.Health/Check")
assert health(b"", timeout=60) == b"\x08\x01"

info = services.InfoStub(channel).Info(tei.InfoRequest(), timeout=60)
types = {"embed": "EMBEDDING", "predict": "CLASSIFIER", "rerank": "RERANKER"}
assert tei.ModelType.Name(info.model_type) == f"MODEL_TYPE_{types[task]}" and info.max_input_length > 0, info

tokenize = services.TokenizeStub(channel)
asked = [tei.EncodeRequest(inputs=text, add_special_tokens=True) for text in texts]
tokens = [tokenize.Tokenize(it, timeout=60).tokens for it in asked]
assert [it.tokens for it in tokenize.TokenizeStream(iter(asked), timeout=60)] == tokens
for text, of_text in zip(texts, tokens, strict=True):
    inner = [token for token in of_text if not token.special]
    assert inner and all(token.HasField("start") and token.stop <= len(text.encode()) for token in inner), of_text
    assert len(inner) == len(of_text) - 2
asked = [tei.DecodeRequest(ids=[token.id for token in it], skip_special_tokens=True) for it in tokens]
decoded = [it.text for it in tokenize.DecodeStream(iter(asked), timeout=60)]
assert decoded[0] == texts[0] and tokenize.Decode(asked[0], timeout=60).text == texts[0], decoded

embed = services.EmbedStub(channel)
if task == "embed":
    asked = [tei.EmbedRequest(inputs=text, truncate=True) for text in texts]
    rows = [embed.Embed(it, timeout=60) for it in asked]
    for row, of_text in zip(rows, tokens, strict=True):
        assert abs(sum(x * x for x in row.embeddings) - 1) < 1e-5
        assert row.metadata.compute_tokens == len(of_text) and row.metadata.total_time_ns > 0, row.metadata
    # Enough that they fill batches; each answer is the same as alone, and in its place.
    answers = embed.EmbedStream(iter(asked * 50), timeout=60)
    assert [it.embeddings for it in answers] == [it.embeddings for it in rows] * 50
    short = embed.Embed(tei.EmbedRequest(inputs=texts[0], dimensions=8, normalize=False), timeout=60)
    assert len(short.embeddings) == 8
    asked = [tei.EmbedAllRequest(inputs=text) for text in texts]
    every = [it.token_embeddings for it in embed.EmbedAllStream(iter(asked), timeout=60)]
    assert [len(it) for it in every] == [len(it) for it in tokens]
    assert every[0] == embed.EmbedAll(asked[0], timeout=60).token_embeddings
    refused(grpc.StatusCode.INVALID_ARGUMENT, embed.Embed, tei.EmbedRequest(inputs="a", dimensions=1_000_000))
    refused(grpc.StatusCode.FAILED_PRECONDITION, embed.EmbedSparse, tei.EmbedSparseRequest(inputs="a"))
else:
    refused(grpc.StatusCode.FAILED_PRECONDITION, embed.Embed, tei.EmbedRequest(inputs="a"))

if task == "predict":
    predict = services.PredictStub(channel)
    asked = [tei.PredictRequest(inputs=text) for text in texts]
    labels = [predict.Predict(it, timeout=60).predictions for it in asked]
    assert [it.predictions for it in predict.PredictStream(iter(asked), timeout=60)] == labels
    for it in labels:
        scores = [label.score for label in it]
        assert abs(sum(scores) - 1) < 1e-5 and scores == sorted(scores, reverse=True) and it[0].label, it
    pair = tei.PredictPairRequest(inputs=texts[:2], raw_scores=True)
    assert predict.PredictPair(pair, timeout=60).predictions != labels[0]

if task == "rerank":
    rerank = services.RerankStub(channel)
    asked = tei.RerankRequest(query="pets", texts=texts, return_text=True)
    ranks = rerank.Rerank(asked, timeout=60).ranks
    assert sorted(rank.index for rank in ranks) == [0, 1, 2]
    assert [rank.score for rank in ranks] == sorted((rank.score for rank in ranks), reverse=True)
    assert all(rank.text == texts[rank.index] for rank in ranks), ranks
    each = (tei.RerankStreamRequest(query="pets", text=text, return_text=True) for text in texts)
    assert rerank.RerankStream(each, timeout=60).ranks == ranks
    refused(grpc.StatusCode.INVALID_ARGUMENT, rerank.Rerank, tei.RerankRequest(query="pets"))
