"""One rival as a server: uvicorn, and behind it a queue that is batched as such servers do.

  serve_peer.py --peer ort --base DIR --tokenizer FILE --threads 2

DIR has onnx/ (made by build_models.py). It listens on a free port of the loopback, says so on standard output
(`listening on http://127.0.0.1:PORT`), and answers `POST /embed` with {"inputs": "text" | ["text", ...]}: a list of
normalised mean-pooled vectors, as JSON.

Texts of all requests wait together. Whenever the model is free, the oldest WINDOW of them are sorted by length, cut into
batches of at most --batch, and each batch is padded to its longest text; that is what infinity does, whose window and
batch these are. Everything that can be had for the asking is here: uvloop, httptools, orjson, no framework between
uvicorn and the queue, one thread that makes tokens while the last batch is computed. ONNX Runtime's threads do not spin
while they wait: that would take the cores from uvicorn and from whoever asks.
"""

import argparse
import asyncio
import os
import queue
import socket
import sys
import threading
from pathlib import Path

WINDOW = 4
# What an engine is told that shares its cores with a server.
SHARED = {"ort": {"spin": False}}
# Longer than any pause of a client: none finds its connection closed just when it asks again.
KEEP_ALIVE_S = 75


class Text:
    """One text on its way: its ids, and where its vector belongs."""

    __slots__ = ("ids", "request", "place")

    def __init__(self, ids, request, place):
        self.ids, self.request, self.place = ids, request, place


class Request:
    """What a client waits for: one vector for each of its texts."""

    __slots__ = ("texts", "vectors", "missing", "answer", "loop")

    def __init__(self, texts, loop):
        self.texts, self.loop = texts, loop
        self.vectors, self.missing = [None] * len(texts), len(texts)
        self.answer = loop.create_future()

    def settle(self, result):
        def tell():
            if not self.answer.done():
                self.answer.set_result(result)

        self.loop.call_soon_threadsafe(tell)


class Engine:
    """Two threads: one makes tokens, the other computes."""

    def __init__(self, peer, tokenizer, batch):
        import numpy

        self.numpy, self.peer, self.tokenizer, self.batch = numpy, peer, tokenizer, batch
        self.texts, self.encoded = queue.SimpleQueue(), queue.SimpleQueue()
        for work in (self.encode, self.compute):
            threading.Thread(target=work, daemon=True).start()

    def ask(self, request):
        self.texts.put(request)

    def encode(self):
        while True:
            request = self.texts.get()
            try:
                encoded = self.tokenizer.encode_batch(request.texts)
            except Exception as error:  # whatever it is, its client is told
                request.settle(error)
                continue
            for place, text in enumerate(encoded):
                self.encoded.put(Text(text.ids, request, place))

    def compute(self):
        while True:
            window = [self.encoded.get()]
            while len(window) < WINDOW * self.batch and not self.encoded.empty():
                window.append(self.encoded.get())
            window.sort(key=lambda text: len(text.ids))
            for begin in range(0, len(window), self.batch):
                self.run(window[begin : begin + self.batch])

    def run(self, texts):
        numpy = self.numpy
        width = len(texts[-1].ids)
        ids = [text.ids + [0] * (width - len(text.ids)) for text in texts]
        mask = [[1] * len(text.ids) + [0] * (width - len(text.ids)) for text in texts]
        try:
            hidden = self.peer.run(self.peer.prepare(ids, mask))
            hidden = numpy.asarray(hidden if hasattr(hidden, "shape") else hidden[0])
            weights = numpy.asarray(mask, dtype=numpy.float32)[:, :, None]
            vectors = (hidden * weights).sum(axis=1)
            vectors /= numpy.linalg.norm(vectors, axis=1, keepdims=True)  # the mean's divisor is lost here anyway
        except Exception as error:
            for text in texts:
                text.request.settle(error)
            return
        for text, vector in zip(texts, vectors):
            request = text.request
            request.vectors[text.place] = vector
            request.missing -= 1
            if request.missing == 0:
                request.settle(None)


def app(engine):
    import orjson

    async def respond(send, status, body):
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def serve(scope, receive, send):
        if scope["type"] != "http":
            return
        pieces, more = [], True
        while more:
            message = await receive()
            pieces.append(message.get("body", b""))
            more = message.get("more_body", False)
        if scope["method"] != "POST" or scope["path"] != "/embed":
            return await respond(send, 404, b'{"error":"there is POST /embed"}')
        try:
            inputs = orjson.loads(b"".join(pieces))["inputs"]
            texts = [inputs] if isinstance(inputs, str) else inputs
            assert texts and all(isinstance(text, str) for text in texts)
        except (ValueError, KeyError, TypeError, AssertionError):
            return await respond(send, 422, b'{"error":"expected a text or a list of texts as inputs"}')
        request = Request(texts, asyncio.get_running_loop())
        engine.ask(request)
        error = await request.answer
        if error is not None:
            return await respond(send, 500, orjson.dumps({"error": str(error)}))
        await respond(send, 200, orjson.dumps(request.vectors, option=orjson.OPT_SERIALIZE_NUMPY))

    return serve


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--peer", required=True, choices=("ort", "ov"))
    ap.add_argument("--base", required=True, type=Path)
    ap.add_argument("--tokenizer", required=True, type=Path)
    ap.add_argument("--threads", required=True, type=int)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--longest", type=int, default=512)
    a = ap.parse_args()

    os.environ["OMP_NUM_THREADS"] = str(a.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import bench_peer
    import uvicorn
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(a.tokenizer))
    tokenizer.no_padding()
    tokenizer.enable_truncation(a.longest)
    kind = bench_peer.PEERS[a.peer]
    peer = kind(a.base, kind.variants[0], a.threads, **SHARED.get(a.peer, {}))
    engine = Engine(peer, tokenizer, a.batch)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    config = uvicorn.Config(
        app(engine),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_S,
        access_log=False,
        log_level="warning",
    )
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    sys.exit(main())
