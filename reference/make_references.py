#!/usr/bin/env python3
"""Write tiny reference models and golden outputs for testing an inference engine.

Every fixture is a directory with a checkpoint in Hugging Face layout
(config.json, model.safetensors) and golden results computed with PyTorch.
See README.md for the layout. Nothing is downloaded.

Weights do not come from torch's generator: each tensor is drawn from a NumPy
PCG64 stream keyed by (seed, salt, fixture, tensor name), so they do not depend
on the torch version or on construction order. Biases and norm weights are
random too; with the usual zeros and ones a loader that drops them would pass.

Goldens are computed in float64 and stored as float32. Generated sequences must
be the same in float32 and float64, otherwise the fixture is rebuilt with the
next salt, so a small rounding difference in the engine cannot flip a token.
"""
import argparse
import copy
import hashlib
import json
import os
import shutil
import sys
import tempfile
import warnings
import zlib
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from transformers.generation import logits_process as lp

warnings.filterwarnings("ignore")
hf.logging.set_verbosity_error()
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)

LENGTHS = (9, 5, 1)  # one ragged batch, including the shortest possible input
# Encoders also get rows around the widths of vectors and warps; the model's position limit is appended.
ROW_LENGTHS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33)
NEW_TOKENS = 12
MAX_SALT = 50
MAX_BYTES = 300_000  # per fixture: they are committed


class Unstable(Exception):
    """A golden sequence depends on rounding; try the next salt."""


# ---------------------------------------------------------------- randomness

