// From one row per token to one row per sequence, and rows of unit length.
//
// A block has 16 · GROUP bytes of columns of one sequence, a whole line of memory, and goes through its tokens: GROUP
// lanes for each row, TOKENS rows at a time, each thread UNROLL of them at once. So as many blocks read a sequence's
// rows as a row has lines, and a short batch still fills the machine. The threads' partial results meet in shared
// memory. Bytes per value of x: itself, once. Which threads add which rows depends only on the sequence's length.

constexpr int THREADS = 256;
constexpr int GROUP = 8;
constexpr int TOKENS = THREADS / GROUP;
constexpr int UNROLL = 4;

// As the enum `Pooling` numbers them.
enum Pooling : unsigned { CLS, MEAN, LAST_TOKEN, MAX, MEAN_SQRT_LEN, WEIGHTED_MEAN };

// Adds one row's value to a sequence's result.
__device__ __forceinline__ float join(Pooling pooling, float so_far, float value) {
  return pooling == MAX ? greater_or_nan(value, so_far) : so_far + value;
}

// x: [rows, columns]; results are `out_stride` values apart. There is a block for each GROUP · W columns of a sequence.
template <int W, class T>
__device__ __forceinline__ void pool(Pooling pooling, const Sequences& sequences, const T* __restrict__ x,
    T* __restrict__ out, unsigned out_stride, unsigned columns) {
  __shared__ float partial[THREADS / 32][GROUP * W];
  const unsigned tiles = (columns + GROUP * W - 1) / (GROUP * W);
  const unsigned sequence = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  Tokens tokens = sequences.tokens(sequence);
  const unsigned lane = threadIdx.x % GROUP, slot = threadIdx.x / GROUP;
  const unsigned column = (tile * GROUP + lane) * W;
  const bool inside = column < columns;
  const unsigned count = tokens.count;
  if (pooling == CLS) tokens.count = min(count, 1u);
  if (pooling == LAST_TOKEN && count > 0) tokens = Tokens{tokens.first + count - 1, 1};

  float sum[W];
#pragma unroll
  for (int j = 0; j < W; ++j) sum[j] = pooling == MAX ? -infinity() : 0.0f;
  // absent rows read the first row of the block's columns, and absent columns the first column
  const T* from = x + static_cast<u64>(tokens.first) * columns + (inside ? column : 0);
  for (unsigned token = slot; token < tokens.count; token += TOKENS * UNROLL) {
    Pack<T, W> packs[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const unsigned at = token + u * TOKENS;
      packs[u] = load_pack<W>(from + static_cast<u64>(at < tokens.count ? at : 0) * columns);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const unsigned at = token + u * TOKENS;
      const float weight = pooling == WEIGHTED_MEAN ? static_cast<float>(at + 1) : 1.0f;
#pragma unroll
      for (int j = 0; j < W; ++j) {
        if (at < tokens.count) sum[j] = join(pooling, sum[j], weight * to_float(packs[u].values[j]));
      }
    }
  }

  // the lanes of one column are GROUP apart, in a warp and across warps
#pragma unroll
  for (int step = GROUP; step < 32; step *= 2) {
#pragma unroll
    for (int j = 0; j < W; ++j) sum[j] = join(pooling, sum[j], __shfl_xor_sync(FULL_WARP, sum[j], step));
  }
  if (threadIdx.x % 32 < GROUP) {
#pragma unroll
    for (int j = 0; j < W; ++j) partial[threadIdx.x / 32][lane * W + j] = sum[j];
  }
  __syncthreads();
  if (threadIdx.x >= GROUP || !inside) return;
  float divisor = 1.0f;
  if (pooling == MEAN) divisor = static_cast<float>(count);
  if (pooling == MEAN_SQRT_LEN) divisor = sqrtf(static_cast<float>(count));
  // the sum of the weights, which 32 bits may not hold
  if (pooling == WEIGHTED_MEAN) divisor = static_cast<float>(static_cast<u64>(count) * (count + u64{1}) / 2);
#pragma unroll
  for (int j = 0; j < W; ++j) {
    float all = partial[0][lane * W + j];
    for (int warp = 1; warp < THREADS / 32; ++warp) all = join(pooling, all, partial[warp][lane * W + j]);
    sum[j] = count > 0 ? all / divisor : 0.0f;
  }
  store<W>(out + static_cast<u64>(sequence) * out_stride + column, sum);
}

// out[b] = x[b] / max(norm of x[b], least), a warp for each row.
template <class T>
__device__ __forceinline__ void l2_normalize(
    const T* __restrict__ x, float least, T* __restrict__ out, unsigned rows, unsigned columns) {
  const unsigned row = row_of<32, 1>(0);
  if (row >= rows) return;
  const u64 first = static_cast<u64>(row) * columns;
  WITH_WIDTH(T, joint_bits(columns * sizeof(T), x, out), {
    float v[W], squares[1] = {};
    for (unsigned column = threadIdx.x % 32 * W; column < columns; column += 32 * W) {
      load<W>(x + first + column, v);
      for (int j = 0; j < W; ++j) squares[0] = fmaf(v[j], v[j], squares[0]);
    }
    group_reduce<Sum, 32>(squares);
    const float norm = sqrtf(squares[0]);
    const float divisor = norm < least ? least : norm;  // not fmaxf, which forgets NaN
    for (unsigned column = threadIdx.x % 32 * W; column < columns; column += 32 * W) {
      load<W>(x + first + column, v);
      for (int j = 0; j < W; ++j) v[j] /= divisor;
      store<W>(out + first + column, v);
    }
  });
}

// `_any` goes value by value, where an address or the row length is not a multiple of 16 bytes.
#define INSTANCES(T, DTYPE)                                                                                        \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                            \
      pool_##DTYPE(unsigned pooling, const unsigned* lengths, unsigned batch_size, unsigned padded_len,            \
          unsigned rows, const T* x, T* out, unsigned out_stride, unsigned columns) {                              \
    const Sequences sequences{lengths, batch_size, padded_len, rows};                                              \
    pool<16 / sizeof(T)>(static_cast<Pooling>(pooling), sequences, x, out, out_stride, columns);                   \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                            \
      pool_##DTYPE##_any(unsigned pooling, const unsigned* lengths, unsigned batch_size, unsigned padded_len,      \
          unsigned rows, const T* x, T* out, unsigned out_stride, unsigned columns) {                              \
    const Sequences sequences{lengths, batch_size, padded_len, rows};                                              \
    pool<1>(static_cast<Pooling>(pooling), sequences, x, out, out_stride, columns);                                \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(256)                                                                \
      l2_normalize_##DTYPE(const T* x, float least, T* out, unsigned rows, unsigned columns) {                     \
    l2_normalize(x, least, out, rows, columns);                                                                    \
  }
