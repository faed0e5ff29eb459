"""PyTorch on a GPU as a long-lived process: requests on standard input, answers on standard output, a JSON line each.

  gpu_peer.py operations
  gpu_peer.py encoder --model DIR --variant compiled --dtype bf16

The first line that comes out is {"ready": {"library": "torch 2.11.0", "variant": "operations"}}.

`operations` does one operation at a time, in several ways (WAYS below):
  {"prepare": {"op": "softmax", "rows": 8, "columns": 16}, "dtype": "bf16", "way": "eager"}
                                         ->  {"prepared": "replayed"}, or {"absent": "why it cannot be had here"}
  {"time": "eager", "runs": 100}         ->  {"us": 92.1}       microseconds of one of at least so many runs
  {"sample": "eager", "values": 1000}    ->  {"sample": [...]}  so many values of the result, evenly spread
Another operation or type forgets the one before. Launches are replayed from a CUDA graph where that can be done, so that
the time of Python is not counted; else they are "launched" one by one. The inputs are `values` below, the same in turbo.

`encoder` answers as peer_process.py does. A run begins with ids on the GPU, and ends when the last hidden state is there.
"""

import argparse
import functools
import os
import time
from pathlib import Path

import peer_process
import torch
import torch.nn.functional as F

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# Most runs in one graph, and the seconds that they may take together: what a replay costs the host is shared by so many.
MOST_RUNS, GRAPH_SECONDS = 20, 0.002


def values(count, seed, device):
    """`count` values in [-1, 1), by a hash of place and seed: turbo makes the same ones."""
    mask = (1 << 32) - 1
    h = (torch.arange(count, device=device) * 0x9E3779B1 + seed * 0x85EBCA77) & mask
    h = ((h ^ (h >> 15)) * 0x2C1B3C6D) & mask
    h = ((h ^ (h >> 12)) * 0x297A2D39) & mask
    h = h ^ (h >> 15)
    return (h.double() / (1 << 31) - 1).float()


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def softmax(x):
    return torch.softmax(x, -1)


def layer_norm(x, gain, offset):
    return F.layer_norm(x, gain.shape, gain, offset, 1e-12)


def residual_layer_norm(x, bias, residual, gain, offset):
    return F.layer_norm(x + bias + residual, gain.shape, gain, offset, 1e-12)


def bias_gelu(x, bias):
    return F.gelu(x + bias)


def embedding(ids, table):
    return F.embedding(ids, table)


def product(x, weight):
    return F.linear(x, weight)


def copy(x, to):
    return to.copy_(x)


