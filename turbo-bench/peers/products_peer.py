"""oneDNN as a rival at products alone: rows times packed weights, bias fused, weights that no cache holds.

  products_peer.py --dtype f32 --threads 2

Speaks as peer_process.py does; the requests are
  {"linear": {"rows": 10, "in_features": 768, "out_features": 2304, "gelu": false}, "seconds": 0.05}  ->  {"ms": [[...]]}
  {"linear_rows": {...}}  ->  {"rows": [[...], [...]]}, the first and the last row of the product
oneDNN is called without PyTorch between, which allocates each result anew and is slower. Its rows are in bf16, or
quantised to bytes, before the clock starts, and its results stay in bf16 with bf16: what is converted in between, a model
has to pay elsewhere.
"""

import argparse
import ctypes
import os
import sys
import time
from pathlib import Path

import numpy
import peer_process

COPIES = 128 << 20  # bytes of all copies of a weight, as in turbo's own process
FEWEST = 3

# Of dnnl_types.h.
CPU, IN_ORDER, ANY, A, AB, BA = 1, 1, 1, 2, 3, 14
SRC, DST, WEIGHTS, BIAS, SCALES, ZERO_POINTS = 1, 17, 33, 41, 4096, 8192
QUERY_WEIGHTS, GELU_ERF = 131, 49
ALLOCATE = ctypes.c_void_p(2**64 - 1)
TYPES = {"bf16": 2, "f32": 3, "s32": 4, "s8": 5, "u8": 6}
Handle = ctypes.c_void_p
Dims = ctypes.c_int64 * 12


class Argument(ctypes.Structure):
    _fields_ = [("index", ctypes.c_int), ("memory", Handle)]


class Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int)]


def values(*shape):
    """The rows of a product: the same values in every rival."""
    count = int(numpy.prod(shape))
    return ((numpy.arange(count) % 251).astype(numpy.float32) / 125 - 1).astype(numpy.float32).reshape(shape)


def weight(out_features, in_features):
    """Its weight, each row of which has a scale of its own."""
    scales = (1 + numpy.arange(out_features) % 7).astype(numpy.float32)
    return values(out_features, in_features) * scales[:, None]


def bias(out_features):
    return 100 * values(1, out_features)


