#!/usr/bin/env python3
"""Write what the reference's tokenizers and pipelines make of texts, for tests to compare with.

`encodings-*` are tokenizers with every detail of their encodings: pairs, truncation, windows, offsets, decoding.
`pipeline-*` are whole model folders with random weights, the logits that the model gives, and what the pipeline of the
transformers library answers. See README.md for the layout. Nothing is downloaded.
"""
import functools
import json
import sys
import warnings

import make_references as base
import torch
import transformers as hf

warnings.filterwarnings("ignore")

# ---------------------------------------------------------------- tokenizers

TEXTS = [
    "Hello, world!",
    "the cat sat on the mat",
    "",
    " ",
    "  two  spaces\tand a tab\n",
    "Caf\u00e9 na\u00efve: \u6771\u4eac\u306e\u732b 42",
    "Cafe\u0301 with a combining mark",
    "emoji \U0001f600 and a family \U0001f468\u200d\U0001f469\u200d\U0001f467!",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0391\u03a3. \u0130stanbul",
    "the [MASK] sat; the <mask> too </s> [SEP]",
    "...!?--''",
    "\ufb01ne \u2460 \uff21\uff22",
]
PAIRS = [
    ("the cat sat", "on the mat"),
    ("", "the cat"),
    ("the cat", ""),
    ("", ""),
    ("Caf\u00e9 \U0001f600", "\u6771\u4eac \u2014 e\u0301?"),
    ("the cat sat on the mat", "hello world, the two cats sat on two mats"),
    ("hello world, the two cats sat on two mats", "the cat sat on the mat"),
]
LIMITS = [5, 8, 9, 13]
WINDOWS = [  # question, context, longest window, stride
    ("the cat?", "the cat sat on the mat. hello, two worlds! Caf\u00e9 \u6771\u4eac \U0001f600 cats sat.", 16, 4),
    ("the cat?", "the cat sat on the mat. hello, two worlds!", 12, 0),
    ("cat", "the cat", 64, 8),
    ("", "the cat sat on the mat", 8, 2),
    ("cat", "", 16, 4),
]


