// Layer norm, with the bias and residual that come before it, and RMS norm.
//
// A row's values are read once, stay in registers through both passes, and are written once: the bytes per value are
// those of x, of the residual if there is one, and of the output; bias, gain and offset come from the L2 cache. A
// thread issues all its loads before it waits for the first reduction.
//
//   kernel                | threads that share a row                 | rows of a group
//   ..._64, _128          | 8 or 16 lanes, up to that many columns   | 2
//   ..._512_x1, _512_x2…  | a warp                                   | 1, 2 or 4, reduced together
//   ..._2048, ..._4096    | a block of 256                           | 1
//   ..._any               | a block of 256, which reads it again     | 1
//   ..._classic           | a block, a thread for each value         | 1
//
// All but the last two require rows that begin at multiples of 16 bytes, which `cuda.rs` ensures. No variant for up to
// 1024 columns has a barrier. Several rows are reduced together, so that their shuffles fill each other's latency: Fang
// et al., PPoPP'21, section 4.1.2; the paper compares that with `_classic`. On an H200, one row for each warp is nearly
// always as fast, so `_x2` and `_x4` are for comparison.

// out = layer_norm(x + bias + residual), added in this order; bias, residual and offset may be null.
template <int THREADS, int PER, int ROWS, class T>
__device__ __forceinline__ void layer_norm(const T* __restrict__ x, const T* __restrict__ bias,
    const T* __restrict__ residual, const T* __restrict__ gain, const T* __restrict__ offset, float epsilon,
    T* __restrict__ out, unsigned rows, unsigned columns) {
  constexpr int W = 16 / sizeof(T);
  const int own = owned<THREADS, W>(columns, thread_of_row<THREADS>());
  Pack<T, W> of_x[ROWS][PER / W], of_residual[ROWS][PER / W], of_bias[1][PER / W];
  load_packs<THREADS>(x, columns, own, rows, of_x);
  // absent operands are read from where it costs nothing: these are in cache or will be
  load_packs<THREADS>(residual ? residual : x, columns, own, rows, of_residual);
  load_packs<THREADS>(bias ? bias : gain, 0, own, rows, of_bias);
  const RowWeights<T, PER / W> weights = load_weights<THREADS, PER / W>(gain, offset, own);
  // branches, the same for all threads: a choice for each value would take as long as adding it. x is unpacked last:
  // compilers move the common beginning of both branches before them, where it would wait for x, and bias would be
  // loaded only after that.
  float v[ROWS][PER];
#pragma unroll
  for (int y = 0; y < ROWS; ++y) {
    if (bias) {
      unpack_all(of_bias[0], v[y]);
      add_all(of_x[y], v[y]);
    } else {
      unpack_all(of_x[y], v[y]);
    }
    if (residual) add_all(of_residual[y], v[y]);
    clear_others(v[y], own);
  }
  Moments moments[ROWS];
  find_moments<THREADS>(v, own, columns, epsilon, moments);
  store_normalized<THREADS>(v, own, moments, weights, out, rows, columns);
}

// A row of x + bias + residual, added in this order; bias and residual may be null.
template <class T>
struct RowSum {
  const T* x;
  const T* bias;
  const T* residual;

  template <int W>
  __device__ __forceinline__ void load(unsigned column, float (&v)[W]) const {
    float terms[2][W] = {};
    ::load<W>(x + column, v);
    if (bias) ::load<W>(bias + column, terms[0]);
    if (residual) ::load<W>(residual + column, terms[1]);
#pragma unroll
    for (int j = 0; j < W; ++j) v[j] = v[j] + terms[0][j] + terms[1][j];
  }
};

// The sum from which row `row` of the output is made.
template <class T>
__device__ __forceinline__ RowSum<T> row_sum(
    const T* x, const T* bias, const T* residual, unsigned row, unsigned columns) {
  const u64 first = static_cast<u64>(row) * columns;
  return RowSum<T>{x + first, bias, residual ? residual + first : nullptr};
}

