"""One rival as a long-lived process: requests on standard input, answers on standard output, a JSON line each.

  peer_process.py --peer ort --variant fused --base DIR --threads 2

DIR has hf/ (a transformers checkpoint) and onnx/ (made by build_models.py). The first line that comes out is
  {"ready": {"library": "onnxruntime 1.31.1", "variant": "fused"}}
then one line for each request:
  {"batches": [[12, 7], [30]], "warm_up": 1, "runs": 3}  ->  {"ms": [[9.1, 9.0, 9.2], [8.0, 8.1, 8.0]]}
  {"rows": [12, 7]}                                      ->  {"rows": [[...], [...], [...], [...]]}
A batch is the lengths of its sequences. `rows` asks for the first and the last token's vector of each sequence, so that
whoever measures can see that all rivals compute the same. Token t of a sequence of n tokens is `token(t, n)`, in every
rival. The process waits for requests without using the processor.
"""

import argparse
import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path

import bench_peer
import numpy

LIBRARIES = {"torch": ("torch", "transformers"), "ort": ("onnxruntime",), "ov": ("openvino",), "ct2": ("ctranslate2",)}


def token(t, n):
    return 1000 + (t * 7919 + n * 104729) % 29000


def arrays(lengths):
    """Ids padded to the longest sequence, and their mask."""
    width = max(lengths)
    ids = [[token(t, n) for t in range(n)] + [0] * (width - n) for n in lengths]
    mask = [[1] * n + [0] * (width - n) for n in lengths]
    return ids, mask


def measure(peer, request):
    """Every batch is run `warm_up` times uncounted, then `runs` times."""
    times = []
    for lengths in request["batches"]:
        batch = peer.prepare(*arrays(lengths))
        for _ in range(request["warm_up"]):
            peer.run(batch)
        of_batch = []
        for _ in range(request["runs"]):
            start = time.perf_counter()
            peer.run(batch)
            of_batch.append((time.perf_counter() - start) * 1e3)
        times.append(of_batch)
    return {"ms": times}


def rows(peer, lengths):
    hidden = peer.run(peer.prepare(*arrays(lengths)))
    hidden = hidden if hasattr(hidden, "shape") else hidden[0]
    # numpy has no bf16
    hidden = numpy.asarray(hidden.float() if hasattr(hidden, "float") else hidden)
    return {"rows": [[float(value) for value in hidden[i][t]] for i, t in places(lengths)]}


def places(lengths):
    """Sequence and token of each vector that `rows` asks for: the first and the last of each sequence."""
    return [(i, t) for i, n in enumerate(lengths) for t in (0, n - 1)]


def serve(load):
    """Calls `load` for a library's name, a variant and what answers a request; then answers until there are no more."""
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    library, variant, answer = load()
    say({"ready": {"library": library, "variant": variant}})
    for line in sys.stdin:
        say(answer(json.loads(line)))


def versions(packages):
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--peer", required=True, choices=bench_peer.PEERS)
    ap.add_argument("--variant")
    ap.add_argument("--base", required=True, type=Path)
    ap.add_argument("--threads", required=True, type=int)
    a = ap.parse_args()

    def load():
        os.environ["OMP_NUM_THREADS"] = str(a.threads)
        os.environ["HF_HUB_OFFLINE"] = "1"
        kind = bench_peer.PEERS[a.peer]
        variant = a.variant or kind.variants[0]
        peer = kind(a.base, variant, a.threads)
        answer = lambda request: rows(peer, request["rows"]) if "rows" in request else measure(peer, request)
        return versions(LIBRARIES[a.peer]), variant, answer

    serve(load)


if __name__ == "__main__":
    main()
