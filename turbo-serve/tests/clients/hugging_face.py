"""Hugging Face's InferenceClient: a task and the address of a server whose model is for it."""

import sys

from huggingface_hub import InferenceClient

task, url = sys.argv[1:]
client = InferenceClient(model=f"{url}/pipeline/{task}", timeout=60)

if task == "feature-extraction":
    one = client.feature_extraction("the cat sat on the mat")
    assert one.shape[0] == 1 and one.shape[1] > 1, one.shape
elif task == "sentence-similarity":
    scores = client.sentence_similarity("the cat", other_sentences=["the cat", "a dog"])
    assert len(scores) == 2 and scores[0] > 0.999 > scores[1], scores
elif task == "text-classification":
    scores = client.text_classification("the cat sat on the mat")
    assert abs(sum(it.score for it in scores) - 1) < 1e-5, scores
    assert scores == sorted(scores, key=lambda it: -it.score) and scores[0].label
    assert client.text_classification("the cat", top_k=1) == client.text_classification("the cat")[:1]
elif task == "token-classification":
    found = client.token_classification("the cat sat on the mat", aggregation_strategy="none")
    for it in found:
        assert it.entity and it.word and 0 <= it.start <= it.end and 0 < it.score <= 1, it
    assert found
elif task == "question-answering":
    context = "the cat sat on the mat"
    answer = client.question_answering(question="where is the cat?", context=context)
    assert answer.answer == context[answer.start : answer.end] and answer.answer, answer
    assert len(client.question_answering(question="where is the cat?", context=context, top_k=2)) == 2
elif task == "fill-mask":
    words = client.fill_mask("the [MASK] sat on the mat")
    assert len(words) == 5 and all("[MASK]" not in it.sequence for it in words), words
    assert client.fill_mask("the [MASK] sat on the mat", top_k=1) == words[:1]
else:
    raise SystemExit(f"no task {task}")
