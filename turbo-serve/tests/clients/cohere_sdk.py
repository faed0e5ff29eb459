"""Cohere's own client: vectors in each type, and documents in their order."""

import base64
import struct
import sys

import cohere

task, url = sys.argv[1:]
client = cohere.ClientV2(api_key="none", base_url=url, timeout=60)
once = {"max_retries": 0}


def embed(texts, **options):
    options = {"input_type": "search_document", **options}
    return client.embed(model="tiny-sentence", texts=texts, request_options=once, **options)


def vectors():
    texts = ["the cat sat on the mat", "a dog"]
    reply = embed(texts, embedding_types=["float", "base64", "binary", "ubinary"])
    kinds = reply.embeddings
    for index, values in enumerate(kinds.float_):
        assert abs(sum(value * value for value in values) - 1) < 1e-5
        packed = struct.unpack(f"<{len(values)}f", base64.b64decode(kinds.base64[index]))
        # the shortest decimal of an f32 is not the same f64
        assert max(abs(a - b) for a, b in zip(values, packed, strict=True)) < 1e-7
        bits = "".join(f"{byte:08b}" for byte in kinds.ubinary[index])
        assert bits == "".join("01"[value >= 0] for value in values)
        assert kinds.binary[index] == [byte - 128 for byte in kinds.ubinary[index]]
    assert reply.texts == texts
    assert reply.meta.billed_units.input_tokens > 0

    # It splits what is more than its API takes, and puts the parts together.
    assert len(embed(["a cat"] * 200, embedding_types=["float"]).embeddings.float_) == 200
    short = embed(texts, embedding_types=["float"], output_dimension=8).embeddings.float_
    assert [len(values) for values in short] == [8, 8]
    for wrong in [{"input_type": "image"}, {"embedding_types": ["int8"]}, {"output_dimension": 1_000_000}]:
        try:
            embed(texts, **wrong)
        except cohere.UnprocessableEntityError as error:
            assert next(iter(wrong)) in error.body["message"], error
        else:
            raise AssertionError(f"{wrong} was answered")


def documents():
    texts = ["a dog", "the cat sat on the mat", "a hot soup"]
    reply = client.rerank(model="any", query="a cat", documents=texts, top_n=2, request_options=once)
    scores = [result.relevance_score for result in reply.results]
    assert len(scores) == 2 and scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert len({result.index for result in reply.results}) == 2


{"embed": vectors, "rerank": documents}[task]()
