// The products for which cuBLASLt has no algorithm, and the epilogues that it lacks or does not compute exactly enough.
//
//   product  y = activation(x · w + bias + add), any strides: a block takes tiles of 16 × 16 values of y, each thread
//            one value, and walks over k in steps of 16 through shared memory. Slow and correct.
//   finish   y = activation(y + bias) in place, for y in f32: one more pass over y, no more roundings.

constexpr unsigned SIDE = 16;

// Value (b, i, j) of matrices is first[b · batch + i · row + j · column].
template <class T>
struct Matrices {
  T* first;
  u64 batch, row, column;

  __device__ __forceinline__ T* at(u64 b, u64 i, u64 j) const { return first + b * batch + i * row + j * column; }
};

__device__ __forceinline__ float activated(float value, unsigned activation, bool is_activated) {
  float v[1] = {value};
  if (is_activated) activate(static_cast<Activation>(activation), v);
  return v[0];
}

// The body of product_f32 and its siblings below. One dimension of the grid, of any length; SIDE · SIDE threads.
template <class In, class Out>
__device__ __forceinline__ void product(Matrices<const In> x, Matrices<const In> w, Matrices<Out> y, const In* bias,
                                        Matrices<const Out> add, u64 batch, u64 m, u64 n, u64 k, unsigned activation,
                                        bool is_activated) {
  __shared__ float x_tile[SIDE][SIDE], w_tile[SIDE][SIDE + 1];
  const unsigned row = threadIdx.x / SIDE, column = threadIdx.x % SIDE;
  const u64 tiles_down = (m + SIDE - 1) / SIDE, tiles_across = (n + SIDE - 1) / SIDE;
  for (u64 tile = blockIdx.x; tile < batch * tiles_down * tiles_across; tile += gridDim.x) {
    const u64 b = tile / (tiles_down * tiles_across);
    const u64 i = tile / tiles_across % tiles_down * SIDE + row;
    const u64 j = tile % tiles_across * SIDE + column;
    float sum = 0.0f;
    for (u64 step = 0; step < k; step += SIDE) {
      x_tile[row][column] = i < m && step + column < k ? to_float(*x.at(b, i, step + column)) : 0.0f;
      w_tile[row][column] = j < n && step + row < k ? to_float(*w.at(b, step + row, j)) : 0.0f;
      __syncthreads();
#pragma unroll
      for (unsigned at = 0; at < SIDE; ++at) sum = fmaf(x_tile[row][at], w_tile[at][column], sum);
      __syncthreads();
    }
    if (i < m && j < n) {
      if (bias) sum += to_float(bias[j]);
      if (add.first) sum += to_float(*add.at(b, i, j));
      *y.at(b, i, j) = from_float<Out>(activated(sum, activation, is_activated));
    }
  }
}

// One dimension of the grid, of any length.
template <class In>
__device__ __forceinline__ void finish(Matrices<float> y, const In* bias, u64 batch, u64 m, u64 n, unsigned activation,
                                       bool is_activated) {
  const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
  for (u64 at = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; at < batch * m * n; at += step) {
    const u64 j = at % n;
    float* value = y.at(at / n / m, at / n % m, j);
    *value = activated(*value + (bias ? to_float(bias[j]) : 0.0f), activation, is_activated);
  }
}

// ---- instances: bias and add may be null; `is_activated` is 0 or 1 -----------------------------------------------------

#define PRODUCT(name, In, Out)                                                                                          \
  extern "C" __global__ void __launch_bounds__(SIDE* SIDE)                                                              \
      name(const In* x, u64 x_batch, u64 x_row, const In* w, u64 w_batch, u64 w_row, u64 w_column, Out* y, u64 y_batch, \
           u64 y_row, const In* bias, const Out* add, u64 add_batch, u64 add_row, u64 batch, u64 m, u64 n, u64 k,       \
           unsigned activation, unsigned is_activated) {                                                                \
    product<In, Out>({x, x_batch, x_row, 1}, {w, w_batch, w_row, w_column}, {y, y_batch, y_row, 1}, bias,               \
                     {add, add_batch, add_row, 1}, batch, m, n, k, activation, is_activated != 0);                      \
  }

#define INSTANCES(T, DTYPE)                                                                                           \
  PRODUCT(product_##DTYPE, T, T)                                                                                      \
  PRODUCT(product_##DTYPE##_to_f32, T, float)                                                                         \
  extern "C" __global__ void finish_##DTYPE(float* y, u64 y_batch, u64 y_row, const T* bias, u64 batch, u64 m, u64 n, \
                                            unsigned activation, unsigned is_activated) {                             \
    finish<T>({y, y_batch, y_row, 1}, bias, batch, m, n, activation, is_activated != 0);                              \
  }