def rng(*key):
    words = [k if isinstance(k, int) else zlib.crc32(k.encode()) for k in key]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def fill(model, seed, salt, fixture):
    """Overwrite all trainable parameters; tied tensors are visited once."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not p.requires_grad:  # fixed sinusoids
                continue
            x = rng(seed, salt, fixture, name).standard_normal(tuple(p.shape))
            low = name.lower()
            if p.dim() == 1 and low.endswith("weight"):  # norm gain, or what it is more than one
                x = (0.0 if model.config.model_type == "gemma3_text" else 1.0) + 0.1 * x
            elif p.dim() == 1:
                x = 0.1 * x
            elif "embed" in low or "shared" in low or "wte" in low or "wpe" in low:
                x = 0.5 * x
            else:
                x = x * (1.5 / np.sqrt(p.shape[-1]))
            p.copy_(torch.from_numpy(x.astype(np.float32)))  # padding rows too: an engine must mask them
        for name, b in model.named_buffers():
            if name == "final_logits_bias":
                x = 0.3 * rng(seed, salt, fixture, name).standard_normal(tuple(b.shape))
                b.copy_(torch.from_numpy(x.astype(np.float32)))
                b[0, model.config.eos_token_id] += 3.0  # so that some searches end early


def ragged(vocab, seed, fixture, pad, left=False, low=5, lengths=LENGTHS):
    """Random ids and mask for a ragged batch."""
    r = rng(seed, fixture, "inputs")
    ids = np.full((len(lengths), max(lengths)), pad, dtype=np.int64)
    mask = np.zeros_like(ids)
    for i, n in enumerate(lengths):
        at = slice(max(lengths) - n, None) if left else slice(0, n)
        ids[i, at] = r.integers(low, vocab, n)
        mask[i, at] = 1
    return torch.from_numpy(ids), torch.from_numpy(mask)


# ------------------------------------------------------------------- writing

def f32(t):
    return t.detach().to(torch.float32).contiguous().clone()


def put_json(path, value):
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def save_goldens(out, tensors, meta):
    clean = {k: (f32(v) if v.is_floating_point() else v.contiguous().clone()) for k, v in tensors.items()}
    save_file(clean, str(out / "golden.safetensors"))
    put_json(out / "golden.json", meta)


def meta_of(kind, model_class, salt, **more):
    return {"kind": kind, "class": model_class, "salt": salt, "torch": torch.__version__.split("+")[0],
            "transformers": hf.__version__, "golden_dtype": "float64 rounded to float32", **more}


def new_dir(root, name):
    d = root / name
    if d.exists():
        shutil.rmtree(d)
    d.mkdir(parents=True)
    return d


def eager(cls, cfg):
    cfg._attn_implementation = "eager"
    return cls(cfg).eval()


# ------------------------------------------------------------ encoder models

# Every fixture stays under 300 KB; the sizes below are chosen for that.
E32 = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
           max_position_embeddings=64)
DB = dict(dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=64)
ROB = dict(E32, max_position_embeddings=66, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5)
ALB = dict(E32, embedding_size=16, num_hidden_groups=1, inner_group_num=1)

ENCODERS = {  # fixture: (model class, config class, config arguments, labels)
    "bert-base": ("BertModel", "BertConfig", dict(E32, vocab_size=600), None),
    "bert-relu": ("BertModel", "BertConfig", dict(E32, vocab_size=200, hidden_act="relu", layer_norm_eps=1e-6), None),
    "bert-bf16": ("BertModel", "BertConfig", dict(E32, vocab_size=200), None),
    "bert-f16": ("BertModel", "BertConfig", dict(E32, vocab_size=200), None),
    "bert-sharded": ("BertModel", "BertConfig", dict(E32, vocab_size=200), None),
    # sizes that are no power of two: tiles and vector loops must treat their remainders
    "bert-odd": ("BertModel", "BertConfig",
                 dict(vocab_size=61, hidden_size=96, num_hidden_layers=1, num_attention_heads=3, intermediate_size=200,
                      max_position_embeddings=33), None),
    "albert-base": ("AlbertModel", "AlbertConfig", dict(ALB, vocab_size=600), None),
    "albert-groups": ("AlbertModel", "AlbertConfig",
                      dict(ALB, vocab_size=200, num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2,
                           intermediate_size=40, hidden_act="gelu"), None),
    "distilbert-base": ("DistilBertModel", "DistilBertConfig", dict(DB, vocab_size=600), None),
    "roberta-base": ("RobertaModel", "RobertaConfig", dict(ROB, vocab_size=600), None),
    "electra-base": ("ElectraModel", "ElectraConfig", dict(E32, vocab_size=600, embedding_size=16), None),
}

# The smaller a fixture with a head, the more of them: every family with every head.
H16 = dict(vocab_size=61, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
           max_position_embeddings=24)
D16 = dict(vocab_size=61, dim=16, n_layers=1, n_heads=2, hidden_dim=24, max_position_embeddings=24)
AFTER_PAD = dict(H16, max_position_embeddings=26, pad_token_id=1, layer_norm_eps=1e-5)
MODERN = dict(vocab_size=61, hidden_size=24, num_hidden_layers=4, num_attention_heads=2, intermediate_size=36,
              max_position_embeddings=64, local_attention=8, global_attn_every_n_layers=3, pad_token_id=0, bos_token_id=1,
              cls_token_id=1, eos_token_id=2, sep_token_id=2, reference_compile=False)
MODERN_HEAD = dict(MODERN, hidden_size=16, num_hidden_layers=2, intermediate_size=24, max_position_embeddings=24)
QWEN = dict(vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            intermediate_size=48, max_position_embeddings=64, rope_theta=1e6, pad_token_id=0)
QWEN_HEAD = dict(QWEN, vocab_size=61, hidden_size=16, num_hidden_layers=1, intermediate_size=24,
                 max_position_embeddings=24)
QWEN2 = {key: value for key, value in QWEN.items() if key != "head_dim"}
QWEN2_HEAD = dict(QWEN2, vocab_size=61, hidden_size=16, num_hidden_layers=1, intermediate_size=24,
                  max_position_embeddings=24)
# the window is what inputs end at
MISTRAL = dict(QWEN2, rope_theta=10000.0, sliding_window=64, max_position_embeddings=512)
MISTRAL_HEAD = dict(QWEN2_HEAD, head_dim=16, sliding_window=None)
# in an input of 100 positions the first pair of columns turns 16 times, the second 1.6 times, the others less than once
LLAMA = dict(QWEN2, rope_theta=10000.0,
             rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                               original_max_position_embeddings=100))
LLAMA_HEAD = dict(QWEN2_HEAD, attention_bias=True, rope_scaling=dict(rope_type="linear", factor=4.0))
GEMMA = dict(vocab_size=97, hidden_size=24, num_hidden_layers=8, num_attention_heads=3, num_key_value_heads=1, head_dim=16,
             intermediate_size=40, max_position_embeddings=64, query_pre_attn_scalar=24, sliding_window=8,
             use_bidirectional_attention=True, pad_token_id=0)
NOMIC = dict(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_inner=48, n_positions=64)
NOMIC_SMALL = dict(vocab_size=61, n_embd=16, n_layer=1, n_head=2, n_inner=24, n_positions=24)
GTE_HEAD = dict(vocab_size=61, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
                max_position_embeddings=24, rope_theta=20000.0, rope_scaling={"type": "ntk", "factor": 8.0},
                type_vocab_size=1)
# what tells the later of two forms, beside the names of its tensors
JINA_CODE = {"AutoConfig": "jinaai/jina-bert-v2-qk-post-norm--configuration_bert.JinaBertConfig"}
JINA_HEAD = dict(vocab_size=61, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
                 max_position_embeddings=24)
# as the published models of the third version; positions share buckets from a distance of four on
DEBERTA = dict(vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
               max_position_embeddings=64, position_buckets=8, relative_attention=True, share_att_key=True,
               norm_rel_ebd="layer_norm", pos_att_type=["p2c", "c2p"], position_biased_input=False, type_vocab_size=0)
DEBERTA_HEAD = dict(DEBERTA, vocab_size=61, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                    intermediate_size=24, max_position_embeddings=24)
GTE = dict(vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
           max_position_embeddings=64)

HEADS = {  # fixture: (model class, config class, config arguments, labels); rows alone, and what the head makes of them
    **{f"bert-{head}": (f"BertFor{cls}", "BertConfig", H16, labels) for head, cls, labels in (
        ("seqcls", "SequenceClassification", 3), ("rerank", "SequenceClassification", 1),
        ("tokcls", "TokenClassification", 5), ("qa", "QuestionAnswering", None), ("mlm", "MaskedLM", None))},
    **{f"{family}-{head}": (f"{prefix}For{cls}", f"{prefix}Config", dict(kw, **extra), labels)
       for family, prefix, kw, extra in (
           ("roberta", "Roberta", AFTER_PAD, dict(type_vocab_size=1)), ("distilbert", "DistilBert", D16, {}),
           ("electra", "Electra", H16, dict(embedding_size=8)), ("albert", "Albert", H16, dict(embedding_size=8)),
           ("mpnet", "MPNet", AFTER_PAD, {}))
       for head, cls, labels in (
           ("seqcls", "SequenceClassification", 3), ("tokcls", "TokenClassification", 5), ("qa", "QuestionAnswering", None),
           ("mlm", "MaskedLM", None))},
    "electra-rtd": ("ElectraForPreTraining", "ElectraConfig", dict(H16, embedding_size=8), None),
    # the same architecture as RoBERTa under other names
    "xlm-roberta-base": ("XLMRobertaModel", "XLMRobertaConfig", dict(AFTER_PAD, type_vocab_size=1), None),
    "xlm-roberta-rerank": ("XLMRobertaForSequenceClassification", "XLMRobertaConfig",
                           dict(AFTER_PAD, type_vocab_size=1), 1),
    "camembert-base": ("CamembertModel", "CamembertConfig", dict(AFTER_PAD, type_vocab_size=1), None),
    "camembert-mlm": ("CamembertForMaskedLM", "CamembertConfig", dict(AFTER_PAD, type_vocab_size=1), None),
    "mpnet-base": ("MPNetModel", "MPNetConfig",
                   dict(ROB, vocab_size=97, intermediate_size=48, type_vocab_size=2), None),
    "modernbert-base": ("ModernBertModel", "ModernBertConfig", MODERN, None),
    "modernbert-seqcls": ("ModernBertForSequenceClassification", "ModernBertConfig", MODERN_HEAD, 3),
    "modernbert-mean": ("ModernBertForSequenceClassification", "ModernBertConfig",
                        dict(MODERN_HEAD, classifier_pooling="mean", classifier_bias=True, norm_bias=True, mlp_bias=True,
                             attention_bias=True), 1),
    "modernbert-tokcls": ("ModernBertForTokenClassification", "ModernBertConfig", MODERN_HEAD, 5),
    "modernbert-qa": ("ModernBertForQuestionAnswering", "ModernBertConfig", MODERN_HEAD, None),
    "modernbert-mlm": ("ModernBertForMaskedLM", "ModernBertConfig", MODERN_HEAD, None),
    "qwen3-base": ("Qwen3Model", "Qwen3Config", QWEN, None),
    # heads wider than the hidden size has room for, and a prefix; the tied output matrix is not in the file
    "qwen3-wide": ("Qwen3ForCausalLM", "Qwen3Config", dict(QWEN, head_dim=16, tie_word_embeddings=True), None),
    "qwen3-rerank": ("Qwen3ForSequenceClassification", "Qwen3Config", QWEN_HEAD, 1),
    "qwen3-tokcls": ("Qwen3ForTokenClassification", "Qwen3Config", QWEN_HEAD, 5),
    # beyond the distances that share a bucket, beyond the published window, and where angles are large
    "mpnet-long": ("MPNetModel", "MPNetConfig", dict(AFTER_PAD, max_position_embeddings=302), None),
    "modernbert-long": ("ModernBertModel", "ModernBertConfig",
                        dict(MODERN_HEAD, local_attention=128, global_attn_every_n_layers=2, max_position_embeddings=400),
                        None),
    "qwen3-long": ("Qwen3Model", "Qwen3Config", dict(QWEN_HEAD, max_position_embeddings=600), None),
    "qwen3-bias": ("Qwen3Model", "Qwen3Config", dict(QWEN_HEAD, attention_bias=True), None),
    "qwen2-base": ("Qwen2Model", "Qwen2Config", QWEN2, None),
    # every token sees all others, under masks made here: this version of the library knows no such field
    "qwen2-full": ("Qwen2ForCausalLM", "Qwen2Config", dict(QWEN2_HEAD, is_causal=False), None),
    "qwen2-rerank": ("Qwen2ForSequenceClassification", "Qwen2Config", QWEN2_HEAD, 1),
    "mistral-base": ("MistralModel", "MistralConfig", MISTRAL, None),
    "mistral-rerank": ("MistralForSequenceClassification", "MistralConfig", MISTRAL_HEAD, 1),
    "llama-base": ("LlamaModel", "LlamaConfig", LLAMA, None),
    "llama-rerank": ("LlamaForSequenceClassification", "LlamaConfig", LLAMA_HEAD, 1),
    # so do these, in every sixth layer; in the others, and in the second fixture in all but two listed ones, a window
    "gemma3-base": ("Gemma3TextModel", "Gemma3TextConfig", GEMMA, None),
    "gemma3-listed": ("Gemma3TextModel", "Gemma3TextConfig",
                      dict(GEMMA, hidden_size=32, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=2,
                           intermediate_size=40, max_position_embeddings=24, sliding_window=5, attention_bias=True,
                           layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"]),
                      None),
    "deberta-base": ("DebertaV2Model", "DebertaV2Config", DEBERTA, None),
    # matrices of positions, which end before the inputs do; positions and types in the embeddings, too
    "deberta-own": ("DebertaV2Model", "DebertaV2Config",
                    dict(DEBERTA, share_att_key=False, position_buckets=-1, max_relative_positions=12,
                         norm_rel_ebd="none", position_biased_input=True, type_vocab_size=2), None),
    # distances that share the last bucket
    "deberta-long": ("DebertaV2Model", "DebertaV2Config",
                     dict(DEBERTA_HEAD, hidden_size=24, num_attention_heads=3, max_position_embeddings=300,
                          position_buckets=32, max_relative_positions=100), None),
    **{f"deberta-{head}": (f"DebertaV2For{cls}", "DebertaV2Config", DEBERTA_HEAD, labels) for head, cls, labels in (
        ("seqcls", "SequenceClassification", 3), ("tokcls", "TokenClassification", 5),
        ("qa", "QuestionAnswering", None))},
    # not in this version of the library: written out below
    "nomic-base": ("NomicBertModel", "NomicBertConfig", NOMIC, None),
    # what its configuration has where it is silent
    "nomic-bias": ("NomicBertModel", "NomicBertConfig",
                   dict(NOMIC_SMALL, qkv_proj_bias=True, mlp_fc1_bias=True, mlp_fc2_bias=True), None),
    # two of five experts in every other layer; where there are none, no gate
    "nomic-experts": ("NomicBertModel", "NomicBertConfig",
                      dict(NOMIC_SMALL, n_layer=3, activation_function="gelu", moe_every_n_layers=2, moe_top_k=2,
                           num_experts=5, expert_choice_router=False, moe_normalize_expert_weights=False,
                           num_shared_experts=0, qkv_proj_bias=True, mlp_fc1_bias=True, mlp_fc2_bias=True,
                           type_vocab_size=1), None),
    "gte-plain": ("NewModel", "NewConfig", dict(GTE_HEAD, rope_scaling=None, type_vocab_size=2), None),
    "gte-base": ("NewModel", "NewConfig",
                 dict(GTE, rope_theta=500000.0, rope_scaling={"type": "ntk", "factor": 2.0}, type_vocab_size=0), None),
    **{f"gte-{head}": (f"NewFor{cls}", "NewConfig", GTE_HEAD, labels) for head, cls, labels in (
        ("rerank", "SequenceClassification", 1), ("tokcls", "TokenClassification", 5), ("mlm", "MaskedLM", None))},
    # six heads: slopes of a power of two, and between them those of the next one
    "jina-base": ("JinaBertModel", "JinaBertConfig",
                  dict(vocab_size=97, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, intermediate_size=40,
                       max_position_embeddings=64), None),
    # slopes that let a token see beyond a hundred others
    "jina-long": ("JinaBertModel", "JinaBertConfig",
                  dict(JINA_HEAD, hidden_size=24, num_attention_heads=3, max_position_embeddings=300), None),
    "jina-code": ("JinaBertModel", "JinaBertConfig",
                  dict(vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                       max_position_embeddings=64, auto_map=JINA_CODE), None),
    "jina-code-rerank": ("JinaBertForSequenceClassification", "JinaBertConfig",
                         dict(JINA_HEAD, feed_forward_type="reglu", auto_map=JINA_CODE), 1),
    **{f"jina-{head}": (f"JinaBertFor{cls}", "JinaBertConfig", dict(JINA_HEAD, feed_forward_type=kind), labels)
       for head, cls, kind, labels in (
           ("rerank", "SequenceClassification", "reglu", 1), ("tokcls", "TokenClassification", "geglu", 5),
           ("qa", "QuestionAnswering", "geglu", None), ("mlm", "MaskedLM", "geglu", None))},
}

# How a checkpoint is stored, where it is not one float32 file. Goldens come from the widened weights.
STORED = {"bert-bf16": torch.bfloat16, "bert-f16": torch.float16, "bert-odd": torch.float16}
SHARDED = {"bert-sharded": "40KB", "gpt2-sharded": "60KB"}
# bert-odd has wide rows and a limit of 33 tokens
FEWER_ROWS = {"bert-odd": (1, 2, 7, 17)}
LONG_ROWS = {"mpnet-long": (3, 140, 300), "modernbert-long": (70, 129, 400), "qwen3-long": (2, 600),
             "jina-long": (3, 140, 300), "deberta-long": (3, 140, 300)}
# Families that count positions from the ids, past tokens that are padding but not masked.
PAD_IN_THE_MIDDLE = {"roberta", "xlm-roberta", "camembert", "mpnet"}


def position_limit(cfg):
    """Longest input in tokens; RoBERTa's table has spare rows for padding, and Mistral's inputs end at its window."""
    if cfg.model_type == "mistral" and cfg.sliding_window:
        return min(cfg.max_position_embeddings, cfg.sliding_window)
    return cfg.max_position_embeddings - (cfg.pad_token_id + 1 if cfg.model_type in PAD_IN_THE_MIDDLE else 0)


def put_pad_in_the_middle(cfg, ids, lengths):
    """Where it makes a difference, rows of 5 tokens and more get a padding id inside; not those at the limit."""
    if cfg.model_type in PAD_IN_THE_MIDDLE:
        for i, n in enumerate(lengths):
            if 5 <= n < position_limit(cfg):
                ids[i, n // 2] = cfg.pad_token_id


def masks(model, mask):
    """What the library is given: the mask itself, or where a decoder's tokens see those behind them, what its later versions
    make of it."""
    cfg = model.config
    if getattr(cfg, "is_causal", True) and not getattr(cfg, "use_bidirectional_attention", False):
        return mask
    n, dtype = mask.shape[1], next(model.parameters()).dtype
    distance = (torch.arange(n)[:, None] - torch.arange(n)).abs()

    def added(reach):
        seen = mask[:, None, None, :].bool() & (distance <= reach)
        seen |= torch.eye(n, dtype=torch.bool)  # rows of padding see themselves: softmax of nothing is no number
        return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)

    if cfg.model_type == "gemma3_text":
        return {"full_attention": added(n), "sliding_attention": added(cfg.sliding_window // 2)}
    return added(n)


def run_encoder(model, ids, mask, types, collect=True):
    kw = dict(input_ids=ids, attention_mask=masks(model, mask), output_hidden_states=collect, return_dict=True)
    if types is not None:
        kw["token_type_ids"] = types
    with torch.no_grad():
        return model(**kw)


def is_per_token(value, width):
    return value.dim() > 1 and value.shape[1] == width


def named_outputs(out):
    """The output's tensors by name, one per hidden state."""
    for key, value in out.items():
        if key == "hidden_states":
            yield from ((f"hidden_states.{i}", h) for i, h in enumerate(value))
        elif torch.is_tensor(value):
            yield key, value


def rows_alone(model, ids, mask, types):
    """Outputs of each row run without padding, by name."""
    for i, n in enumerate(mask.sum(1).tolist()):
        row = run_encoder(model, ids[i:i + 1, :n], mask[i:i + 1, :n], None if types is None else types[i:i + 1, :n])
        yield i, n, dict(named_outputs(row))


def assert_padding_is_ignored(name, out, alone, width):
    """Each row alone must agree with the padded batch on the row's real tokens."""
    whole = dict(named_outputs(out))
    for i, n, row in alone:
        for key, value in row.items():
            want = whole[key][i:i + 1]
            want = want[:, :n] if is_per_token(want, width) else want
            if (value - want).abs().max() > 1e-9:
                raise AssertionError(f"{name}: {key} of row {i} depends on padding")


def largest_gap(single, exact):
    """What PyTorch itself loses in float32."""
    gaps = [(value - exact[key].double()).abs().max().item() for key, value in named_outputs(single)]
    return max(gaps)