def sdpa(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@functools.cache
def compiled(function, way):
    """For any number of rows, so that some more rows compile nothing; or "autotuned" for exactly these."""
    mode = "max-autotune-no-cudagraphs" if way == "autotuned" else None
    return torch.compile(function, dynamic=False, mode=mode)


class Rows:
    """An operation on rows: the function and its inputs, the first of which is the longest."""

    def __init__(self, spec, dtype, device):
        rows, columns = spec["rows"], spec["columns"]
        self.columns = columns

        def matrix(seed, rows=rows):
            return values(rows * columns, seed, device).to(dtype).view(rows, columns)

        def vector(seed):
            return values(columns, seed, device).to(dtype)

        match spec["op"]:
            case "softmax":
                self.function, self.inputs = softmax, [matrix(0)]
            case "layer_norm":
                self.function, self.inputs = layer_norm, [matrix(0), vector(3), vector(4)]
            case "residual_layer_norm":
                self.function = residual_layer_norm
                self.inputs = [matrix(0), vector(2), matrix(1), vector(3), vector(4)]
            case "bias_gelu":
                self.function, self.inputs = bias_gelu, [matrix(0), vector(2)]
            case "embedding":
                # each row of the table once, in an order that no cache knows
                ids = (torch.arange(rows, device=device) * 7919 + 13) % rows
                self.function, self.inputs = embedding, [ids, matrix(0)]
            case "product":
                self.function, self.inputs = product, [matrix(0), matrix(1, rows=columns)]
            case "copy":
                self.function, self.inputs = copy, [matrix(0), torch.empty(rows, columns, dtype=dtype, device=device)]

    def way(self, way):
        if way == "eager":
            return functools.partial(self.function, *self.inputs)
        inputs = self.inputs
        if way == "compiled":
            inputs = [x.detach() for x in inputs]  # marks stay on them
            for x in inputs:
                if x.numel() > self.columns:
                    torch._dynamo.mark_dynamic(x, 0)
        return functools.partial(compiled(self.function, way), *inputs)

    def packed(self, result):
        return result


class Attention:
    """Attention over merged queries, keys and values, [tokens, 3, heads, dim], as turbo has them."""

    def __init__(self, spec, dtype, device):
        self.lens, heads, dim = spec["lens"], spec["num_heads"], spec["head_dim"]
        tokens, self.longest = sum(self.lens), max(self.lens)
        merged = values(tokens * 3 * heads * dim, 0, device).to(dtype).view(tokens, 3, heads, dim)
        self.qkv = merged.unbind(1)
        ends = torch.tensor(self.lens, device=device).cumsum(0)
        self.cu_seqlens = F.pad(ends, (1, 0)).int()
        self.is_token = torch.arange(self.longest, device=device) < torch.tensor(self.lens, device=device)[:, None]
        self.merged = merged

    def padded(self):
        """[batch, heads, longest, dim] each, and a mask where there is padding."""
        rows = self.merged.new_zeros(*self.is_token.shape, *self.merged.shape[1:])
        rows[self.is_token] = self.merged
        q, k, v = (x.transpose(1, 2) for x in rows.unbind(2))
        return q, k, v, None if self.is_token.all() else self.is_token[:, None, None, :]

    def way(self, way):
        if way in ("sdpa", "cudnn"):
            call = functools.partial(sdpa, *self.padded())
            return call if way == "sdpa" else functools.partial(by_cudnn, call)
        if way == "nested":
            sizes = dict(min_seqlen=min(self.lens), max_seqlen=self.longest)
            nested = [torch.nested.nested_tensor_from_jagged(x, self.cu_seqlens, **sizes) for x in self.qkv]
            return functools.partial(sdpa, *(x.transpose(1, 2) for x in nested), None)
        from torch.nn.attention.varlen import varlen_attn

        ends, longest = self.cu_seqlens, self.longest
        return functools.partial(varlen_attn, *self.qkv, ends, ends, longest, longest)

    def packed(self, result):
        """[tokens, heads · dim] of what any way gives."""
        if result.is_nested:
            return result.transpose(1, 2).values().flatten(1)
        return result.transpose(1, 2)[self.is_token].flatten(1) if result.dim() == 4 else result.flatten(1)


def by_cudnn(call):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return call()


class Operations:
    """What is prepared, by way."""

    def __init__(self, device):
        self.device = device
        self.of, self.operation, self.calls = None, None, {}

    def answer(self, request):
        with torch.inference_mode():
            if "prepare" in request:
                return self.prepare(request["prepare"], request["dtype"], request["way"])
            if "time" in request:
                return {"us": self.time(request["time"], request["runs"])}
            return {"sample": self.sample(request["sample"], request["values"])}

    def prepare(self, spec, dtype, way):
        if self.of != (spec, dtype):
            self.of, self.operation, self.calls = (spec, dtype), None, {}
            kind = Attention if spec["op"] == "attention" else Rows
            self.operation = kind(spec, DTYPES[dtype], self.device)
        try:
            call = self.operation.way(way)
            # compiles, picks its kernels, and shows whether the way can be had at all
            for _ in range(3):
                call()
            synchronize(self.device)
        except Exception as error:
            return {"absent": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        graph = self.graph(call)
        self.calls[way] = (call, graph)
        return {"prepared": "replayed" if graph else "launched"}

    def graph(self, call):
        """Some runs to be replayed, and how many; none where they cannot be captured, as when the host waits in between."""
        if self.device != "cuda":
            return None
        start = time.perf_counter()
        call()
        synchronize(self.device)
        runs = max(1, min(MOST_RUNS, int(GRAPH_SECONDS / (time.perf_counter() - start))))
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(runs):
                    call()
            graph.replay()
            synchronize(self.device)
            return graph.replay, runs
        except Exception as error:
            print("not captured:", error)
            synchronize(self.device)
            return None

    def time(self, way, runs):
        call, graph = self.calls[way]
        again, each = graph or (call, 1)
        times = -(-runs // each)
        again()  # the one that had its turn before left the caches to itself
        synchronize(self.device)
        start = time.perf_counter()
        for _ in range(times):
            again()
        synchronize(self.device)
        return (time.perf_counter() - start) * 1e6 / (times * each)

    def sample(self, way, count):
        result = self.operation.packed(self.calls[way][0]()).flatten()
        places = torch.arange(count, device=self.device) * (len(result) - 1) // max(count - 1, 1)
        return result[places].double().tolist()

class Encoder:
    """A checkpoint of transformers, eager or compiled for shapes without padding."""

    def __init__(self, model, variant, dtype, device):
        from transformers import AutoModel

        self.device = device
        model = AutoModel.from_pretrained(model, add_pooling_layer=False)
        self.model = model.eval().to(device=device, dtype=DTYPES[dtype])
        if variant == "compiled":
            self.model = torch.compile(self.model, mode="max-autotune", dynamic=False)

    def prepare(self, ids, mask):
        batch = dict(input_ids=torch.tensor(ids, device=self.device))
        batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
        if not all(map(all, mask)):
            batch["attention_mask"] = torch.tensor(mask, device=self.device)
        return batch

    def hidden(self, batch):
        with torch.inference_mode():
            return self.model(**batch).last_hidden_state

    def run(self, batch):
        self.hidden(batch)
        synchronize(self.device)

    def answer(self, request):
        if "rows" not in request:
            return peer_process.measure(self, request)
        lengths = request["rows"]
        hidden = self.hidden(self.prepare(*peer_process.arrays(lengths))).double().cpu()
        return {"rows": [hidden[i, t].tolist() for i, t in peer_process.places(lengths)]}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu shows that the script works")
    what = ap.add_subparsers(dest="what", required=True)
    what.add_parser("operations")
    encoder = what.add_parser("encoder")
    encoder.add_argument("--model", required=True, type=Path)
    encoder.add_argument("--variant", required=True, choices=("eager", "compiled"))
    encoder.add_argument("--dtype", required=True, choices=DTYPES)
    a = ap.parse_args()

    def load():
        os.environ["HF_HUB_OFFLINE"] = "1"
        torch.set_float32_matmul_precision("highest")  # f32 is f32: no TF32
        # every width and type of rows is compiled for itself
        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1000
        if a.what == "operations":
            return peer_process.versions(["torch"]), "operations", Operations(a.device).answer
        library = peer_process.versions(["torch", "transformers"])
        return library, a.variant, Encoder(a.model, a.variant, a.dtype, a.device).answer

    peer_process.serve(load)


if __name__ == "__main__":
    main()