def aligned(array):
    """The same at the beginning of a cache line."""
    line = 64
    room = numpy.empty(array.nbytes + line, numpy.uint8)
    start = -room.ctypes.data % line
    copy = room[start:start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def to_bf16(values):
    """bf16 as 16 bits, rounded to nearest even."""
    bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def to_f32(bf16):
    return (bf16.astype(numpy.uint32) << 16).view(numpy.float32)


class OneDnn:
    """The library's C interface, as far as it is needed."""

    def __init__(self):
        self.library = ctypes.CDLL(str(Path(sys.prefix) / "lib" / "libdnnl.so.3"))
        self.library.dnnl_primitive_desc_query_md.restype = Handle
        self.library.dnnl_version.restype = ctypes.POINTER(Version)
        self.engine = self.make("engine_create", CPU, ctypes.c_size_t(0))
        self.stream = self.make("stream_create", self.engine, IN_ORDER)

    def version(self):
        version = self.library.dnnl_version().contents
        return f"{version.major}.{version.minor}.{version.patch}"

    def call(self, name, *arguments):
        status = getattr(self.library, f"dnnl_{name}")(*arguments)
        if status:
            sys.exit(f"oneDNN: {name} failed with status {status}")

    def make(self, name, *arguments):
        handle = Handle()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle

    def layout(self, shape, dtype, tag):
        return self.make("memory_desc_create_with_tag", len(shape), Dims(*shape), TYPES[dtype], tag)

    def memory(self, layout, pointer=ALLOCATE):
        return self.make("memory_create", layout, self.engine, pointer)

    def run(self, primitive, arguments):
        execute, wait = self.library.dnnl_primitive_execute, self.library.dnnl_stream_wait
        if execute(primitive, self.stream, len(arguments), arguments) or wait(self.stream):
            sys.exit("oneDNN: a product failed")


class Weights:
    """Copies of a weight in the library's own layout, and one product with them for each number of rows and each end."""

    def __init__(self, onednn, dtype, in_features, out_features):
        self.onednn, self.dtype, self.shape = onednn, dtype, (in_features, out_features)
        self.weight, self.products, self.copies, self.next = weight(out_features, in_features), {}, [], 0
        self.kept = []  # what the library has the addresses of
        size = {"f32": 4, "bf16": 2, "int8": 1}[dtype]
        self.wanted = max(2, -(-COPIES // (self.weight.size * size)))
        self.scales = (numpy.abs(self.weight).max(1) / 127).astype(numpy.float32)

    def given(self, array, dtype, tag=AB):
        """A place with these values, as the library sees it, and as numpy does."""
        array = aligned(array)
        self.kept.append(array)
        layout = self.onednn.layout(array.shape, dtype, tag)
        return layout, self.onednn.memory(layout, Handle(array.ctypes.data)), array

    def product(self, rows, gelu):
        """A primitive, its arguments but for the weight, and where its result lies."""
        if (rows, gelu) not in self.products:
            self.products[rows, gelu] = self.prepare(rows, gelu)
        return self.products[rows, gelu]

    def prepare(self, rows, gelu):
        onednn, (in_features, out_features) = self.onednn, self.shape
        attributes, more = onednn.make("primitive_attr_create"), []
        if gelu:
            ends = onednn.make("post_ops_create")
            onednn.call("post_ops_append_eltwise", ends, GELU_ERF, ctypes.c_float(0), ctypes.c_float(0))
            onednn.call("primitive_attr_set_post_ops", attributes, ends)
        x = values(rows, in_features)
        if self.dtype == "int8":
            # One scale and zero point for all rows, a scale for each column of the weight.
            scale, zero = numpy.array([2 / 255], numpy.float32), numpy.array([127], numpy.int32)
            x = numpy.clip(numpy.rint(x / scale + zero), 0, 255).astype(numpy.uint8)
            onednn.call("primitive_attr_set_scales_mask", attributes, SRC, 0)
            onednn.call("primitive_attr_set_scales_mask", attributes, WEIGHTS, 2)
            onednn.call("primitive_attr_set_zero_points_mask", attributes, SRC, 0)
            for index, array, dtype in (
                (SCALES | SRC, scale, "f32"), (SCALES | WEIGHTS, self.scales, "f32"), (ZERO_POINTS | SRC, zero, "s32"),
            ):
                more.append((index, self.given(array, dtype, A)[1]))
        types = {"f32": ("f32", "f32", "f32"), "bf16": ("bf16", "bf16", "bf16"), "int8": ("u8", "s8", "f32")}
        of_rows, of_weight, of_result = types[self.dtype]
        source, rows_memory, _ = self.given(to_bf16(x) if self.dtype == "bf16" else x, of_rows)
        of_bias, bias_memory, _ = self.given(bias(out_features), "f32")
        result = numpy.zeros((rows, out_features), numpy.uint16 if of_result == "bf16" else numpy.float32)
        target, result_memory, result = self.given(result, of_result)
        free = onednn.layout(self.shape, of_weight, ANY)
        what = onednn.make("matmul_primitive_desc_create", onednn.engine, source, free, of_bias, target, attributes)
        packed = Handle(onednn.library.dnnl_primitive_desc_query_md(what, QUERY_WEIGHTS, 0))
        weights = self.pack(packed, of_weight)
        arguments = []
        for weight in weights:
            pairs = [(SRC, rows_memory), (WEIGHTS, weight), (BIAS, bias_memory), (DST, result_memory), *more]
            arguments.append((Argument * len(pairs))(*(Argument(*pair) for pair in pairs)))
        return onednn.make("primitive_create", what), arguments, result

    def pack(self, layout, dtype):
        """Copies in a layout; where two products want the same one, the same copies."""
        for other, copies in self.copies:
            if self.onednn.library.dnnl_memory_desc_equal(other, layout):
                return copies
        if dtype == "s8":
            weight = numpy.rint(self.weight / self.scales[:, None]).astype(numpy.int8)
        else:
            weight = to_bf16(self.weight) if dtype == "bf16" else self.weight
        plain = self.onednn.layout(self.shape, dtype, BA)
        source = self.onednn.memory(plain, Handle(weight.ctypes.data))
        reorder = self.onednn.make(
            "reorder_primitive_desc_create", plain, self.onednn.engine, layout, self.onednn.engine, None
        )
        reorder, copies = self.onednn.make("primitive_create", reorder), []
        for _ in range(self.wanted):
            copies.append(self.onednn.memory(layout))
            self.onednn.run(reorder, (Argument * 2)(Argument(SRC, source), Argument(DST, copies[-1])))
        self.copies.append((layout, copies))
        return copies

    def free(self):
        for _, copies in self.copies:
            for copy in copies:
                self.onednn.call("memory_destroy", copy)

    def turn(self, rows, gelu, seconds):
        """Milliseconds of each run."""
        primitive, arguments, _ = self.product(rows, gelu)

        def once():
            self.next = (self.next + 1) % len(arguments)
            start = time.perf_counter()
            self.onednn.run(primitive, arguments[self.next])
            return (time.perf_counter() - start) * 1e3

        once()
        times, begin = [], time.perf_counter()
        while len(times) < FEWEST or time.perf_counter() - begin < seconds:
            times.append(once())
        return times

    def ends(self, rows, gelu):
        self.turn(rows, gelu, 0)
        result = self.product(rows, gelu)[2]
        result = to_f32(result) if self.dtype == "bf16" else result
        return [[float(value) for value in result[i]] for i in (0, rows - 1)]


class Products:
    """The weights of the last request."""

    def __init__(self, onednn, dtype):
        self.onednn, self.dtype, self.weights = onednn, dtype, None

    def answer(self, request):
        linear = request.get("linear") or request["linear_rows"]
        shape = (linear["in_features"], linear["out_features"])
        if self.weights is None or self.weights.shape != shape:
            if self.weights:
                self.weights.free()
            self.weights = Weights(self.onednn, self.dtype, *shape)
        if "linear_rows" in request:
            return {"rows": self.weights.ends(linear["rows"], linear["gelu"])}
        return {"ms": [self.weights.turn(linear["rows"], linear["gelu"], request["seconds"])]}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--dtype", required=True, choices=("f32", "bf16", "int8"))
    ap.add_argument("--threads", required=True, type=int)
    a = ap.parse_args()

    def load():
        os.environ["OMP_NUM_THREADS"] = str(a.threads)  # read when the library is loaded
        onednn = OneDnn()
        return f"onednn {onednn.version()}", a.dtype, Products(onednn, a.dtype).answer

    peer_process.serve(load)


if __name__ == "__main__":
    main()
