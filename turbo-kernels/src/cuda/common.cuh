// The code that all families share: number types, wide accesses, reductions, instructions of the tensor cores.
//
// A compilation unit is this file followed by a family's `.cu`. It has no headers, so NVRTC needs no files. Kernels
// widen the values that they read to f32, compute in f32, and round each result once. A family's file ends with a macro
// that lists its kernels for a type; Rust appends a line with the type that the device stores.
//
//   section           | for
//   1 the machine     | conversions, 2^x, mma, ldmatrix, cp.async: an instruction each; on the CPU the emulator has them
//   2 numbers         | half_t, bf16_t, to_float, from_float, infinity and NaN, which NVRTC has no names for
//   3 wide accesses   | 16 bytes at a time where addresses allow, 4 or one value elsewhere
//   4 rows            | how threads share a row whose values they hold in registers
//   5 reductions      | of several values at once, within a group of lanes or a block
//   6 tensor cores    | mma of either 16-bit type
//   7 attention       | which keys a query sees, and the bucket of their distance

using u64 = unsigned long long;

constexpr unsigned FULL_WARP = 0xffffffffu;

// ---- 1 the machine --------------------------------------------------------------------------------------------------

#ifndef TURBO_ON_CPU

__device__ __forceinline__ float f16_to_f32(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// Nearest, ties to even.
__device__ __forceinline__ unsigned short f32_to_f16(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// Nearest, ties to even.
__device__ __forceinline__ unsigned short f32_to_bf16(float value) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// `low` in the lower 16 bits.
__device__ __forceinline__ unsigned f32_to_f16x2(float low, float high) {
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

__device__ __forceinline__ unsigned f32_to_bf16x2(float low, float high) {
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

// 2^value, off by about 2 units in the last place; 0 where the result is below the normal numbers, which would take
// exp2f three more instructions.
__device__ __forceinline__ float exp2_approx(float value) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
  return power;
}

// sum[16, 8] += a[16, 16] · b[16, 8]; the PTX manual lays the fragments out over the warp ("mma.m16n8k16").
__device__ __forceinline__ void mma_m16n8k16_f16(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void mma_m16n8k16_bf16(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8 × 8 matrices of 16-bit values: lane i gives the address of row i % 8 of matrix i / 8, 16 bytes in shared memory.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&to)[4], const void* shared_row) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared_row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// The same, with each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&to)[4], const void* shared_row) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared_row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// Copies 16 bytes to shared memory while the thread goes on: the first `bytes` from `global`, then zeros. Both
// addresses are multiples of 16. If `bytes` is 0, `global` is not read.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, unsigned bytes = 16) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(bytes) : "memory");
}

// Ends a group of copies.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most the NEWEST last groups of this thread are under way. Other threads see the copies after a
// barrier.
template <int NEWEST>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(NEWEST) : "memory");
}

#endif

// ---- 2 numbers ------------------------------------------------------------------------------------------------------

struct half_t {
  unsigned short bits;
};

struct bf16_t {
  unsigned short bits;
};

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(half_t value) { return f16_to_f32(value.bits); }
__device__ __forceinline__ float to_float(bf16_t value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

// The nearest T, ties to even.
template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ half_t from_float<half_t>(float value) {
  return half_t{f32_to_f16(value)};
}
template <>
__device__ __forceinline__ bf16_t from_float<bf16_t>(float value) {
  return bf16_t{f32_to_bf16(value)};
}

// Two values as the tensor cores' instructions take them, `low` in the lower 16 bits.
template <class T>
__device__ __forceinline__ unsigned pair_from_floats(float low, float high);
template <>
__device__ __forceinline__ unsigned pair_from_floats<half_t>(float low, float high) {
  return f32_to_f16x2(low, high);
}
template <>
__device__ __forceinline__ unsigned pair_from_floats<bf16_t>(float low, float high) {
  return f32_to_bf16x2(low, high);
}

// The inverse, exactly.
template <class T>
__device__ __forceinline__ void pair_to_floats(unsigned pair, float& low, float& high);
template <>
__device__ __forceinline__ void pair_to_floats<half_t>(unsigned pair, float& low, float& high) {
  low = f16_to_f32(static_cast<unsigned short>(pair));
  high = f16_to_f32(static_cast<unsigned short>(pair >> 16));
}
template <>
__device__ __forceinline__ void pair_to_floats<bf16_t>(unsigned pair, float& low, float& high) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000u);
}

