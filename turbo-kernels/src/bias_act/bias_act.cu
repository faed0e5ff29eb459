// Element-wise steps: bias, activation, sum, product, scale, gate, weights of experts.
//
// A block takes BLOCK_VALUES neighbouring values, and blocks are independent. A thread reads PER_THREAD values of each
// input, 16 bytes at a time, before it computes, so each thread has 32 or 64 bytes of each input under way. The last
// block, and all blocks where an address or the row length is not a multiple of 16 bytes, go value by value,
// neighbouring lanes side by side.
// Bytes per value: those of each input and of the output, once; bias rows come from the L2 cache. Nothing is reused, so
// memory is the limit: the slowest activation takes some 15 instructions a value, and reading and writing a 16-bit
// value takes the time of 28.
// `out` may be one of the inputs (each value is read by the thread that writes it); other overlaps are not allowed.

constexpr int THREADS = 256;
constexpr int PER_THREAD = 16;
constexpr int BLOCK_VALUES = THREADS * PER_THREAD;

// W values of each of an operation's inputs, as they lie in memory. Operations with one input leave the second unused.
template <class T, int W>
struct Inputs {
  Pack<T, W> first, second;
};

// out[i] = the result of `op` for value i: BLOCK_VALUES values for each block, `in_last` for the last one.
// `op.load<W>(i)` reads the inputs of W values; `op.combine(v, w)` computes their results in v. Nothing is converted
// before all loads are issued: a conversion waits for its load, and the next load would be issued only after that.
template <class T, class Op>
__device__ __forceinline__ void each(const Op& op, T* out, unsigned in_last, u64 bits) {
  const u64 first = static_cast<u64>(blockIdx.x) * BLOCK_VALUES;
  const unsigned values = blockIdx.x + 1 == gridDim.x ? in_last : BLOCK_VALUES;
  if (bits % 16 == 0 && values == BLOCK_VALUES) {
    constexpr int W = 16 / sizeof(T);
    Inputs<T, W> inputs[PER_THREAD / W];
#pragma unroll
    for (int p = 0; p < PER_THREAD / W; ++p) {
      inputs[p] = op.template load<W>(first + column_of<THREADS, W>(p * W, threadIdx.x));
    }
    float v[PER_THREAD], w[PER_THREAD];
#pragma unroll
    for (int p = 0; p < PER_THREAD / W; ++p) {
      unpack<W>(inputs[p].first, v + p * W);
      unpack<W>(inputs[p].second, w + p * W);
    }
    op.combine(v, w);
#pragma unroll
    for (int i = 0; i < PER_THREAD; i += W) store<W>(out + first + column_of<THREADS, W>(i, threadIdx.x), v + i);
  } else {
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < values; i += THREADS) {
      const Inputs<T, 1> inputs = op.template load<1>(first + i);
      float v[1] = {to_float(inputs.first.values[0])}, w[1] = {to_float(inputs.second.values[0])};
      op.combine(v, w);
      store<1>(out + first + i, v);
    }
  }
}

template <class T>
struct AddBias {
  const T* x;
  const T* bias;
  unsigned columns;

  template <int W>
  __device__ __forceinline__ Inputs<T, W> load(u64 at) const {
    return {load_pack<W>(x + at), load_pack<W>(bias + at % columns)};
  }

  template <int N>
  __device__ __forceinline__ void combine(float (&v)[N], const float (&w)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] += w[i];
  }
};

// out = activation(x + bias)
template <class T>
struct BiasActivate {
  AddBias<T> sum;
  Activation activation;

  template <int W>
  __device__ __forceinline__ Inputs<T, W> load(u64 at) const {
    return sum.template load<W>(at);
  }

  template <int N>
  __device__ __forceinline__ void combine(float (&v)[N], const float (&w)[N]) const {
    sum.combine(v, w);
    activate(activation, v);
  }
};

template <class T>
struct Add {
  const T* a;
  const T* b;

  template <int W>
  __device__ __forceinline__ Inputs<T, W> load(u64 at) const {
    return {load_pack<W>(a + at), load_pack<W>(b + at)};
  }

  template <int N>
  __device__ __forceinline__ void combine(float (&v)[N], const float (&w)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] += w[i];
  }
};

template <class T>
struct Mul {
  const T* a;
  const T* b;

  template <int W>
  __device__ __forceinline__ Inputs<T, W> load(u64 at) const {
    return {load_pack<W>(a + at), load_pack<W>(b + at)};
  }

  template <int N>
  __device__ __forceinline__ void combine(float (&v)[N], const float (&w)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] *= w[i];
  }
};

template <class T>
struct Scale {
  const T* x;
  float factor;

  template <int W>
  __device__ __forceinline__ Inputs<T, W> load(u64 at) const {
    return {load_pack<W>(x + at), {}};
  }

  template <int N>
  __device__ __forceinline__ void combine(float (&v)[N], const float (&)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] *= factor;
  }
};