template <class T>
__device__ __forceinline__ void layer_norm_any(const T* __restrict__ x, const T* __restrict__ bias,
    const T* __restrict__ residual, const T* __restrict__ gain, const T* __restrict__ offset, float epsilon,
    T* __restrict__ out, unsigned columns) {
  const RowSum<T> row = row_sum(x, bias, residual, blockIdx.x, columns);
  T* to = out + static_cast<u64>(blockIdx.x) * columns;
  WITH_WIDTH(T, joint_bits(columns * sizeof(T), x, bias, residual, gain, offset, out),
      (normalize_streamed<W, 256>(row, gain, offset, epsilon, to, columns)));
}

// Layer norm as it is usually written: a block of at least as many threads as columns for each row, one reduction after
// another.
template <class T>
__device__ __forceinline__ void layer_norm_classic(const T* __restrict__ x, const T* __restrict__ bias,
    const T* __restrict__ residual, const T* __restrict__ gain, const T* __restrict__ offset, float epsilon,
    T* __restrict__ out, unsigned columns) {
  __shared__ float of_sum[33], of_squares[33];
  const unsigned column = threadIdx.x;
  const bool inside = column < columns;
  float v[1] = {};
  if (inside) row_sum(x, bias, residual, blockIdx.x, columns).template load<1>(column, v);
  const float mean = block_reduce_classic<Sum>(v[0], of_sum) / columns;
  const float d = inside ? v[0] - mean : 0.0f;
  const float variance = block_reduce_classic<Sum>(d * d, of_squares) / columns;
  if (inside) {
    const float unit = d / sqrtf(variance + epsilon);
    const float y = fmaf(unit, to_float(gain[column]), offset ? to_float(offset[column]) : 0.0f);
    out[static_cast<u64>(blockIdx.x) * columns + column] = from_float<T>(y);
  }
}

// The start of row `row`, where `heads` rows of `columns` values lie side by side every `stride` values.
__device__ __forceinline__ u64 start_of_row(unsigned row, unsigned heads, unsigned stride, unsigned columns) {
  return static_cast<u64>(row / heads) * stride + static_cast<u64>(row % heads) * columns;
}

// out = x / √(mean of x² + ε) · gain. Source: Zhang and Sennrich, NeurIPS 2019. Rows of x lie as `start_of_row` says,
// those of `out` one after another.
template <int THREADS, int PER, int ROWS, class T>
__device__ __forceinline__ void rms_norm(const T* __restrict__ x, unsigned heads, unsigned stride,
    const T* __restrict__ gain, float epsilon, T* __restrict__ out, unsigned rows, unsigned columns) {
  constexpr int W = 16 / sizeof(T);
  const unsigned thread = thread_of_row<THREADS>();
  const int own = owned<THREADS, W>(columns, thread);
  Pack<T, W> packs[ROWS][PER / W];
#pragma unroll
  for (int y = 0; y < ROWS; ++y) {
    const unsigned row = row_of<THREADS, ROWS>(y);
    const T* of_row = x + start_of_row(row < rows ? row : 0, heads, stride, columns);
#pragma unroll
    for (int p = 0; p < PER / W; ++p) {
      packs[y][p] = load_pack<W>(of_row + (p * W < own ? column_of<THREADS, W>(p * W, thread) : 0));
    }
  }
  const RowWeights<T, PER / W> weights = load_weights<THREADS, PER / W>(gain, static_cast<const T*>(nullptr), own);
  float v[ROWS][PER];
#pragma unroll
  for (int y = 0; y < ROWS; ++y) {
    unpack_all(packs[y], v[y]);
    clear_others(v[y], own);
  }
  float squares[ROWS] = {};
#pragma unroll
  for (int y = 0; y < ROWS; ++y) {
#pragma unroll
    for (int i = 0; i < PER; ++i) squares[y] = fmaf(v[y][i], v[y][i], squares[y]);
  }
  row_reduce<Sum, 0, THREADS>(squares);
  Moments moments[ROWS];
#pragma unroll
  for (int y = 0; y < ROWS; ++y) moments[y] = moments_of(0.0f, squares[y] / columns, epsilon);
  store_normalized<THREADS>(v, own, moments, weights, out, rows, columns);
}