constexpr float LOG2_E = 1.44269504f;

// Exponents of two from here on are giants: rounding a smaller one changes the power by a factor of √2 at most.
constexpr float GIANT = 16777216.0f;

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }
__device__ __forceinline__ float not_a_number() { return __uint_as_float(0x7fc00000u); }

// ---- 3 wide accesses ------------------------------------------------------------------------------------------------
// A thread moves W consecutive values at once. Each kernel chooses the template argument W by the addresses that it was
// given, the same for all threads of a launch: 16 bytes where everything is a multiple of 16, else 4 bytes, or one
// value. Narrow accesses of neighbouring lanes still lie side by side.

template <class T, int W>
struct alignas(W * sizeof(T)) Pack {
  T values[W];
};

// The bits of several addresses and lengths in bytes together, so that the least aligned decides: WITH_WIDTH chooses by
// it.
template <class... Pointers>
__device__ __forceinline__ u64 joint_bits(u64 bytes, const Pointers*... pointers) {
  return (bytes | ... | reinterpret_cast<u64>(pointers));
}

// Runs the last arguments, statements that may use W, with the widest W that `bits` allow. This is a macro, since NVRTC
// treats generic lambdas as host functions; so the statements hold no directives, and compilers unroll short loops
// anyway.
#define WITH_WIDTH(T, bits, ...)                               \
  do {                                                         \
    const u64 bits_of_width = bits;                            \
    if (bits_of_width % 16 == 0) {                             \
      constexpr int W = 16 / sizeof(T);                        \
      __VA_ARGS__;                                             \
    } else if (sizeof(T) == 2 && bits_of_width % 4 == 0) {     \
      constexpr int W = 2;                                     \
      __VA_ARGS__;                                             \
    } else {                                                   \
      constexpr int W = 1;                                     \
      __VA_ARGS__;                                             \
    }                                                          \
  } while (false)

// W values from `from` on, which is aligned to W values.
template <int W, class T>
__device__ __forceinline__ Pack<T, W> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, W>*>(from);
}

// v[i] = pack.values[i], i < W.
template <int W, class T>
__device__ __forceinline__ void unpack(const Pack<T, W>& pack, float* v) {
  if constexpr (sizeof(T) == 2 && W % 2 == 0) {  // a pair lies in one register
    const auto& pairs = reinterpret_cast<const Pack<unsigned, W / 2>&>(pack);
#pragma unroll
    for (int i = 0; i < W; i += 2) pair_to_floats<T>(pairs.values[i / 2], v[i], v[i + 1]);
  } else {
#pragma unroll
    for (int i = 0; i < W; ++i) v[i] = to_float(pack.values[i]);
  }
}

// v[i] = from[i], i < W.
template <int W, class T>
__device__ __forceinline__ void load(const T* from, float* v) {
  unpack<W>(load_pack<W>(from), v);
}

// to[i] = v[i], i < W, rounded.
template <int W, class T>
__device__ __forceinline__ void store(T* to, const float* v) {
  if constexpr (sizeof(T) == 2 && W % 2 == 0) {  // one instruction rounds two
    Pack<unsigned, W / 2> pairs;
#pragma unroll
    for (int i = 0; i < W; i += 2) pairs.values[i / 2] = pair_from_floats<T>(v[i], v[i + 1]);
    *reinterpret_cast<Pack<unsigned, W / 2>*>(to) = pairs;
  } else {
    Pack<T, W> pack;
#pragma unroll
    for (int i = 0; i < W; ++i) pack.values[i] = from_float<T>(v[i]);
    *reinterpret_cast<Pack<T, W>*>(to) = pack;
  }
}

// ---- 4 rows ---------------------------------------------------------------------------------------------------------
// THREADS threads share a row: a group of 4 to 32 lanes of a warp, or a block. A thread holds its values of ROWS rows.