template <class T>
struct Activate {
  const T* x;
  Activation activation;

  template <int W>
  __device__ __forceinline__ Inputs<T, W> load(u64 at) const {
    return {load_pack<W>(x + at), {}};
  }

  template <int N>
  __device__ __forceinline__ void combine(float (&v)[N], const float (&)[N]) const {
    activate(activation, v);
  }
};

// out[i, j] = activation(x[i, j]) · x[i, columns + j], x of 2 · columns values a row.
template <class T>
struct Gate {
  const T* x;
  unsigned columns;
  Activation activation;

  template <int W>
  __device__ __forceinline__ Inputs<T, W> load(u64 at) const {
    const T* left = x + at + at / columns * columns;
    return {load_pack<W>(left), load_pack<W>(left + columns)};
  }

  template <int N>
  __device__ __forceinline__ void combine(float (&v)[N], const float (&w)[N]) const {
    activate(activation, v);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] *= w[i];
  }
};

constexpr int MOST_EXPERTS = 64;

// out[e * values + i] = weights[e] * x[e * values + i], one row for each block; weights are 0 except for the top_k
// greatest of the softmax of the row's logits. A thread computes the weight of one expert from all logits, which are
// few.
template <class T>
__device__ __forceinline__ void weigh_experts(const T* x, const T* logits, T* out, unsigned values,
                                              unsigned num_experts, unsigned top_k) {
  __shared__ float weights[MOST_EXPERTS];
  __shared__ unsigned chosen[MOST_EXPERTS];
  const u64 row = blockIdx.x, first = row * num_experts * values;
  logits += row * num_experts;
  if (threadIdx.x < num_experts) {
    const float own = to_float(logits[threadIdx.x]);
    float most = own;
    for (unsigned e = 0; e < num_experts; ++e) most = fmaxf(most, to_float(logits[e]));
    float sum = 0;
    unsigned rank = 0;
    for (unsigned e = 0; e < num_experts; ++e) {
      const float other = to_float(logits[e]);
      sum += expf(other - most);
      rank += other > own || (other == own && e < threadIdx.x);
    }
    weights[threadIdx.x] = expf(own - most) / sum;
    chosen[threadIdx.x] = rank < top_k;
  }
  __syncthreads();
  for (unsigned e = 0; e < num_experts; ++e) {
    for (unsigned i = threadIdx.x; i < values; i += THREADS) {
      const u64 at = first + static_cast<u64>(e) * values + i;
      float v[1] = {chosen[e] ? weights[e] * to_float(x[at]) : 0.0f};
      store<1>(out + at, v);
    }
  }
}

#define INSTANCES(T, DTYPE)                                                                                      \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                          \
      add_bias_##DTYPE(const T* x, const T* bias, T* out, unsigned in_last, unsigned columns) {                        \
    each(AddBias<T>{x, bias, columns}, out, in_last, joint_bits(columns * sizeof(T), x, bias, out));              \
  }                                                                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                          \
      bias_activate_##DTYPE(const T* x, const T* bias, unsigned activation, T* out, unsigned in_last,              \
                            unsigned columns) {                                                                    \
    const BiasActivate<T> both{{x, bias, columns}, static_cast<Activation>(activation)};                          \
    each(both, out, in_last, joint_bits(columns * sizeof(T), x, bias, out));                                      \
  }                                                                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                          \
      add_##DTYPE(const T* a, const T* b, T* out, unsigned in_last) {                                                  \
    each(Add<T>{a, b}, out, in_last, joint_bits(0, a, b, out));                                                   \
  }                                                                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                          \
      mul_##DTYPE(const T* a, const T* b, T* out, unsigned in_last) {                                                  \
    each(Mul<T>{a, b}, out, in_last, joint_bits(0, a, b, out));                                                   \
  }                                                                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                          \
      scale_##DTYPE(const T* x, float factor, T* out, unsigned in_last) {                                              \
    each(Scale<T>{x, factor}, out, in_last, joint_bits(0, x, out));                                               \
  }                                                                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                          \
      activate_##DTYPE(const T* x, unsigned activation, T* out, unsigned in_last) {                                    \
    each(Activate<T>{x, static_cast<Activation>(activation)}, out, in_last, joint_bits(0, x, out));               \
  }                                                                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                          \
      gate_##DTYPE(const T* x, unsigned activation, T* out, unsigned in_last, unsigned columns) {                      \
    const Gate<T> gate{x, columns, static_cast<Activation>(activation)};                                         \
    each(gate, out, in_last, joint_bits(columns * sizeof(T), x, out));                                            \
  }                                                                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                          \
      weigh_experts_##DTYPE(const T* x, const T* logits, T* out, unsigned values, unsigned num_experts,           \
                            unsigned top_k) {                                                                    \
    weigh_experts(x, logits, out, values, num_experts, top_k);                                                  \
  }