def drift_of_rounding(model, ids, mask, types, exact):
    """What PyTorch itself loses of the last hidden states of rows alone where it stores all it computes in fewer bits: the
    largest gap, and the mean of all. Buffers stay as they are: the library, too, loads them wide."""
    drift = {}
    for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        narrow = copy.deepcopy(model).float()
        for parameter in narrow.parameters():
            parameter.data = parameter.data.to(dtype)
        alone = ((ids[i:i + 1, :n], mask[i:i + 1, :n], None if types is None else types[i:i + 1, :n])
                 for i, n in enumerate(mask.sum(1).tolist()))
        hidden = torch.cat([run_encoder(narrow.base_model, *row, False).last_hidden_state[0] for row in alone])
        assert hidden.dtype == dtype, f"hidden states in {hidden.dtype}, not in {dtype}"
        gaps = (hidden.double() - exact.double()).abs()
        drift[name] = {"worst": float(f"{gaps.max().item():.3g}"), "mean": float(f"{gaps.mean().item():.3g}")}
    return drift


def batch_goldens(model, cfg, seed, name):
    """One padded batch of three rows, with everything that the model puts out."""
    ids, mask = ragged(cfg.vocab_size, seed, name, cfg.pad_token_id or 0)
    put_pad_in_the_middle(cfg, ids, LENGTHS)
    types = None
    if getattr(cfg, "type_vocab_size", 0) == 2:
        types = torch.zeros_like(ids)
        types[0, 5:] = 1
        types[1, 3:5] = 1
    single = run_encoder(model.float(), ids, mask, types)
    out = run_encoder(model.double(), ids, mask, types)
    assert_padding_is_ignored(name, out, rows_alone(model, ids, mask, types), ids.shape[1])
    t = {"input_ids": ids, "attention_mask": mask, **dict(named_outputs(out))}
    if types is not None:
        t["token_type_ids"] = types
    return t, largest_gap(single, t)


def row_goldens(model, cfg, seed, name):
    """Rows of the lengths where kernels break, packed: row i is cu_seqlens[i]..cu_seqlens[i + 1].

    Logits over the vocabulary are left out (they alone would exceed the size of a fixture), and so
    is last_hidden_state, which repeats the last of the hidden states.
    """
    limit = position_limit(cfg)
    lengths = (*FEWER_ROWS.get(name, ROW_LENGTHS), limit)
    ids, mask = ragged(cfg.vocab_size, seed, name + "/rows", cfg.pad_token_id or 0, lengths=lengths)
    put_pad_in_the_middle(cfg, ids, lengths)
    types = None
    if getattr(cfg, "type_vocab_size", 0) == 2:
        types = torch.zeros_like(ids)
        for i, n in enumerate(lengths):
            types[i, (n + 1) // 2:n] = 1
    model.double()
    alone = list(rows_alone(model, ids, mask, types))
    assert_padding_is_ignored(name, run_encoder(model, ids, mask, types), alone, limit)
    real = mask.bool()
    t = {"rows.cu_seqlens": torch.tensor([0, *np.cumsum(lengths)]), "rows.input_ids": ids[real]}
    if types is not None:
        t["rows.token_type_ids"] = types[real]
    for key, value in alone[0][2].items():
        if key != "last_hidden_state" and value.shape[-1] != cfg.vocab_size:
            per_token = is_per_token(alone[-1][2][key], limit)
            t["rows." + key] = torch.cat([row[key][0] if per_token else row[key] for _, _, row in alone])
    hidden = torch.cat([row["last_hidden_state"][0] for _, _, row in alone])
    return t, drift_of_rounding(model, ids, mask, types, hidden)


def encoder_goldens(model, cfg, seed, name):
    t, drift = batch_goldens(model, cfg, seed, name)
    rows, rounded_drift = row_goldens(model, cfg, seed, name)
    t.update(rows)
    model.float()
    return t, dict(float32_drift=drift, rounded_drift=rounded_drift)


def make_encoder(root, name, seed):
    cls, cfg_cls, kw, labels = ENCODERS[name]
    cfg = getattr(hf, cfg_cls)(**kw)
    if labels:
        cfg.num_labels = labels
    model = eager(getattr(hf, cls), cfg)
    fill(model, seed, 0, name)
    out = new_dir(root, name)
    model.to(STORED.get(name, torch.float32))
    model.save_pretrained(out, **({"max_shard_size": SHARDED[name]} if name in SHARDED else {}))
    t, drift = encoder_goldens(model.float(), cfg, seed, name)
    save_goldens(out, t, meta_of("encoder", cls, 0, **drift))
    return out


def model_of(cls, cfg_cls, kw, labels):
    """A model of the library, or of this file."""
    if cfg_cls in OWN_CONFIGS:
        cfg = OWN_CONFIGS[cfg_cls](**kw, architectures=[cls], **({"num_labels": labels} if labels else {}))
        return OWN_MODELS[cls](cfg).eval(), cfg
    cfg = getattr(hf, cfg_cls)(**kw)
    if labels:
        cfg.num_labels = labels
    return eager(getattr(hf, cls), cfg), cfg


def make_head(root, name, seed):
    """A model with a head, or a bare one where that is small: rows alone, the last hidden state and what the head
    makes of it. `rows.head` has a row per input or per token."""
    cls, cfg_cls, kw, labels = HEADS[name]
    model, cfg = model_of(cls, cfg_cls, kw, labels)
    fill(model, seed, 0, name)
    out = new_dir(root, name)
    model.save_pretrained(out)
    model.double()
    limit = position_limit(cfg)
    lengths = LONG_ROWS.get(name, (1, 2, 7, 17, limit) if limit < 33 else (*ROW_LENGTHS, limit))
    ids, mask = ragged(cfg.vocab_size, seed, name + "/rows", cfg.pad_token_id or 0, lengths=lengths)
    put_pad_in_the_middle(cfg, ids, lengths)
    types = None
    if getattr(cfg, "type_vocab_size", 0) == 2 and cfg.model_type != "mpnet":
        types = torch.zeros_like(ids)
        for i, n in enumerate(lengths):
            types[i, (n + 1) // 2:n] = 1
    per_token = not (cls.endswith("SequenceClassification"))
    rows = {"hidden": [], "head": []}
    whole = (run_encoder(model.base_model, ids, mask, types, False), run_encoder(model, ids, mask, types, False))
    for i, n in enumerate(lengths):
        alone = (ids[i:i + 1, :n], mask[i:i + 1, :n], None if types is None else types[i:i + 1, :n])
        hidden = run_encoder(model.base_model, *alone, False).last_hidden_state[0]
        assert (hidden - whole[0].last_hidden_state[i, :n]).abs().max() < 1e-9, f"{name}: row {i} depends on padding"
        rows["hidden"].append(hidden)
        if cls.endswith(("Model", "CausalLM")):
            continue
        together, single = (head_values(out, per_token) for out in (whole[1], run_encoder(model, *alone, False)))
        together = together[i, :n] if per_token else together[i:i + 1]
        assert (single[0] - together).abs().max() < 1e-9, f"{name}: the head's row {i} depends on padding"
        rows["head"].append(single[0] if per_token else single)
    real = mask.bool()
    t = {"rows.cu_seqlens": torch.tensor([0, *np.cumsum(lengths)]), "rows.input_ids": ids[real],
         "rows.last_hidden_state": torch.cat(rows["hidden"])}
    if types is not None:
        t["rows.token_type_ids"] = types[real]
    if rows["head"]:
        t["rows.head"] = torch.cat(rows["head"])
    drift = drift_of_rounding(model, ids, mask, types, t["rows.last_hidden_state"])
    save_goldens(out, t, meta_of("encoder", cls, 0, rounded_drift=drift))
    return out


def in_float64():
    """Newer models compute softmax and RMS norms in float32 whatever the model's type is: a reference must not."""
    softmax, models = torch.nn.functional.softmax, hf.models

    def wide_softmax(x, dim=None, _stacklevel=3, dtype=None):
        return softmax(x, dim=dim, dtype=None if x.dtype == torch.float64 else dtype)

    torch.nn.functional.softmax = wide_softmax
    for norm, least in ((models.qwen3.modeling_qwen3.Qwen3RMSNorm, 0.0), (models.qwen2.modeling_qwen2.Qwen2RMSNorm, 0.0),
                        (models.mistral.modeling_mistral.MistralRMSNorm, 0.0),
                        (models.llama.modeling_llama.LlamaRMSNorm, 0.0),
                        (models.gemma3.modeling_gemma3.Gemma3RMSNorm, 1.0)):
        norm.forward = wide_norm(norm.forward, least)


def wide_norm(narrow_forward, least):
    """`narrow_forward` in float64; the gain is the weight and `least`."""
    def forward(self, x):
        if x.dtype in (torch.bfloat16, torch.float16):
            return narrow_forward(self, x)
        epsilon = self.eps if hasattr(self, "eps") else self.variance_epsilon
        return (least + self.weight) * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon))

    return forward


def head_values(out, per_token):
    """The logits as one tensor, labels or words along the last axis."""
    if "start_logits" in out:
        return torch.stack([out["start_logits"], out["end_logits"]], -1)
    return out["logits"][..., None] if per_token and out["logits"].dim() == 2 else out["logits"]


