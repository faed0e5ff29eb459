"""LangChain's embeddings over OpenAI's client.

`check_embedding_ctx_length=False` has it send texts: otherwise it counts tokens with a tokenizer of OpenAI's, which it
fetches, and sends ids of that one, which mean nothing to other models.
"""

import sys

from langchain_openai import OpenAIEmbeddings

embeddings = OpenAIEmbeddings(
    model="tiny-sentence",
    base_url=f"{sys.argv[1]}/v1",
    api_key="none",
    check_embedding_ctx_length=False,
    max_retries=0,
    timeout=60,
)
texts = ["the cat sat on the mat", "a dog"]
rows = embeddings.embed_documents(texts)
assert len(rows) == 2 and len(rows[0]) == len(rows[1]) > 0
# It sends up to a thousand at a time.
numbers = [f"the cat and {number} dogs" for number in range(100)]
many = embeddings.embed_documents(numbers)
assert len(many) == 100
assert max(abs(a - b) for a, b in zip(many[70], embeddings.embed_query(numbers[70]))) < 1e-6
query = embeddings.embed_query(texts[1])
assert max(abs(a - b) for a, b in zip(rows[1], query)) < 1e-6