// The column of a thread's value i when rows are read W values at a time: packs of neighbouring threads are neighbours
// in memory. The column grows with i, so the values inside the row come first.
template <int THREADS, int W>
__device__ __forceinline__ unsigned column_of(int i, unsigned thread) {
  return (i / W * THREADS + thread) * W + i % W;
}

// The number of values that a thread has of a row of `columns`, a multiple of W: those whose column_of is below
// `columns`.
template <int THREADS, int W>
__device__ __forceinline__ int owned(unsigned columns, unsigned thread) {
  return static_cast<int>((columns / W + THREADS - 1 - thread) / THREADS) * W;
}

// The number of this thread among those of its row.
template <int THREADS>
__device__ __forceinline__ unsigned thread_of_row() {
  return THREADS <= 32 ? threadIdx.x % THREADS : threadIdx.x;
}

// The x-th of this thread's ROWS rows; rows of neighbouring groups are neighbours.
template <int THREADS, int ROWS>
__device__ __forceinline__ unsigned row_of(int x) {
  if (THREADS > 32) return blockIdx.x * ROWS + x;
  const unsigned warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  return (warp * ROWS + x) * (32 / (THREADS > 32 ? 32 : THREADS)) + threadIdx.x % 32 / THREADS;
}

// ---- 5 reductions ---------------------------------------------------------------------------------------------------
// Several independent values are reduced together, so that the shuffles of one fill the latency of the others and a
// block meets at one barrier for all of them. Source: Fang et al., PPoPP'21, section 4.1.2, Figure 5.

struct Sum {
  static __device__ __forceinline__ float neutral() { return 0.0f; }
  static __device__ __forceinline__ float join(float a, float b) { return a + b; }
};

// Ignores NaN.
struct Max {
  static __device__ __forceinline__ float neutral() { return -infinity(); }
  static __device__ __forceinline__ float join(float a, float b) { return fmaxf(a, b); }
};

// The greater of two, `b` if they are equal, NaN if either is.
__device__ __forceinline__ float greater_or_nan(float a, float b) { return a > b || a != a ? a : b; }

// v[x] <- reduction of v[x] over groups of LANES neighbouring lanes. All lanes of the warp take part.
template <class Op, int LANES, int X>
__device__ __forceinline__ void group_reduce(float (&v)[X]) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) {
#pragma unroll
    for (int x = 0; x < X; ++x) v[x] = Op::join(v[x], __shfl_xor_sync(FULL_WARP, v[x], step));
  }
}

// v[x] <- reduction of v[x] over the block of THREADS threads, with one barrier: every warp joins the results of all.
// `shared` must not be used again until the block's next barrier, and must not hold values that are still to be read.
template <class Op, int THREADS, int X>
__device__ __forceinline__ void block_reduce(float (&v)[X], float (&shared)[THREADS / 32][X]) {
  group_reduce<Op, 32>(v);
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int x = 0; x < X; ++x) shared[threadIdx.x / 32][x] = v[x];
  }
  __syncthreads();
#pragma unroll
  for (int x = 0; x < X; ++x) v[x] = shared[0][x];
#pragma unroll
  for (int warp = 1; warp < THREADS / 32; ++warp) {
#pragma unroll
    for (int x = 0; x < X; ++x) v[x] = Op::join(v[x], shared[warp][x]);
  }
}

// v[x] <- reduction of v[x] over the THREADS threads of a row. A kernel numbers its reductions by STEP: each has its
// own shared memory, so none has to wait until another has been read. At most once per STEP and block.
template <class Op, int STEP, int THREADS, int X>
__device__ __forceinline__ void row_reduce(float (&v)[X]) {
  if constexpr (THREADS > 32) {
    __shared__ float shared[THREADS / 32][X];
    block_reduce<Op, THREADS>(v, shared);
  } else {
    group_reduce<Op, THREADS>(v);
  }
}

// The reduction of one value over a block as it is usually written: warps, a barrier, the first warp, another barrier.
// The batched reductions are measured against it. `shared` as for block_reduce.
template <class Op>
__device__ __forceinline__ float block_reduce_classic(float value, float (&shared)[33]) {
  float v[1] = {value};
  group_reduce<Op, 32>(v);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v[0];
  __syncthreads();
  if (threadIdx.x < 32) {
    v[0] = threadIdx.x < blockDim.x / 32 ? shared[threadIdx.x] : Op::neutral();
    group_reduce<Op, 32>(v);
    if (threadIdx.x == 0) shared[32] = v[0];
  }
  __syncthreads();
  return shared[32];
}

