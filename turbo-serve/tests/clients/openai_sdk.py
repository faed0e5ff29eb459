"""OpenAI's own client: embeddings as texts and ids, in both encodings, names of models, errors."""

import sys

import openai

url = sys.argv[1]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


def embed(**options):
    return client.embeddings.create(model="tiny-sentence", **options)


texts = ["the cat sat on the mat", "a dog"]
# It asks for base64 where nothing is said, and decodes it.
packed, plain = embed(input=texts), embed(input=texts, encoding_format="float")
for there, here in zip(packed.data, plain.data, strict=True):
    # the shortest decimal of an f32 is not the same f64
    assert max(abs(a - b) for a, b in zip(there.embedding, here.embedding, strict=True)) < 1e-7
assert [row.index for row in packed.data] == [0, 1]
assert packed.model == "tiny-sentence"
assert packed.usage.prompt_tokens == packed.usage.total_tokens > 0
assert abs(sum(x * x for x in packed.data[0].embedding) - 1) < 1e-5

assert len(embed(input="a cat", dimensions=8).data[0].embedding) == 8
assert embed(input=[[2, 5, 3], [2, 5, 3]]).usage.total_tokens == 6

assert "tiny-sentence" in [model.id for model in client.models.list()]
assert client.models.retrieve("tiny-sentence").owned_by == "turbo"

for refusal, options in [
    (openai.UnprocessableEntityError, {"input": "a cat", "dimensions": 1_000_000}),
    (openai.BadRequestError, {"input": []}),
]:
    try:
        embed(**options)
    except refusal as error:
        assert error.body["message"] in str(error) and error.body["param"] is None, error
    else:
        raise AssertionError(f"{options} was answered")