def make_legacy(root, seed):
    """bert-mlm under the names of checkpoints converted from TensorFlow, plus tensors nobody needs."""
    with tempfile.TemporaryDirectory() as scratch:
        src = make_head(Path(scratch), "bert-mlm", seed)
        out = new_dir(root, "bert-mlm-legacy")
        old = load_file(str(src / "model.safetensors"))
        new = {k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
               for k, v in old.items()}
        new["bert.embeddings.position_ids"] = torch.arange(24).unsqueeze(0)
        new["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
        new["cls.predictions.decoder.bias"] = old["cls.predictions.bias"].clone()
        new["cls.seq_relationship.weight"] = torch.zeros(2, 16)
        new["cls.seq_relationship.bias"] = torch.zeros(2)
        save_file(new, str(out / "model.safetensors"), metadata={"format": "pt"})
        for f in ("config.json", "golden.safetensors", "golden.json"):
            shutil.copy(src / f, out / f)
    return out


# ---------------------------- encoders that the library has in a later version

# Three families of the Hub bring their own Python code. What follows was written from the facts of their published
# configurations and tensors and of how text-embeddings-inference computes them; it is checked against itself only, and
# its rotation against the library's.

class OwnConfig:
    """What config.json holds, with attributes."""

    def __init__(self, defaults, given):
        self.fields = {**defaults, **given}

    def __getattr__(self, name):
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(name) from None


class NomicBertConfig(OwnConfig):
    def __init__(self, **kw):
        labels = kw.pop("num_labels", None)
        super().__init__(dict(
            model_type="nomic_bert", activation_function="swiglu", causal=False, layer_norm_epsilon=1e-12,
            max_trained_positions=2048, mlp_fc1_bias=False, mlp_fc2_bias=False, parallel_block=False, prenorm=False,
            qkv_proj_bias=False, rotary_emb_base=1000, rotary_emb_fraction=1.0, rotary_emb_interleaved=False,
            rotary_emb_scale_base=None, rotary_scaling_factor=None, scale_attn_weights=True, type_vocab_size=2,
            use_rms_norm=False, pad_token_id=0, torch_dtype="float32"), kw)
        assert labels is None
        self.max_position_embeddings = self.n_positions
        self.hidden_size = self.n_embd


class NewConfig(OwnConfig):
    def __init__(self, **kw):
        labels = kw.pop("num_labels", None)
        if labels:
            kw["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
        super().__init__(dict(
            model_type="new", hidden_act="gelu", layer_norm_eps=1e-12, layer_norm_type="layer_norm",
            logn_attention_clip1=False, logn_attention_scale=False, pack_qkv=True, position_embedding_type="rope",
            pad_token_id=0, torch_dtype="float32"), kw)


class JinaBertConfig(OwnConfig):
    def __init__(self, **kw):
        labels = kw.pop("num_labels", None)
        if labels:
            kw["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
        super().__init__(dict(
            model_type="bert", emb_pooler="mean", feed_forward_type="geglu", hidden_act="gelu", layer_norm_eps=1e-12,
            pad_token_id=0, position_embedding_type="alibi", torch_dtype="float32", type_vocab_size=2), kw)

    @property
    def is_later(self):
        return "auto_map" in self.fields


OWN_CONFIGS = {"NomicBertConfig": NomicBertConfig, "NewConfig": NewConfig, "JinaBertConfig": JinaBertConfig}


def rotate(x, base, scale=1.0):
    """Rotary positions of [.., tokens, head_dim]: column i turns with i + head_dim / 2."""
    n, dim = x.shape[-2:]
    frequency = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim) / scale
    angle = torch.arange(n, dtype=torch.float64)[:, None] * frequency
    cos, sin = (torch.cat([f, f], -1).to(x.dtype) for f in (angle.cos(), angle.sin()))
    from transformers.models.modernbert.modeling_modernbert import rotate_half
    return x * cos + rotate_half(x) * sin


class Names(torch.nn.Module):
    """A node in the tree of published names."""

    def __init__(self, /, **children):  # "self" may be one of them
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


class OwnEncoder(torch.nn.Module):
    """Common to both: post-norm layers of packed projections, rotary positions and a gated feed-forward part."""

    def hidden(self, x, mask):
        heads = self.heads
        bias = torch.where(mask[:, None, None, :].bool(), 0.0, -torch.inf).to(x.dtype)
        for i in range(self.layers):
            qkv = self.project(i, x)
            b, n, width = x.shape
            q, k, v = (part.view(b, n, heads, width // heads).transpose(1, 2) for part in qkv.split(width, -1))
            q, k = (rotate(part, *self.rotary) for part in (q, k))
            weights = (q @ k.transpose(-1, -2) / (width // heads) ** 0.5 + bias).softmax(-1)
            context = (weights @ v).transpose(1, 2).reshape(b, n, width)
            x = self.rest(i, context, x)
        return x

    def save_pretrained(self, out):
        put_json(out / "config.json", self.config.fields)
        save_file({name: p.detach().contiguous() for name, p in self.state_dict().items()}, str(out / "model.safetensors"),
                  metadata={"format": "pt"})

    @property
    def base_model(self):
        return self


class NomicBertModel(OwnEncoder):
    def __init__(self, cfg):
        super().__init__()
        nn, n, inner, eps = torch.nn, cfg.n_embd, cfg.n_inner, cfg.layer_norm_epsilon
        self.config, self.heads, self.layers = cfg, cfg.n_head, cfg.n_layer
        self.rotary = (cfg.rotary_emb_base,)
        self.embeddings = Names(word_embeddings=nn.Embedding(cfg.vocab_size, n),
                                token_type_embeddings=nn.Embedding(cfg.type_vocab_size, n))
        self.emb_ln = nn.LayerNorm(n, eps)

        attention, wide, narrow = cfg.qkv_proj_bias, cfg.mlp_fc1_bias, cfg.mlp_fc2_bias
        self.encoder = Names(layers=nn.ModuleList(
            Names(attn=Names(Wqkv=nn.Linear(n, 3 * n, attention), out_proj=nn.Linear(n, n, attention)),
                  mlp=self.feed_forward(cfg, i, wide, narrow),
                  norm1=nn.LayerNorm(n, eps), norm2=nn.LayerNorm(n, eps)) for i in range(cfg.n_layer)))

    def feed_forward(self, cfg, layer, wide, narrow):
        nn, n, inner = torch.nn, cfg.n_embd, cfg.n_inner
        if layer % cfg.fields.get("moe_every_n_layers", 1) == 1:
            matrix = lambda: nn.Parameter(torch.zeros(cfg.num_experts * inner, n))
            mlp = Names()
            mlp.w1, mlp.w2 = matrix(), matrix()
            experts = Names(mlp=mlp)
            experts.bias = nn.Parameter(torch.zeros(n))
            return Names(router=Names(layer=nn.Linear(n, cfg.num_experts, bias=False)), experts=experts)
        if cfg.activation_function == "gelu":
            return Names(fc1=nn.Linear(n, inner, wide), fc2=nn.Linear(inner, n, narrow))
        return Names(fc11=nn.Linear(n, inner, wide), fc12=nn.Linear(n, inner, wide), fc2=nn.Linear(inner, n, narrow))

    def project(self, i, x):
        return self.encoder.layers[i].attn.Wqkv(x)

    def rest(self, i, context, x):
        layer = self.encoder.layers[i]
        x = layer.norm1(layer.attn.out_proj(context) + x)
        return layer.norm2(self.made_of(layer.mlp, x) + x)

    def made_of(self, mlp, x):
        gelu, silu = torch.nn.functional.gelu, torch.nn.functional.silu
        if hasattr(mlp, "fc11"):
            return mlp.fc2(mlp.fc11(x) * silu(mlp.fc12(x)))
        if hasattr(mlp, "fc1"):
            return mlp.fc2(gelu(mlp.fc1(x)))
        # expert by expert, for the tokens that have it
        weights, chosen = mlp.router.layer(x).softmax(-1).topk(self.config.moe_top_k, -1)
        out = torch.zeros_like(x)
        parts = zip(mlp.experts.mlp.w1.chunk(self.config.num_experts), mlp.experts.mlp.w2.chunk(self.config.num_experts))
        for expert, (up, down) in enumerate(parts):
            row, token, place = (chosen == expert).nonzero(as_tuple=True)
            out[row, token] += weights[row, token, place][:, None] * (gelu(x[row, token] @ up.T) @ down)
        return out + mlp.experts.bias

    def forward(self, input_ids, attention_mask, token_type_ids=None, **_):
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.embeddings.word_embeddings(input_ids) + self.embeddings.token_type_embeddings(types)
        return hf.modeling_outputs.BaseModelOutput(last_hidden_state=self.hidden(self.emb_ln(x), attention_mask))


class NewModel(OwnEncoder):
    def __init__(self, cfg):
        super().__init__()
        nn, n, inner, eps = torch.nn, cfg.hidden_size, cfg.intermediate_size, cfg.layer_norm_eps
        self.config, self.heads, self.layers = cfg, cfg.num_attention_heads, cfg.num_hidden_layers
        factor = (cfg.rope_scaling or {"factor": 1.0})["factor"]
        self.rotary = (cfg.rope_theta * factor, factor ** (2 / (n // self.heads)))
        tables = dict(word_embeddings=nn.Embedding(cfg.vocab_size, n), LayerNorm=nn.LayerNorm(n, eps))
        if cfg.type_vocab_size:
            tables["token_type_embeddings"] = nn.Embedding(cfg.type_vocab_size, n)
        self.embeddings = Names(**tables)
        self.encoder = Names(layer=nn.ModuleList(
            Names(attention=Names(qkv_proj=nn.Linear(n, 3 * n), o_proj=nn.Linear(n, n)),
                  mlp=Names(up_gate_proj=nn.Linear(n, 2 * inner, bias=False), down_proj=nn.Linear(inner, n)),
                  attn_ln=nn.LayerNorm(n, eps), mlp_ln=nn.LayerNorm(n, eps)) for _ in range(self.layers)))

    def project(self, i, x):
        return self.encoder.layer[i].attention.qkv_proj(x)

    def rest(self, i, context, x):
        layer = self.encoder.layer[i]
        x = layer.attn_ln(layer.attention.o_proj(context) + x)
        up, gated = layer.mlp.up_gate_proj(x).chunk(2, -1)
        return layer.mlp_ln(layer.mlp.down_proj(torch.nn.functional.gelu(gated) * up) + x)

    def forward(self, input_ids, attention_mask, token_type_ids=None, **_):
        x = self.embeddings.word_embeddings(input_ids)
        if self.config.type_vocab_size:
            types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            x = x + self.embeddings.token_type_embeddings(types)
        x = self.hidden(self.embeddings.LayerNorm(x), attention_mask)
        return hf.modeling_outputs.BaseModelOutput(last_hidden_state=x)


class NewForSequenceClassification(OwnEncoder):
    def __init__(self, cfg):
        super().__init__()
        self.config, self.new = cfg, NewModel(cfg)
        self.new.pooler = Names(dense=torch.nn.Linear(cfg.hidden_size, cfg.hidden_size))
        self.classifier = torch.nn.Linear(cfg.hidden_size, len(cfg.id2label))

    @property
    def base_model(self):
        return self.new

    def forward(self, **kw):
        first = self.new(**kw).last_hidden_state[:, 0]
        return hf.modeling_outputs.SequenceClassifierOutput(logits=self.classifier(self.new.pooler.dense(first).tanh()))


class NewForTokenClassification(OwnEncoder):
    def __init__(self, cfg):
        super().__init__()
        self.config, self.new = cfg, NewModel(cfg)
        self.classifier = torch.nn.Linear(cfg.hidden_size, len(cfg.id2label))

    @property
    def base_model(self):
        return self.new

    def forward(self, **kw):
        return hf.modeling_outputs.TokenClassifierOutput(logits=self.classifier(self.new(**kw).last_hidden_state))


class NewForMaskedLM(OwnEncoder):
    """The matrix is that of the embeddings, and the file has it once."""

    def __init__(self, cfg):
        super().__init__()
        nn, n = torch.nn, cfg.hidden_size
        self.config, self.new = cfg, NewModel(cfg)
        self.lm_head = Names(dense=nn.Linear(n, n), norm=nn.LayerNorm(n, cfg.layer_norm_eps), decoder=Names())
        self.lm_head.decoder.bias = nn.Parameter(torch.zeros(cfg.vocab_size))

    @property
    def base_model(self):
        return self.new

    def forward(self, **kw):
        x = self.lm_head.dense(self.new(**kw).last_hidden_state)
        x = self.lm_head.norm(torch.nn.functional.gelu(x))
        logits = x @ self.new.embeddings.word_embeddings.weight.T + self.lm_head.decoder.bias
        return hf.modeling_outputs.MaskedLMOutput(logits=logits)


def alibi_slopes(heads):
    """Of each head (Press et al., 2021, section 3): the powers of 2^(-8/heads), or for a number that is no power of two
    those of the power below, and every other one of the power above."""
    below = 2 ** int(np.log2(heads))
    slopes = [2.0 ** (-8 * (i + 1) / below) for i in range(below)]
    return torch.tensor(slopes if below == heads else slopes + alibi_slopes(2 * below).tolist()[::2][:heads - below],
                        dtype=torch.float64)


class JinaBertModel(OwnEncoder):
    """No position embeddings: scores fall with the distance."""

    def __init__(self, cfg):
        super().__init__()
        nn, n, inner, eps, later = torch.nn, cfg.hidden_size, cfg.intermediate_size, cfg.layer_norm_eps, cfg.is_later
        self.config, self.heads = cfg, cfg.num_attention_heads
        self.act = {"geglu": nn.functional.gelu, "reglu": nn.functional.relu}[cfg.feed_forward_type]
        self.embeddings = Names(word_embeddings=nn.Embedding(cfg.vocab_size, n),
                                token_type_embeddings=nn.Embedding(cfg.type_vocab_size, n), LayerNorm=nn.LayerNorm(n, eps))

        def layer():
            attention = Names(self=Names(query=nn.Linear(n, n), key=nn.Linear(n, n), value=nn.Linear(n, n)),
                              output=Names(dense=nn.Linear(n, n), LayerNorm=nn.LayerNorm(n, eps)))
            wide, narrow = nn.Linear(n, 2 * inner, bias=False), nn.Linear(inner, n)
            if not later:
                return Names(attention=attention, mlp=Names(gated_layers=wide, wo=narrow, layernorm=nn.LayerNorm(n, eps)))
            attention.self.layer_norm_q, attention.self.layer_norm_k = nn.LayerNorm(n, eps), nn.LayerNorm(n, eps)
            return Names(attention=attention, mlp=Names(up_gated_layer=wide, down_layer=narrow),
                         layer_norm_1=nn.LayerNorm(n, eps), layer_norm_2=nn.LayerNorm(n, eps))

        self.encoder = Names(layer=nn.ModuleList(layer() for _ in range(cfg.num_hidden_layers)))

    def attend(self, attention, x, mask):
        (b, n, width), heads, later = x.shape, self.heads, self.config.is_later
        part = attention.self
        q, k, v = part.query(x), part.key(x), part.value(x)
        if later:
            q, k = part.layer_norm_q(q), part.layer_norm_k(k)
        q, k, v = (rows.view(b, n, heads, width // heads).transpose(1, 2) for rows in (q, k, v))
        position = torch.arange(n)
        distance = (position[:, None] - position).abs()
        bias = (-alibi_slopes(heads)[:, None, None] * distance).to(x.dtype)
        bias = bias + torch.where(mask[:, None, None, :].bool(), 0.0, -torch.inf).to(x.dtype)
        context = (q @ k.transpose(-1, -2) / (width // heads) ** 0.5 + bias).softmax(-1) @ v
        return attention.output.LayerNorm(attention.output.dense(context.transpose(1, 2).reshape(b, n, width)) + x)

    def layer(self, layer, x, mask):
        attended = self.attend(layer.attention, x, mask)
        mlp = layer.mlp
        if not self.config.is_later:
            gate, up = mlp.gated_layers(attended).chunk(2, -1)
            return mlp.layernorm(mlp.wo(self.act(gate) * up) + attended)
        attended = layer.layer_norm_1(attended + x)
        up, gate = mlp.up_gated_layer(attended).chunk(2, -1)
        return layer.layer_norm_2(mlp.down_layer(self.act(gate) * up) + attended)

    def forward(self, input_ids, attention_mask, token_type_ids, **_):
        x = self.embeddings.word_embeddings(input_ids) + self.embeddings.token_type_embeddings(token_type_ids)
        x = self.embeddings.LayerNorm(x)
        for layer in self.encoder.layer:
            x = self.layer(layer, x, attention_mask)
        return hf.modeling_outputs.BaseModelOutput(last_hidden_state=x)


class JinaBertHead(OwnEncoder):
    """The heads are BERT's."""

    def __init__(self, cfg):
        super().__init__()
        self.config, self.bert = cfg, JinaBertModel(cfg)

    @property
    def base_model(self):
        return self.bert


class JinaBertForSequenceClassification(JinaBertHead):
    def __init__(self, cfg):
        super().__init__(cfg)
        self.bert.pooler = Names(dense=torch.nn.Linear(cfg.hidden_size, cfg.hidden_size))
        self.classifier = torch.nn.Linear(cfg.hidden_size, len(cfg.id2label))

    def forward(self, **kw):
        first = self.bert(**kw).last_hidden_state[:, 0]
        return hf.modeling_outputs.SequenceClassifierOutput(logits=self.classifier(self.bert.pooler.dense(first).tanh()))


class JinaBertForTokenClassification(JinaBertHead):
    def __init__(self, cfg):
        super().__init__(cfg)
        self.classifier = torch.nn.Linear(cfg.hidden_size, len(cfg.id2label))

    def forward(self, **kw):
        return hf.modeling_outputs.TokenClassifierOutput(logits=self.classifier(self.bert(**kw).last_hidden_state))


class JinaBertForQuestionAnswering(JinaBertHead):
    def __init__(self, cfg):
        super().__init__(cfg)
        self.qa_outputs = torch.nn.Linear(cfg.hidden_size, 2)

    def forward(self, **kw):
        start, end = self.qa_outputs(self.bert(**kw).last_hidden_state).unbind(-1)
        return hf.modeling_outputs.QuestionAnsweringModelOutput(start_logits=start, end_logits=end)


class JinaBertForMaskedLM(JinaBertHead):
    """The matrix is that of the embeddings, and the file has it once."""

    def __init__(self, cfg):
        super().__init__(cfg)
        nn, n = torch.nn, cfg.hidden_size
        transform = Names(dense=nn.Linear(n, n), LayerNorm=nn.LayerNorm(n, cfg.layer_norm_eps))
        self.cls = Names(predictions=Names(transform=transform))
        self.cls.predictions.bias = nn.Parameter(torch.zeros(cfg.vocab_size))

    def forward(self, **kw):
        head = self.cls.predictions
        x = torch.nn.functional.gelu(head.transform.dense(self.bert(**kw).last_hidden_state))
        logits = head.transform.LayerNorm(x) @ self.bert.embeddings.word_embeddings.weight.T + head.bias
        return hf.modeling_outputs.MaskedLMOutput(logits=logits)


OWN_MODELS = {"NomicBertModel": NomicBertModel, "NewModel": NewModel,
              "NewForSequenceClassification": NewForSequenceClassification,
              "NewForTokenClassification": NewForTokenClassification, "NewForMaskedLM": NewForMaskedLM,
              **{cls.__name__: cls for cls in (
                  JinaBertModel, JinaBertForSequenceClassification, JinaBertForTokenClassification,
                  JinaBertForQuestionAnswering, JinaBertForMaskedLM)}}


# --------------------------------------------------------- generative models

def seq2seq(cls, cfg, **kw):
    return ("seq2seq", cls, cfg, kw)


S32 = dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
           encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=32, vocab_size=128)
GPT = dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=300, bos_token_id=299, eos_token_id=299)
T5 = dict(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=128, relative_attention_num_buckets=8,
          relative_attention_max_distance=16, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)

GENERATORS = {
    "gpt2": ("decoder", "GPT2LMHeadModel", "GPT2Config", GPT),
    "gpt2-sharded": ("decoder", "GPT2LMHeadModel", "GPT2Config", GPT),
    "bart": seq2seq("BartForConditionalGeneration", "BartConfig", **S32, pad_token_id=1, bos_token_id=0,
                    eos_token_id=2, decoder_start_token_id=2, forced_bos_token_id=0, forced_eos_token_id=2,
                    activation_function="gelu", scale_embedding=False),
    "marian": seq2seq("MarianMTModel", "MarianConfig", **S32, pad_token_id=127, eos_token_id=0,
                      bos_token_id=0, decoder_start_token_id=127, forced_eos_token_id=0, bad_words_ids=[[127]],
                      activation_function="swish", scale_embedding=True, static_position_embeddings=True,
                      num_beams=4, decoder_vocab_size=128),
    "t5": seq2seq("T5ForConditionalGeneration", "T5Config", **T5, feed_forward_proj="relu"),
    "t5-gated": seq2seq("T5ForConditionalGeneration", "T5Config", **T5, feed_forward_proj="gated-gelu",
                        tie_word_embeddings=False),
}

RUNS = {
    "greedy": dict(),
    "greedy_min_length": dict(min_new_tokens=6),
    "greedy_repetition": dict(repetition_penalty=1.4),
    "greedy_no_repeat_2gram": dict(no_repeat_ngram_size=2),
    "beam4": dict(num_beams=4, num_return_sequences=4),
    "beam4_short": dict(num_beams=4, num_return_sequences=4, length_penalty=0.0),
    "beam4_long_early": dict(num_beams=4, num_return_sequences=4, length_penalty=2.0, early_stopping=True),
    "beam4_never": dict(num_beams=4, num_return_sequences=4, length_penalty=1.0, early_stopping="never"),
    "diverse4x2": dict(num_beams=4, num_beam_groups=2, diversity_penalty=0.7, num_return_sequences=4),
}

FILTERS = {
    "temperature": dict(temperature=0.7),
    "top_k": dict(top_k=20),
    "top_p": dict(top_p=0.8),
    "min_p": dict(min_p=0.05),
    "typical": dict(typical_p=0.8),
    "temperature_top_k_top_p": dict(temperature=0.8, top_k=40, top_p=0.9),
}


def warpers(spec):
    """In the order that generate() applies them."""
    chain = []
    if "temperature" in spec:
        chain.append(lp.TemperatureLogitsWarper(spec["temperature"]))
    if "top_k" in spec:
        chain.append(lp.TopKLogitsWarper(spec["top_k"]))
    if "top_p" in spec:
        chain.append(lp.TopPLogitsWarper(spec["top_p"]))
    if "min_p" in spec:
        chain.append(lp.MinPLogitsWarper(spec["min_p"]))
    if "typical_p" in spec:
        chain.append(lp.TypicalLogitsWarper(spec["typical_p"]))
    return chain


def filtered(logits, spec):
    for w in warpers(spec):
        logits = w(None, logits)
    return torch.softmax(logits, -1)


def generate_all(model, ids, mask, base):
    """Run every entry of RUNS; return lists that JSON can hold."""
    found = {}
    # group beam search wants float32 logits; the forward pass keeps the model's precision
    hook = model.register_forward_hook(lambda m, a, out: out.__setitem__("logits", out.logits.float()) or out)
    for run, kw in RUNS.items():
        gen = hf.GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, return_dict_in_generate=True,
                                  output_scores=True, output_logits=True, **{**base, "num_beams": 1, **kw})
        with torch.no_grad():
            out = model.generate(input_ids=ids, attention_mask=mask, generation_config=gen)
        entry = {"arguments": kw, "sequences": out.sequences.tolist()}
        if kw.get("num_beams", 1) > 1:
            entry["sequences_scores"] = [round(float(s), 6) for s in out.sequences_scores]
        found[run] = entry
        if run == "greedy":
            found["_greedy"] = torch.stack(out.logits, 1)
    hook.remove()
    return found


def sampled(model, kind, ids, mask, base, spec, stream):
    """One sequence drawn by inverse CDF over ascending ids from a given stream of uniforms."""
    tokens = []
    for u in stream:
        with torch.no_grad():
            if kind == "decoder":
                seq = torch.cat([ids, torch.tensor([tokens], dtype=torch.int64)], 1)
                logits = model(input_ids=seq).logits[:, -1]
            else:
                dec = torch.tensor([[base["decoder_start_token_id"]] + tokens])
                logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=dec).logits[:, -1]
        p = filtered(logits.double(), spec)[0]
        c = torch.cumsum(p, 0)
        if (c - u).abs().min() < 1e-6:
            raise Unstable("sampling trace")
        tokens.append(int((c > u).nonzero()[0]))
        if tokens[-1] == base["eos_token_id"]:
            break
    return tokens


def pick_eos(model, ids, mask, kind, cfg):
    """A token that greedy search reaches after a few steps, so that some searches stop early."""
    base = dict(pad_token_id=cfg.pad_token_id if cfg.pad_token_id is not None else 298, eos_token_id=None)
    if kind == "seq2seq":
        base["decoder_start_token_id"] = cfg.decoder_start_token_id
    gen = hf.GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, **base)
    with torch.no_grad():
        out = model.generate(input_ids=ids, attention_mask=mask, generation_config=gen)
    start = ids.shape[1] if kind == "decoder" else 1
    for step in (5, 6, 4, 7, 3):
        token = int(out[0, start + step])
        if token not in out[0, start:start + step].tolist() and token != base["pad_token_id"]:
            return token
    raise Unstable("greedy search only repeats itself")


def try_generator(root, name, seed, salt):
    kind, cls, cfg_cls, kw = GENERATORS[name]
    cfg = getattr(hf, cfg_cls)(**kw)
    model = eager(getattr(hf, cls), cfg)
    fill(model, seed, salt, name)
    pad = 298 if kind == "decoder" else cfg.pad_token_id
    ids, mask = ragged(cfg.vocab_size - 10, seed, name, pad, left=kind == "decoder")
    base = dict(pad_token_id=pad)
    if kind == "decoder" or cls.startswith("T5"):
        cfg.eos_token_id = pick_eos(model, ids, mask, kind, cfg)
    base["eos_token_id"] = cfg.eos_token_id
    if kind == "seq2seq":
        base["decoder_start_token_id"] = cfg.decoder_start_token_id
    for key in ("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids"):
        if kw.get(key) is not None:
            base[key] = kw[key]
    model.generation_config = hf.GenerationConfig(**base)

    single = generate_all(model, ids, mask, base)
    model.double()
    exact = generate_all(model, ids, mask, base)
    for run in RUNS:
        if single[run]["sequences"] != exact[run]["sequences"]:
            raise Unstable(run)
        s = exact[run].get("sequences_scores")
        if s:  # order of the returned hypotheses must not hang on rounding either
            k = len(s) // ids.shape[0]
            for b in range(0, len(s), k):
                if run != "diverse4x2" and any(abs(a - c) < 2e-4 for a, c in zip(s[b:b + k], s[b + 1:b + k])):
                    raise Unstable(run + " scores")
    first = ids.shape[1] if kind == "decoder" else 1
    ends = {(r[first:] + [cfg.eos_token_id]).index(cfg.eos_token_id) for r in exact["greedy"]["sequences"]}
    if len(ends) < 2 or min(ends) < 1:
        raise Unstable("greedy rows should end at different steps")

    t = {"input_ids": ids, "attention_mask": mask, "greedy.logits": exact.pop("_greedy")}
    with torch.no_grad():
        if kind == "decoder":
            pos = (mask.cumsum(1) - 1).clamp(min=0)
            o = model(input_ids=ids, attention_mask=mask, position_ids=pos, output_hidden_states=True)
            t["position_ids"] = pos
            t["logits"] = o.logits
            for i, h in enumerate(o.hidden_states):
                t[f"hidden_states.{i}"] = h
            nxt = o.logits[0:1, -1]
        else:
            dec = torch.from_numpy(rng(seed, name, "decoder").integers(5, cfg.vocab_size - 10, (ids.shape[0], 6)))
            dec[:, 0] = cfg.decoder_start_token_id
            o = model(input_ids=ids, attention_mask=mask, decoder_input_ids=dec, output_hidden_states=True)
            t["decoder_input_ids"] = dec
            t["logits"] = o.logits
            t["encoder_last_hidden_state"] = o.encoder_last_hidden_state
            for i, h in enumerate(o.encoder_hidden_states):
                t[f"encoder_hidden_states.{i}"] = h
            for i, h in enumerate(o.decoder_hidden_states):
                t[f"decoder_hidden_states.{i}"] = h
            nxt = o.logits[0:1, -1]
    t["sampling.logits"] = nxt[0]
    samples = {}
    n = int(mask[0].sum())
    for label, spec in FILTERS.items():
        t[f"sampling.{label}.probs"] = filtered(nxt.double(), spec)[0]
        stream = rng(seed, name, label).random(NEW_TOKENS).round(6).tolist()
        row = ids[0:1, -n:] if kind == "decoder" else ids[0:1, :n]
        a = sampled(model, kind, row, torch.ones_like(row), base, spec, stream)
        samples[label] = {"arguments": spec, "uniforms": stream, "tokens": a}
    model.float()

    out = new_dir(root, name)
    model.save_pretrained(out, **({"max_shard_size": SHARDED[name]} if name in SHARDED else {}))
    save_goldens(out, t, meta_of(kind, cls, salt, max_new_tokens=NEW_TOKENS, base=base,
                                 runs={k: exact[k] for k in RUNS}, sampling=samples))
    return out


def make_generator(root, name, seed):
    why = None
    for salt in range(MAX_SALT):
        try:
            return try_generator(root, name, seed, salt)
        except Unstable as e:
            why = e
    raise SystemExit(f"{name}: no stable salt below {MAX_SALT} (last: {why})")


# ---------------------------------------------------------- recurrent models

H = 32


def gate(w, b, x):
    return x @ w.T + b


def weights(seed, fixture, shapes):
    t = {}
    for name, shape in shapes.items():
        x = rng(seed, fixture, name).standard_normal(shape)
        x *= 0.1 if len(shape) == 1 else (0.5 if "embedding" in name else 1.5 / np.sqrt(shape[-1]))
        t[name] = torch.from_numpy(x.astype(np.float32))
    return t


def lstm_shapes(prefix, layers, inputs):
    s = {}
    for n in range(layers):
        s[f"{prefix}.weight_ih_l{n}"] = (4 * H, inputs if n == 0 else H)
        s[f"{prefix}.weight_hh_l{n}"] = (4 * H, H)
        s[f"{prefix}.bias_ih_l{n}"] = (4 * H,)
        s[f"{prefix}.bias_hh_l{n}"] = (4 * H,)
    return s


def lstm_module(t, prefix, layers, inputs):
    m = torch.nn.LSTM(inputs, H, layers, batch_first=True).double().eval()
    m.load_state_dict({k[len(prefix) + 1:]: v.double() for k, v in t.items() if k.startswith(prefix + ".")})
    return m


def lstm_by_hand(t, prefix, x):
    """The textbook recurrence, gates in the order i, f, g, o; a check on the module."""
    w = {k.rsplit(".", 1)[1]: v.double() for k, v in t.items() if k.startswith(prefix + ".")}
    n = 0
    while f"weight_ih_l{n}" in w:
        h = c = torch.zeros(H, dtype=torch.float64)
        ys = []
        for step in x:
            z = gate(w[f"weight_ih_l{n}"], w[f"bias_ih_l{n}"], step) + gate(w[f"weight_hh_l{n}"], w[f"bias_hh_l{n}"], h)
            i, f, g, o = z.split(H)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            ys.append(h)
        x = torch.stack(ys)
        n += 1
    return x


def save_rnn(root, name, cfg, t, goldens, meta):
    out = new_dir(root, name)
    put_json(out / "config.json", cfg)
    save_file(t, str(out / "model.safetensors"), metadata={"format": "pt"})
    save_goldens(out, goldens, meta_of("rnn", cfg["model_type"], meta.pop("salt", 0), **meta))
    return out


def make_lstm(root, seed):
    vocab, layers = 200, 2
    t = weights(seed, "lstm", {"embedding.weight": (vocab, H), **lstm_shapes("lstm", layers, H)})
    m = lstm_module(t, "lstm", layers, H)
    ids, mask = ragged(vocab, seed, "lstm", 0)
    g = {"input_ids": ids, "attention_mask": mask}
    emb = t["embedding.weight"].double()
    with torch.no_grad():
        for i, n in enumerate(LENGTHS):
            x = emb[ids[i, :n]]
            y, (h, c) = m(x.unsqueeze(0))
            assert (lstm_by_hand(t, "lstm", x) - y[0]).abs().max() < 1e-12
            g[f"output.{i}"], g[f"h_n.{i}"], g[f"c_n.{i}"] = y[0], h[:, 0], c[:, 0]
    cfg = dict(model_type="lstm", vocab_size=vocab, hidden_size=H, input_size=H, num_layers=layers)
    return save_rnn(root, "lstm", cfg, t, g, {})


def make_seq2seq_lstm(root, seed):
    vocab, bos, limit = 200, 1, 16
    shapes = {"encoder.embedding.weight": (vocab, H), **lstm_shapes("encoder.lstm", 1, H),
              "decoder.embedding.weight": (vocab, H), **lstm_shapes("decoder.lstm", 1, H),
              "decoder.projection.weight": (vocab, H), "decoder.projection.bias": (vocab,)}
    for salt in range(MAX_SALT):
        t = weights(seed + 1000 * salt, "seq2seq-lstm", shapes)
        t["decoder.embedding.weight"] *= 3  # make the fed-back token matter
        enc, dec = lstm_module(t, "encoder.lstm", 1, H), lstm_module(t, "decoder.lstm", 1, H)
        ids, mask = ragged(vocab, seed, "seq2seq-lstm", 0)
        e_in, e_out = t["encoder.embedding.weight"].double(), t["decoder.embedding.weight"].double()
        w, b = t["decoder.projection.weight"].double(), t["decoder.projection.bias"].double()
        g, free = {"input_ids": ids, "attention_mask": mask}, []
        gap = 9.0
        with torch.no_grad():
            for i, n in enumerate(LENGTHS):
                _, state = enc(e_in[ids[i, :n]].unsqueeze(0))
                token, steps, logits = bos, [], []
                for _ in range(limit):
                    y, state = dec(e_out[token].view(1, 1, -1), state)
                    z = gate(w, b, y[0, 0])
                    top = z.topk(2).values
                    gap = min(gap, float(top[0] - top[1]))
                    token = int(z.argmax())
                    steps.append(token)
                    logits.append(z)
                free.append(steps)
                g[f"logits.{i}"] = torch.stack(logits)
        eos = free[0][7]
        if gap > 1e-3 and eos not in free[0][:7] and len(set(map(tuple, free))) == len(LENGTHS) and eos != bos:
            break
    else:
        raise SystemExit("seq2seq-lstm: no stable salt")
    cut = [s[:s.index(eos) + 1] if eos in s else s for s in free]
    for i, s in enumerate(cut):
        g[f"logits.{i}"] = g[f"logits.{i}"][:len(s)]
    cfg = dict(model_type="seq2seq-lstm", vocab_size=vocab, hidden_size=H, input_size=H, num_layers=1,
               bos_token_id=bos, eos_token_id=eos, max_length=limit, feed_previous="argmax")
    return save_rnn(root, "seq2seq-lstm", cfg, t, g, {"tokens": cut, "salt": salt, "smallest_gap": gap})


# Node numbers are post-order: children come before parents; the root is last.
CHILD_SUM_TREES = [
    [[], [], [0, 1]],
    [[], [0], [], [], [1, 2, 3], []],  # the last entry is rewritten below to be the root
    [[]],
]
CHILD_SUM_TREES[1][5] = [4]


def make_treelstm_childsum(root, seed):
    """Child-sum Tree-LSTM: one forget gate per child, other gates see the sum of child states."""
    vocab = 200
    shapes = {"embedding.weight": (vocab, H)}
    for gt in "ifou":
        shapes.update({f"cell.w_{gt}.weight": (H, H), f"cell.w_{gt}.bias": (H,), f"cell.u_{gt}.weight": (H, H)})
    t = weights(seed, "treelstm-childsum", shapes)
    d = {k: v.double() for k, v in t.items()}
    g, trees = {}, []
    for n, kids in enumerate(CHILD_SUM_TREES):
        tokens = rng(seed, "childsum", str(n)).integers(0, vocab, len(kids)).tolist()
        hs, cs = [], []
        for node, ch in enumerate(kids):
            x = d["embedding.weight"][tokens[node]]
            h_sum = sum((hs[k] for k in ch), torch.zeros(H, dtype=torch.float64))
            pre = {q: gate(d[f"cell.w_{q}.weight"], d[f"cell.w_{q}.bias"], x) for q in "ifou"}
            i = torch.sigmoid(pre["i"] + d["cell.u_i.weight"] @ h_sum)
            o = torch.sigmoid(pre["o"] + d["cell.u_o.weight"] @ h_sum)
            u = torch.tanh(pre["u"] + d["cell.u_u.weight"] @ h_sum)
            c = i * u
            for k in ch:
                c = c + torch.sigmoid(pre["f"] + d["cell.u_f.weight"] @ hs[k]) * cs[k]
            hs.append(o * torch.tanh(c))
            cs.append(c)
        g[f"h.{n}"], g[f"c.{n}"] = torch.stack(hs), torch.stack(cs)
        trees.append({"children": kids, "tokens": tokens})
    cfg = dict(model_type="treelstm-childsum", vocab_size=vocab, hidden_size=H, input_size=H)
    return save_rnn(root, "treelstm-childsum", cfg, t, g, {"trees": trees})


# Pairs are (left, right); None is a leaf, which is the only kind of node with a token.
BINARY_TREES = [
    [None, None, (0, 1)],
    [None, None, (0, 1), None, (2, 3), None, None, (5, 6), (4, 7)],
    [None, None, (0, 1), None, (2, 3), None, (4, 5), None, (6, 7)],
    [None],
]


def make_treelstm_binary(root, seed):
    """Binary Tree-LSTM with separate leaf and internal cells; left and right forget gates."""
    vocab = 200
    shapes = {"embedding.weight": (vocab, H)}
    for gt in "iou":
        shapes.update({f"leaf.w_{gt}.weight": (H, H), f"leaf.w_{gt}.bias": (H,)})
    for gt in ("i", "fl", "fr", "o", "u"):
        shapes.update({f"internal.ul_{gt}.weight": (H, H), f"internal.ur_{gt}.weight": (H, H),
                       f"internal.b_{gt}": (H,)})
    t = weights(seed, "treelstm-binary", shapes)
    d = {k: v.double() for k, v in t.items()}
    g, trees = {}, []
    for n, nodes in enumerate(BINARY_TREES):
        r = rng(seed, "binary", str(n))
        tokens = [int(r.integers(0, vocab)) if p is None else None for p in nodes]
        hs, cs = [], []
        for node, pair in enumerate(nodes):
            if pair is None:
                x = d["embedding.weight"][tokens[node]]
                i, o, u = (gate(d[f"leaf.w_{q}.weight"], d[f"leaf.w_{q}.bias"], x) for q in "iou")
                c = torch.sigmoid(i) * torch.tanh(u)
            else:
                l, rt = pair
                z = {q: d[f"internal.ul_{q}.weight"] @ hs[l] + d[f"internal.ur_{q}.weight"] @ hs[rt] + d[f"internal.b_{q}"]
                     for q in ("i", "fl", "fr", "o", "u")}
                o = z["o"]
                c = (torch.sigmoid(z["i"]) * torch.tanh(z["u"]) + torch.sigmoid(z["fl"]) * cs[l]
                     + torch.sigmoid(z["fr"]) * cs[rt])
            hs.append(torch.sigmoid(o) * torch.tanh(c))
            cs.append(c)
        g[f"h.{n}"], g[f"c.{n}"] = torch.stack(hs), torch.stack(cs)
        trees.append({"children": [list(p) if p else [] for p in nodes], "tokens": tokens})
    cfg = dict(model_type="treelstm-binary", vocab_size=vocab, hidden_size=H, input_size=H)
    return save_rnn(root, "treelstm-binary", cfg, t, g, {"trees": trees})


RNNS = {"lstm": make_lstm, "seq2seq-lstm": make_seq2seq_lstm, "treelstm-childsum": make_treelstm_childsum,
        "treelstm-binary": make_treelstm_binary}


# ---------------------------------------------------------------- tokenizers

TEXTS = ["Hello, world!", "the cat sat on the mat", "Caf\u00e9 \u6771\u4eac 42", "", "  two  spaces\t"]
LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)] + list("0123456789") + list(".,!?'-")
WORDS = ["the", "cat", "sat", "on", "mat", "hello", "world", "two", "space", "token", "batch", "length"]


def wordpiece():
    """A WordPiece tokenizer as BERT's, with a hundred pieces."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = special + LETTERS + ["##" + c for c in LETTERS] + WORDS + ["##s", "##ing", "##ed"]
    vocab = {w: i for i, w in enumerate(dict.fromkeys(pieces))}
    tok = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])])
    tok.decoder = decoders.WordPiece()
    tok.add_special_tokens(special)
    return tok


def byte_level_bpe(special=()):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("a", "t"), ("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    vocab = {w: i for i, w in enumerate([*special, *alphabet, *("".join(m) for m in merges)])}
    tok = Tokenizer(models.BPE(vocab, merges))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    if not special:
        tok.add_special_tokens(["<|endoftext|>"])
    return tok


def roberta():
    """A byte-level BPE with the special tokens of RoBERTa around the text."""
    from tokenizers import AddedToken, processors
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tok = byte_level_bpe(special)
    tok.post_processor = processors.RobertaProcessing(sep=("</s>", 2), cls=("<s>", 0), add_prefix_space=False)
    tok.add_special_tokens([*special, AddedToken("<mask>", lstrip=True)])
    return tok


def unigram():
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [("\u2581" + w, -3.0 - 0.1 * i) for i, w in enumerate(WORDS)]
    pieces += [("\u2581", -4.0)] + [(c, -5.0 - 0.01 * i) for i, c in enumerate(LETTERS)]
    tok = Tokenizer(models.Unigram(pieces, unk_id=2))
    tok.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = decoders.Metaspace()
    tok.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tok.add_special_tokens(["<pad>", "</s>", "<unk>"])
    return tok


TOKENIZERS = {"tokenizer-wordpiece": wordpiece, "tokenizer-bpe": byte_level_bpe, "tokenizer-roberta": roberta,
              "tokenizer-unigram": unigram}


def make_tokenizer(root, name):
    """A small tokenizer.json with golden encodings."""
    tok = TOKENIZERS[name]()
    out = new_dir(root, name)
    tok.save(str(out / "tokenizer.json"))
    rows = []
    for text in TEXTS:
        e = tok.encode(text)
        rows.append({"text": text, "ids": e.ids, "tokens": e.tokens, "offsets": e.offsets, "decoded": tok.decode(e.ids)})
    put_json(out / "golden.json", {"kind": "tokenizer", "encodings": rows})
    return out


# --------------------------------------------- a tiny sentence encoder, whole

TINY_LIMIT = 48  # tokens, as sentence_bert_config.json says; the position table has 64
TINY_SENTENCES = [
    "Hello, world!",
    "the cat sat on the mat",
    "Two cats sat.",
    "A batch of tokens, two lengths: 7 and 31.",  # between the file's truncation and the limit
    "Caf\u00e9 \u6771\u4eac \U0001f600 - who?",  # accents fall away, the rest is unknown
    "",
    " ".join(["hello batch"] * 40),  # beyond the limit
]


def make_tiny_sentence(root, seed):
    """A model folder as sentence-transformers publishes it, from text to normalised vectors."""
    name = "tiny-sentence"
    out = new_dir(root, name)
    tok = wordpiece()
    cfg = hf.BertConfig(**dict(E32, vocab_size=tok.get_vocab_size()))
    model = eager(hf.BertModel, cfg)
    fill(model, seed, 0, name)
    model.save_pretrained(out)
    model.double()

    tok.enable_truncation(TINY_LIMIT)
    rows = []
    for text in TINY_SENTENCES:
        ids = tok.encode(text).ids
        with torch.no_grad():
            h = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        vectors = {"mean": h.mean(0), "cls": h[0], "last_token": h[-1],
                   "embedding": torch.nn.functional.normalize(h.mean(0), dim=0)}
        rows.append({"text": text, "input_ids": ids,
                     **{k: [round(x, 8) for x in v.tolist()] for k, v in vectors.items()}})

    # In the wild tokenizer.json brings its own padding and truncation. Whoever obeys them gets other vectors.
    tok.enable_truncation(16)
    tok.enable_padding(length=32, pad_id=0, pad_token="[PAD]")
    tok.save(str(out / "tokenizer.json"))
    put_json(out / "modules.json", [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}])
    (out / "1_Pooling").mkdir()
    put_json(out / "1_Pooling" / "config.json", {
        "word_embedding_dimension": cfg.hidden_size, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False})
    put_json(out / "sentence_bert_config.json", {"max_seq_length": TINY_LIMIT, "do_lower_case": False})
    put_json(out / "golden.json", meta_of("sentence", "BertModel", 0, pooling="mean", normalize=True,
                                          golden_dtype="float64, eight decimals", sentences=rows))
    return out


# ------------------------------------------------- other small folders, whole

T16 = dict(H16, max_position_embeddings=48)


def tiny(root, name, seed, cls, **kw):
    """A folder with a WordPiece tokenizer and a model of float32 weights, which comes back in float64."""
    out = new_dir(root, name)
    tok = wordpiece()
    tok.save(str(out / "tokenizer.json"))
    model = eager(getattr(hf, cls), hf.BertConfig(**dict(T16, vocab_size=tok.get_vocab_size(), **kw)))
    fill(model, seed, 0, name)
    model.save_pretrained(out)
    tok.enable_truncation(T16["max_position_embeddings"])
    return out, tok, model.double()


def put_modules(out, *modules):
    put_json(out / "modules.json", [{"idx": i, "name": str(i), "path": path, "type": "sentence_transformers." + cls}
                                    for i, (path, cls) in enumerate(modules)])


def listed(t):
    return [round(x, 8) for x in t.tolist()]


def of_texts(tok, texts, compute):
    """What `compute` makes of the batch of one that each text is, or each pair of texts."""
    rows = []
    for text in texts:
        e = tok.encode(*text) if isinstance(text, list) else tok.encode(text)
        with torch.no_grad():
            values = compute(dict(input_ids=torch.tensor([e.ids]), token_type_ids=torch.tensor([e.type_ids])))
        rows.append({"text": text, "input_ids": e.ids, "token_type_ids": e.type_ids,
                     **{key: listed(value) for key, value in values.items()}})
    return rows


def put_sentences(out, cls, rows, **more):
    put_json(out / "golden.json", meta_of("sentence", cls, 0, golden_dtype="float64, eight decimals", sentences=rows, **more))
    return out


def make_tiny_splade(root, seed):
    """A weight for every word of the vocabulary: the maximum over the tokens of log(1 + relu(logit))."""
    out, tok, model = tiny(root, "tiny-splade", seed, "BertForMaskedLM")
    put_modules(out, ("", "sparse_encoder.models.MLMTransformer"), ("1_SpladePooling", "sparse_encoder.models.SpladePooling"))
    (out / "1_SpladePooling").mkdir()
    put_json(out / "1_SpladePooling" / "config.json", {
        "pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": tok.get_vocab_size()})

    def weights(inputs):
        return {"pooled": model(**inputs).logits[0].relu().log1p().amax(0)}
    return put_sentences(out, "BertForMaskedLM", of_texts(tok, TINY_SENTENCES, weights))


def make_tiny_dense(root, seed):
    """Two dense modules behind the mean, the first with tanh and a bias, the second with neither; and prompts."""
    name = "tiny-dense"
    out, tok, model = tiny(root, name, seed, "BertModel")
    dense = []
    for i, (wide, narrow, bias, act) in enumerate(((16, 12, True, "Tanh"), (12, 6, False, "Identity"))):
        path = out / f"{i + 2}_Dense"
        path.mkdir()
        t = weights(seed, f"{name}/{i}", {"linear.weight": (narrow, wide), **({"linear.bias": (narrow,)} if bias else {})})
        save_file(t, str(path / "model.safetensors"), metadata={"format": "pt"})
        module = "activation" if act == "Tanh" else "linear"
        put_json(path / "config.json", {"in_features": wide, "out_features": narrow, "bias": bias,
                                        "activation_function": f"torch.nn.modules.{module}.{act}"})
        dense.append((t["linear.weight"].double(), t["linear.bias"].double() if bias else 0.0,
                      torch.tanh if act == "Tanh" else lambda x: x))
    put_modules(out, ("", "models.Transformer"), ("1_Pooling", "models.Pooling"), ("2_Dense", "models.Dense"),
                ("3_Dense", "models.Dense"), ("4_Normalize", "models.Normalize"))
    (out / "1_Pooling").mkdir()
    put_json(out / "1_Pooling" / "config.json", {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True})
    put_json(out / "config_sentence_transformers.json", {
        "prompts": {"query": "the query: ", "document": ""}, "default_prompt_name": None, "similarity_fn_name": "cosine"})

    def vectors(inputs):
        x = model(**inputs).last_hidden_state[0].mean(0)
        for weight, bias, act in dense:
            x = act(weight @ x + bias)
        return {"pooled": x, "embedding": torch.nn.functional.normalize(x, dim=0)}
    return put_sentences(out, "BertModel", of_texts(tok, TINY_SENTENCES, vectors), pooling="mean", normalize=True)


def make_tiny_cross_encoder(root, seed):
    """One logit for a pair of texts; the score is the logit itself."""
    out, tok, model = tiny(root, "tiny-cross-encoder", seed, "BertForSequenceClassification", num_labels=1)
    config = json.loads((out / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0"}
    put_json(out / "config.json", config)
    pairs = [["hello", text] for text in TINY_SENTENCES] + [[TINY_SENTENCES[3], TINY_SENTENCES[1]]]

    def logits(inputs):
        return {"pooled": model(**inputs).logits[0]}
    return put_sentences(out, "BertForSequenceClassification", of_texts(tok, pairs, logits))


# As rerankers bring one: a role for each text of a pair, and one for what to judge by.
TINY_TEMPLATE = """\
{%- set words = messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("Is it about the cat?") -%}
<|start|>system
{{ words }} yes or no<|end|>
{% for message in messages if message.role in ["query", "document"] %}
<|start|>{{ message["role"] }}
{{ message.content.strip() }}<|end|>
{% endfor %}
{% if add_generation_prompt %}
<|start|>answer
{{- eos_token }}
{% endif %}
"""
TINY_PAIR_LIMIT = 128  # tokens; nearly every byte is one


def make_tiny_logit_score(root, seed, name, instruction=None, other=True, **kw):
    """A language model that is a reranker, as sentence-transformers 5.4 and later publish it: the logit of one token, less
    that of another, behind a pair that a template has written."""
    out = new_dir(root, name)
    special = ["<|pad|>", "<|start|>", "<|end|>"]
    tok = byte_level_bpe(special)
    tok.add_special_tokens(special)
    tok.save(str(out / "tokenizer.json"))
    put_json(out / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<|pad|>", "model_max_length": TINY_PAIR_LIMIT,
        "eos_token": {"__type": "AddedToken", "content": "<|end|>", "lstrip": False, "normalized": False, "rstrip": False,
                      "single_word": False}})
    (out / "chat_template.jinja").write_text(TINY_TEMPLATE)
    yes, no = (tok.encode(word).ids[0] for word in ("y", "n"))
    put_modules(out, ("", "base.modules.transformer.Transformer"), ("1_LogitScore", "cross_encoder.modules.logit_score.LogitScore"))
    (out / "1_LogitScore").mkdir()
    put_json(out / "1_LogitScore" / "config.json", {"true_token_id": yes, "false_token_id": no if other else None})
    forward = {"method": "forward", "method_output_name": "logits"}
    put_json(out / "sentence_bert_config.json", {
        "transformer_task": "text-generation", "module_output_name": "causal_logits",
        "modality_config": {"text": forward, "message": dict(forward, format="flat")},
        "processing_kwargs": {"chat_template": {"add_generation_prompt": True}}})
    put_json(out / "config_sentence_transformers.json", {
        "model_type": "CrossEncoder", "prompts": {"judge": instruction} if instruction else {},
        "default_prompt_name": "judge" if instruction else None,
        "activation_fn": "torch.nn.modules." + ("linear.Identity" if instruction else "activation.Sigmoid")})
    cfg = hf.Qwen3Config(**dict(QWEN_HEAD, vocab_size=tok.get_vocab_size(), max_position_embeddings=256, **kw))
    model = eager(hf.Qwen3ForCausalLM, cfg)
    fill(model, seed, 0, name)
    model.save_pretrained(out)
    model.double()

    reader = hf.PreTrainedTokenizerFast.from_pretrained(out)
    system = [{"role": "system", "content": instruction}] if instruction else []

    def read(query, document):
        pair = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        return reader.apply_chat_template(system + pair, add_generation_prompt=True)
    one, two = read("0", "0"), read("1 2 3 4", "1 2 3 4")
    end = next(i for i, (a, b) in enumerate(zip(reversed(one), reversed(two))) if a != b)
    rows = []
    for query, document in [["hello", text] for text in TINY_SENTENCES] + [["two  cats?\n", " the <|end|> of <b>it</b> "]]:
        ids = read(query, document)
        if len(ids) >= TINY_PAIR_LIMIT:  # what stands behind the texts takes the place of the last that fit
            ids = ids[:TINY_PAIR_LIMIT - end] + ids[len(ids) - end:]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        score = logits[yes] - logits[no] if other else logits[yes]
        rows.append({"text": [query, document], "input_ids": ids, "token_type_ids": [0] * len(ids), "pooled": [round(score.item(), 8)]})
    assert sum(len(row["input_ids"]) == TINY_PAIR_LIMIT for row in rows) == 1 and end > 3, end
    return put_sentences(out, "Qwen3ForCausalLM", rows)


TINY = {"tiny-sentence": make_tiny_sentence, "tiny-splade": make_tiny_splade, "tiny-dense": make_tiny_dense,
        "tiny-cross-encoder": make_tiny_cross_encoder,
        "tiny-logit-score": lambda root, seed: make_tiny_logit_score(root, seed, "tiny-logit-score", tie_word_embeddings=True),
        "tiny-logit-score-one": lambda root, seed: make_tiny_logit_score(
            root, seed, "tiny-logit-score-one", "Does it say hello?", False, tie_word_embeddings=False)}


# ---------------------------------------------------- a real sentence encoder

SENTENCES = [
    "Hello!",
    "The quick brown fox jumps over the lazy dog.",
    "A fast auburn fox leaps across a sleepy hound.",
    "How do I reset my password?",
    "I forgot the password for my account and need a new one.",
    "Transformers process variable-length sequences of tokens in parallel.",
    "Caf\u00e9 na\u00efve r\u00e9sum\u00e9 \u2014 \u6771\u4eac \U0001f600",
    "Rust is a systems programming language focused on safety, speed, and concurrency.",
    "Dynamic batching groups requests of different lengths to raise throughput on accelerators while bounding tail "
    "latency for interactive users; the scheduler must weigh padding waste against queueing delay for every batch.",
    " ".join(["word"] * 300),
]


def embed(model_dir, target):
    """Mean-pooled, normalised sentence embeddings of a BERT-type encoder (at most 256 tokens)."""
    model_dir = Path(model_dir)
    tok = hf.AutoTokenizer.from_pretrained(model_dir)
    model = hf.AutoModel.from_pretrained(model_dir, attn_implementation="eager").eval().double()
    rows = []
    for s in SENTENCES:
        e = tok([s], truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            h = model(**e).last_hidden_state[0]
        raw = h.mean(0)
        v = torch.nn.functional.normalize(raw, dim=0)
        ids = e["input_ids"][0].tolist()
        rows.append({"sentence": s, "tokens": len(ids), "input_ids": ids if len(ids) <= 64 else ids[:64],
                     "first8": [round(x, 6) for x in v[:8].tolist()], "norm_before_normalize": round(float(raw.norm()), 6),
                     "embedding": [round(x, 6) for x in v.tolist()]})
    sims = torch.tensor([r["embedding"] for r in rows], dtype=torch.float64)
    digest = hashlib.sha256((model_dir / "model.safetensors").read_bytes()).hexdigest()
    doc = {"model": "all-MiniLM-L6-v2", "model_safetensors_sha256": digest, "max_tokens": 256, "pooling": "mean",
           "normalize": True, "torch": torch.__version__.split("+")[0], "transformers": hf.__version__,
           "cosine": [[round(x, 5) for x in r] for r in (sims @ sims.T).tolist()], "sentences": rows}
    Path(target).write_text("{\n" + ",\n".join(
        f" {json.dumps(k)}: " + (json.dumps(v) if k != "sentences" else
                                 "[\n" + ",\n".join("  " + json.dumps(r) for r in v) + "\n ]")
        for k, v in doc.items()) + "\n}\n")


# ----------------------------------------------------------------------- main

def describe(path):
    files = sorted(f for f in path.rglob("*") if f.is_file())
    digest = hashlib.sha256()
    for f in files:
        digest.update(f.relative_to(path).as_posix().encode() + b"\0" + f.read_bytes())
    return {"bytes": sum(f.stat().st_size for f in files), "sha256": digest.hexdigest()}


def pipelines():
    """What make_pipelines.py writes; it imports this file."""
    import make_pipelines
    return make_pipelines.PIPELINES


def make(root, name, seed):
    if name in ENCODERS:
        return make_encoder(root, name, seed)
    if name in HEADS:
        return make_head(root, name, seed)
    if name in GENERATORS:
        return make_generator(root, name, seed)
    if name in RNNS:
        return RNNS[name](root, seed)
    if name in TOKENIZERS:
        return make_tokenizer(root, name)
    if name in pipelines():
        return pipelines()[name](root, name)
    return {"bert-mlm-legacy": make_legacy, **TINY}[name](root, seed)


def main():
    known = [*ENCODERS, *HEADS, "bert-mlm-legacy", *GENERATORS, *RNNS, *TOKENIZERS, *TINY, *pipelines()]
    ap = argparse.ArgumentParser(description="Write tiny reference models and golden outputs.")
    ap.add_argument("--out", help="directory to write fixtures to")
    ap.add_argument("--only", help="comma-separated subset (default: all)")
    ap.add_argument("--seed", type=int, default=20240601)
    ap.add_argument("--list", action="store_true", help="print the fixture names and stop")
    ap.add_argument("--embed-model", help="checkpoint directory of all-MiniLM-L6-v2")
    ap.add_argument("--embed-out", help="JSON file to write its reference embeddings to")
    a = ap.parse_args()
    if a.list:
        print("\n".join(known))
        return
    if a.embed_model:
        if not a.embed_out:
            ap.error("--embed-model needs --embed-out")
        embed(a.embed_model, a.embed_out)
        print(f"wrote {a.embed_out}")
        if not a.out:
            return
    if not a.out:
        ap.error("--out is required")
    want = a.only.split(",") if a.only else known
    for name in want:
        if name not in known:
            ap.error(f"unknown fixture {name!r}")
    in_float64()
    root = Path(a.out)
    root.mkdir(parents=True, exist_ok=True)
    index_path = root / "index.json"
    index = json.loads(index_path.read_text()) if index_path.exists() else {}
    for name in want:
        path = make(root, name, a.seed)
        index[name] = describe(path)
        print(f"{name:24} {index[name]['bytes'] / 1024:7.1f} KB")
        if index[name]["bytes"] > MAX_BYTES:
            raise SystemExit(f"{name}: larger than {MAX_BYTES} bytes")
        sys.stdout.flush()
    put_json(index_path, index)


if __name__ == "__main__":
    main()