def xlm_roberta():
    """A Unigram tokenizer with the steps and special tokens of XLM-RoBERTa."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [(token, 0.0) for token in special]
    pieces += [("\u2581" + w, -3.0 - 0.1 * i) for i, w in enumerate(base.WORDS)]
    pieces += [("\u2581", -4.0)] + [(c, -5.0 - 0.01 * i) for i, c in enumerate(base.LETTERS + list("\u6771\u4eac\u306e\u00e9"))]
    pieces += [("s", -4.5), ("ing", -4.2), ("\u6771\u4eac", -4.1)]
    tok = Tokenizer(models.Unigram(pieces, unk_id=3))
    tok.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex(" {2,}"), " ")])
    tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    tok.decoder = decoders.Metaspace(replacement="\u2581", prepend_scheme="always")
    tok.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    tok.add_special_tokens([*special, AddedToken("<mask>", lstrip=True)])
    return tok


TOKENIZERS = {"wordpiece": base.wordpiece, "roberta": base.roberta, "xlm-roberta": xlm_roberta}


def details(e):
    """Everything the library knows of an encoding. Offsets count characters."""
    return {"ids": e.ids, "types": e.type_ids, "tokens": e.tokens, "offsets": e.offsets, "words": e.word_ids,
            "sequences": e.sequence_ids, "special": e.special_tokens_mask}


def make_encodings(root, name):
    out = base.new_dir(root, name)
    kind = name.removeprefix("encodings-")
    tok = TOKENIZERS[kind]()
    tok.save(str(out / "tokenizer.json"))
    rows, windows = [], []
    for text in [*TEXTS, *PAIRS]:
        inputs = [text] if isinstance(text, str) else list(text)
        for limit in [None, *LIMITS]:
            for direction in ["right", "left"] if limit else ["right"]:
                tok.no_truncation() if limit is None else tok.enable_truncation(limit, direction=direction)
                e = tok.encode(*inputs)
                if limit is not None:  # the rest is that of the same tokens
                    rows.append({"inputs": inputs, "limit": limit, "direction": direction, "ids": e.ids, "types": e.type_ids,
                                 "offsets": e.offsets})
                    continue
                bare = tok.encode(*inputs, add_special_tokens=False)
                rows.append({"inputs": inputs, **details(e), "bare": bare.ids, "decoded": tok.decode(e.ids),
                             "decoded_with_special": tok.decode(e.ids, skip_special_tokens=False)})
    for question, context, max_len, stride in WINDOWS:
        tok.enable_truncation(max_len, stride=stride, strategy="only_second")
        e = tok.encode(question, context)
        windows.append({"question": question, "context": context, "max_len": max_len, "stride": stride,
                        "windows": [details(w) for w in [e, *e.overflowing]]})
    put_rows(out / "golden.json", {"kind": "encodings"}, encodings=rows, windows=windows)
    return out


# ------------------------------------------------------------------ pipelines

SIZES = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]
KINDS = {  # tokenizer: (config class, its arguments, prefix of the model classes, special tokens)
    "wordpiece": (hf.BertConfig, dict(SIZES, max_position_embeddings=64), "Bert",
                  dict(unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", mask_token="[MASK]")),
    "roberta": (hf.RobertaConfig, dict(SIZES, max_position_embeddings=130, type_vocab_size=1, pad_token_id=1), "Roberta",
                dict(unk_token="<unk>", cls_token="<s>", sep_token="</s>", pad_token="<pad>", mask_token="<mask>")),
    "xlm-roberta": (hf.XLMRobertaConfig, dict(SIZES, max_position_embeddings=66, type_vocab_size=1, pad_token_id=1),
                    "XLMRoberta",
                    dict(unk_token="<unk>", cls_token="<s>", sep_token="</s>", pad_token="<pad>", mask_token="<mask>")),
}
INPUT_NAMES = {  # as published: RoBERTa's kind is not told token types
    kind: ["input_ids", "attention_mask"] + ["token_type_ids"] * (kind == "wordpiece") for kind in KINDS}
SENTENCES = [
    "the cat sat on the mat",
    "Hello, two-world tokens!",
    "batching the lengths of two batches",
    "Cafe\u0301 \u6771\u4eac \U0001f600 who? cats.",
    "hello",
]
QUESTIONS = [
    ("the cat?", "The cat sat on the mat. Hello, two worlds! Caf\u00e9 \u6771\u4eac \U0001f600 the cats sat on a batch of tokens."),
    ("world", "hello world hello world the lengths the batches"),
    ("who sat?", "cat"),
]


def recorded(model):
    """Makes the model remember what it gave; the pipelines see no difference."""
    forward, seen = model.forward, []

    @functools.wraps(forward)
    def remember(*args, **kwargs):
        seen.append(forward(*args, **kwargs))
        return seen[-1]

    model.forward = remember
    return seen


def model_folder(root, name, kind, head, **config):
    """A folder as `save_pretrained` writes it, with random weights; the model and its tokenizer."""
    out = base.new_dir(root, name)
    config_class, sizes, prefix, special = KINDS[kind]
    tok = hf.PreTrainedTokenizerFast(tokenizer_object=TOKENIZERS[kind](), clean_up_tokenization_spaces=False,
                                     model_max_length=sizes["max_position_embeddings"] - 2,
                                     model_input_names=INPUT_NAMES[kind], **special)
    cfg = config_class(**sizes, vocab_size=len(tok), **config)
    model = base.eager(getattr(hf, f"{prefix}For{head}"), cfg)
    base.fill(model, 1, 0, name)
    model.save_pretrained(out)
    tok.save_pretrained(out)
    return out, model, tok


def values(tensor):
    """Logits as float32 prints them."""
    return [float(str(x)) for x in tensor.float().numpy().reshape(-1)]


def make_classify(root, name):
    out, model, tok = model_folder(root, name, "wordpiece", "SequenceClassification", num_labels=4)
    seen, rows = recorded(model), []
    for text in [*SENTENCES, ("the cat", "sat on the mat")]:
        inputs = text if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}
        scores = {}
        for function in ["softmax", "sigmoid", "none"]:
            pipe = hf.TextClassificationPipeline(model=model, tokenizer=tok, function_to_apply=function, top_k=None)
            scores[function] = pipe([inputs])[0] if isinstance(inputs, str) else pipe(inputs)
        rows.append({"inputs": [text] if isinstance(text, str) else list(text), "logits": values(seen[-1].logits[0]),
                     "scores": scores})
    put_rows(out / "golden.json", base.meta_of("pipeline", "text-classification", 0, golden_dtype="float32"), cases=rows)
    return out


def make_entities(root, name):
    labels = dict(enumerate(TAGS))
    out, model, tok = model_folder(root, name, name.removeprefix("pipeline-entities-"), "TokenClassification",
                                   id2label=labels, label2id={v: k for k, v in labels.items()})
    seen, rows = recorded(model), []
    for text in SENTENCES:
        found = {}
        for strategy in ["none", "simple", "first", "average", "max"]:
            pipe = hf.TokenClassificationPipeline(model=model, tokenizer=tok, aggregation_strategy=strategy)
            found[strategy] = [
                {"label": e.get("entity", e.get("entity_group")), "score": float(e["score"]), "start": e["start"],
                 "end": e["end"], "word": e["word"]} for e in pipe(text)]
        rows.append({"text": text, "logits": values(seen[-1].logits[0]), "entities": found})
    put_rows(out / "golden.json", base.meta_of("pipeline", "token-classification", 0, golden_dtype="float32"), cases=rows)
    return out


def make_answers(root, name):
    out, model, tok = model_folder(root, name, name.removeprefix("pipeline-answers-"), "QuestionAnswering")
    seen, rows = recorded(model), []
    pipe = hf.QuestionAnsweringPipeline(model=model, tokenizer=tok)
    for question, context in QUESTIONS:
        for max_len, stride in [(60, 16), (24, 6)]:
            for options in [dict(top_k=1), dict(top_k=4, max_answer_len=5), dict(top_k=3, handle_impossible_answer=True),
                            dict(top_k=3, align_to_words=False)]:
                seen.clear()
                answers = pipe(question=question, context=context, max_seq_len=max_len, doc_stride=stride, **options)
                answers = answers if isinstance(answers, list) else [answers]
                logits = [{"start": values(o.start_logits[0]), "end": values(o.end_logits[0])} for o in seen]
                rows.append({"question": question, "context": context, "max_len": max_len, "stride": stride,
                             "options": options, "windows": logits, "answers": answers})
    put_rows(out / "golden.json", base.meta_of("pipeline", "question-answering", 0, golden_dtype="float32"), cases=rows)
    return out


def make_fill_mask(root, name):
    out, model, tok = model_folder(root, name, name.removeprefix("pipeline-fill-mask-"), "MaskedLM")
    seen, rows = recorded(model), []
    pipe = hf.FillMaskPipeline(model=model, tokenizer=tok)
    mask = tok.mask_token
    for text in [f"the {mask} sat on the mat", f"hello, {mask}! two {mask}s", mask]:
        for options in [dict(top_k=5), dict(top_k=5, targets=["the", "hello"])]:
            filled = pipe(text, **options)
            ids = tok(text)["input_ids"]
            at = [i for i, token in enumerate(ids) if token == tok.mask_token_id]
            filled = [filled] if len(at) == 1 else filled
            targets = [tok.convert_tokens_to_ids(t) for t in options.get("targets", [])]
            rows.append({"text": text, "ids": ids, "masks": at, "top_k": options["top_k"], "targets": targets,
                         "logits": [values(seen[-1].logits[0, i]) for i in at], "filled": filled})
    put_rows(out / "golden.json", base.meta_of("pipeline", "fill-mask", 0, golden_dtype="float32"), cases=rows)
    return out


# ----------------------------------------------------------------------- main

def put_rows(path, meta, **lists):
    """One row a line: a change is a readable diff, and files stay small."""
    parts = [f" {json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in sorted(meta.items())]
    for key, rows in lists.items():
        parts.append(f" {json.dumps(key)}: [\n" + ",\n".join("  " + json.dumps(row, sort_keys=True) for row in rows) + "\n ]")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


PIPELINES = {
    **{f"encodings-{kind}": make_encodings for kind in TOKENIZERS},
    "pipeline-classify": make_classify,
    **{f"pipeline-entities-{kind}": make_entities for kind in KINDS},
    **{f"pipeline-answers-{kind}": make_answers for kind in KINDS},
    **{f"pipeline-fill-mask-{kind}": make_fill_mask for kind in ["wordpiece", "roberta"]},
}

if __name__ == "__main__":
    sys.exit("run make_references.py: it writes these fixtures too, by name")