template <class T>
__device__ __forceinline__ void rms_norm_any(const T* __restrict__ x, unsigned heads, unsigned stride,
    const T* __restrict__ gain, float epsilon, T* __restrict__ out, unsigned columns) {
  constexpr int THREADS = 256;
  const T* from = x + start_of_row(blockIdx.x, heads, stride, columns);
  WITH_WIDTH(T, joint_bits((stride | columns) * sizeof(T), x, gain, out), {
    float v[W], squares[1] = {};
    for (unsigned column = threadIdx.x * W; column < columns; column += THREADS * W) {
      load<W>(from + column, v);
      for (int j = 0; j < W; ++j) squares[0] = fmaf(v[j], v[j], squares[0]);
    }
    row_reduce<Sum, 0, THREADS>(squares);
    const Moments moments = moments_of(0.0f, squares[0] / columns, epsilon);
    for (unsigned column = threadIdx.x * W; column < columns; column += THREADS * W) {
      float factor[W];
      load<W>(from + column, v);
      load<W>(gain + column, factor);
      for (int j = 0; j < W; ++j) v[j] = moments.normalize(v[j]) * factor[j];
      store<W>(out + static_cast<u64>(blockIdx.x) * columns + column, v);
    }
  });
}

#define LAYER_NORM(T, NAME, BLOCK, THREADS, PER, ROWS)                                                              \
  extern "C" __global__ void __launch_bounds__(BLOCK) layer_norm_##NAME(const T* x, const T* bias,                  \
      const T* residual, const T* gain, const T* offset, float epsilon, T* out, unsigned rows, unsigned columns) {  \
    layer_norm<THREADS, PER, ROWS>(x, bias, residual, gain, offset, epsilon, out, rows, columns);                   \
  }

#define RMS_NORM(T, NAME, BLOCK, THREADS, PER, ROWS)                                                                \
  extern "C" __global__ void __launch_bounds__(BLOCK) rms_norm_##NAME(const T* x, unsigned heads, unsigned stride,   \
      const T* gain, float epsilon, T* out, unsigned rows, unsigned columns) {                                      \
    rms_norm<THREADS, PER, ROWS>(x, heads, stride, gain, epsilon, out, rows, columns);                              \
  }

#define INSTANCES(T, DTYPE)                                                                                         \
  LAYER_NORM(T, DTYPE##_128, 128, 16, 8, 2)                                                                         \
  LAYER_NORM(T, DTYPE##_512_x1, 128, 32, 16, 1)                                                                     \
  LAYER_NORM(T, DTYPE##_512_x2, 128, 32, 16, 2)                                                                     \
  LAYER_NORM(T, DTYPE##_512_x4, 128, 32, 16, 4)                                                                     \
  LAYER_NORM(T, DTYPE##_768_x1, 128, 32, 24, 1)                                                                     \
  LAYER_NORM(T, DTYPE##_768_x2, 128, 32, 24, 2)                                                                     \
  LAYER_NORM(T, DTYPE##_1024_x1, 128, 32, 32, 1)                                                                    \
  LAYER_NORM(T, DTYPE##_1024_x2, 128, 32, 32, 2)                                                                    \
  LAYER_NORM(T, DTYPE##_2048, 256, 256, 8, 1)                                                                       \
  LAYER_NORM(T, DTYPE##_4096, 256, 256, 16, 1)                                                                      \
  RMS_NORM(T, DTYPE##_64, 128, 8, 8, 2)                                                                             \
  RMS_NORM(T, DTYPE##_128, 128, 16, 8, 2)                                                                           \
  RMS_NORM(T, DTYPE##_1024, 128, 32, 32, 1)                                                                      \
  RMS_NORM(T, DTYPE##_4096, 256, 256, 16, 1)                                                                        \
  extern "C" __global__ void __launch_bounds__(256) layer_norm_##DTYPE##_any(const T* x, const T* bias,            \
      const T* residual, const T* gain, const T* offset, float epsilon, T* out, unsigned rows, unsigned columns) {  \
    layer_norm_any(x, bias, residual, gain, offset, epsilon, out, columns);                                        \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(1024) layer_norm_##DTYPE##_classic(const T* x, const T* bias,        \
      const T* residual, const T* gain, const T* offset, float epsilon, T* out, unsigned rows, unsigned columns) {  \
    layer_norm_classic(x, bias, residual, gain, offset, epsilon, out, columns);                                     \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256) rms_norm_##DTYPE##_any(const T* x, unsigned heads, unsigned stride,   \
      const T* gain, float epsilon, T* out, unsigned rows, unsigned columns) {                                      \
    rms_norm_any(x, heads, stride, gain, epsilon, out, columns);                                                   \
  }