// ---- 6 tensor cores -------------------------------------------------------------------------------------------------

// sum += a · b, see mma_m16n8k16_f16.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]);
template <>
__device__ __forceinline__ void mma_m16n8k16<half_t>(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  mma_m16n8k16_f16(sum, a, b);
}
template <>
__device__ __forceinline__ void mma_m16n8k16<bf16_t>(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  mma_m16n8k16_bf16(sum, a, b);
}

// ---- 7 attention ----------------------------------------------------------------------------------------------------

// Keys first..end - 1.
struct Keys {
  unsigned first, end;

  __device__ __forceinline__ bool has(unsigned key) const { return key - first < end - first; }
};

// The keys below `keys` that query `query` sees: those at most `before` before it and `after` after it. 0xffffffff
// means no limit, so two numbers describe every mask: full has no limits, causal has 0 after, a window has its reach on
// both sides.
__device__ __forceinline__ Keys visible_keys(unsigned query, unsigned keys, unsigned before, unsigned after) {
  const unsigned first = query > before ? query - before : 0;
  const u64 end = static_cast<u64>(query) + after + 1;
  return Keys{first < keys ? first : keys, end < keys ? static_cast<unsigned>(end) : keys};
}

// Kinds of relative biases: see attention::BiasArguments.
constexpr unsigned BIAS_NONE = 0, BIAS_BUCKETS = 1, BIAS_ALIBI = 2, BIAS_DISENTANGLED = 3;

// The slope of a head's linear biases: the twin of `attention::alibi_slope`, which says more.
__device__ __forceinline__ float alibi_slope(unsigned head, unsigned num_heads) {
  const unsigned even = 1u << (31 - __clz(static_cast<int>(num_heads)));
  const float step = head < even ? head + 1.0f : head - even + 0.5f;
  return exp2f(-8.0f * step / even);
}

// The position of a key `distance` tokens behind its query: the twin of `attention::PositionBuckets::position`, which says
// more. `max_distance` is 0 where each distance has a position of its own.
__device__ inline unsigned relative_position(int distance, unsigned span, unsigned max_distance) {
  const unsigned exact = span / 2;
  const unsigned magnitude = distance < 0 ? 0u - static_cast<unsigned>(distance) : static_cast<unsigned>(distance);
  unsigned steps = magnitude;
  if (max_distance != 0 && magnitude > exact) {
    // both ratios and their logarithms are f32, as the published models were trained
    const float ratio = static_cast<float>(magnitude) / static_cast<float>(exact);
    const float most = static_cast<float>(max_distance - 1) / static_cast<float>(exact);
    const float part = static_cast<float>(log(static_cast<double>(ratio))) /
                       static_cast<float>(log(static_cast<double>(most)));
    steps = exact + static_cast<unsigned>(ceilf(part * static_cast<float>(exact - 1)));
  }
  steps = steps < span ? steps : span;
  const unsigned position = distance > 0 ? span - steps : span + steps;
  return position < 2 * span ? position : 2 * span - 1;
}

// The bucket of a key `distance` tokens behind its query: the twin of `attention::relative_bucket`, which says more.
__device__ inline unsigned relative_bucket(int distance, unsigned num_buckets, unsigned max_distance) {
  const unsigned of_side = num_buckets / 2, exact = of_side / 2;
  const unsigned side = distance > 0 ? of_side : 0;
  const unsigned magnitude = distance < 0 ? 0u - static_cast<unsigned>(distance) : static_cast<unsigned>(distance);
  if (magnitude < exact) return side + magnitude;
  if (magnitude >= max_distance) return side + of_side - 1;
  // logarithms are rounded to f32 before they are divided, as the published models were trained
  const float part = static_cast<float>(log(static_cast<double>(magnitude) / exact)) /
                     static_cast<float>(log(static_cast<double>(max_distance) / exact));
  const unsigned bucket = exact + static_cast<unsigned>(part * static_cast<float>(of_side - exact));
  return side + (bucket < of_side ? bucket : of_side - 1);
}
