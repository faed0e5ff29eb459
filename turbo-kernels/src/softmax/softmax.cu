// Softmax along the last axis of scores [batch_size, num_heads, queries, keys]; mask and relative bias alone.
//
// Every value is read once and written once: 4 bytes a value in 16-bit types, 8 in f32. Rows of up to 4096 keys stay in
// registers in between; masked keys are -infinity there, so the steps between loading and storing need no mask. In
// 16-bit types, instructions rather than memory would be the limit: so a row that is seen whole is tested once, and one
// multiply-add before a power of two replaces the scale, shift and range reduction of an exponential.
//
//   kernel                | threads that share a row                 | rows of a group
//   ..._32, _64, _128     | 4, 8 or 16 lanes, up to that many keys   | 2
//   ..._256_x1, _256_x2…  | a warp                                   | 1, 2 or 4, reduced together
//   ..._2048, ..._4096    | a block of 256, with one barrier         | 1
//   ..._any               | a block of 256, which reads it again     | 1
//   ..._classic           | a block, a thread for each value         | 1
//
// Several rows are reduced together, so that their shuffles fill each other's latency: Fang et al., PPoPP'21, section
// 4.1.2, Figure 5; the paper compares that with `_classic`. On an H200, one row for each warp is nearly always as fast,
// so `_x2` and `_x4` are for comparison.

// The shape of the scores, and the keys that count.
struct Scores {
  unsigned rows, num_heads, queries, keys;
  const unsigned* seq_lens;  // [batch_size], or null: all keys are tokens
  unsigned before, after;    // see visible_keys

  // The keys that count in a row; none if the row does not exist.
  __device__ __forceinline__ Keys visible(unsigned row) const {
    if (row >= rows) return Keys{0, 0};
    unsigned tokens = keys;
    if (seq_lens) {
      const unsigned len = seq_lens[row / (queries * num_heads)];
      tokens = len < keys ? len : keys;
    }
    // spares a division where the query does not matter
    if (before == 0xffffffffu && after == 0xffffffffu) return Keys{0, tokens};
    return visible_keys(row % queries, tokens, before, after);
  }
};

// A relative bias by distance, or none. The buckets of the first distances are in shared memory, since each costs two
// logarithms.
template <class T>
struct RelativeBias {
  static constexpr unsigned NEAR = 1024;

  unsigned kind;
  const T* table;    // [num_buckets, num_heads], where there are buckets, or what queries score with positions
  const T* of_keys;  // what keys score with positions
  unsigned num_buckets, max_distance;
  unsigned short* near;  // [NEAR]

  // Called by the whole block before the first `at`.
  __device__ __forceinline__ void prepare() const {
    if (kind != BIAS_BUCKETS) return;
    for (unsigned i = threadIdx.x; i < NEAR && i <= max_distance; i += blockDim.x) {
      near[i] = static_cast<unsigned short>(relative_bucket(-static_cast<int>(i), num_buckets, max_distance));
    }
    __syncthreads();
  }

  // The bias of a key; 0 if there is none.
  __device__ __forceinline__ float at(const Scores& scores, unsigned row, unsigned key) const {
    if (kind == BIAS_NONE) return 0.0f;
    const unsigned num_heads = scores.num_heads;
    const unsigned query = row % scores.queries, head = row / scores.queries % num_heads;
    const int distance = static_cast<int>(key) - static_cast<int>(query);
    if (kind == BIAS_DISENTANGLED) {
      const unsigned sequence = row / (scores.queries * num_heads), positions = 2 * num_buckets;
      const unsigned position = relative_position(distance, num_buckets, max_distance);
      const u64 query_row = static_cast<u64>(sequence) * scores.queries + query;
      const u64 key_row = static_cast<u64>(sequence) * scores.keys + key;
      return to_float(table[(query_row * num_heads + head) * positions + position]) +
             to_float(of_keys[(key_row * num_heads + head) * positions + position]);
    }
    const unsigned magnitude = distance < 0 ? query - key : key - query;
    if (kind == BIAS_ALIBI) return -alibi_slope(head, num_heads) * static_cast<float>(magnitude);
    unsigned bucket;
    if (magnitude < NEAR && magnitude <= max_distance) {
      bucket = near[magnitude] + (distance > 0 ? num_buckets / 2 : 0);
    } else {
      bucket = relative_bucket(distance, num_buckets, max_distance);
    }
    return to_float(table[bucket * num_heads + head]);
  }
};

// The amount subtracted from scores before the exponential: the greatest score, or 0 if none counts, since subtracting
// -infinity from itself gives NaN.
__device__ __forceinline__ float shift_of(float most) { return most == -infinity() ? 0.0f : most; }

// The factor of the exponentials. The greatest exponential is 1, up to what `GIANT` says, unless no key counts: then
// all are 0.
template <class T>
__device__ __forceinline__ float inverse_of(float sum) {
  const float divisor = sum == 0.0f ? 1.0f : sum;
  return sizeof(T) == 2 ? __fdividef(1.0f, divisor) : 1.0f / divisor;
}

// ---- rows in registers ----------------------------------------------------------------------------------------------

// Whether scores stay as stored until one multiply-add scales and shifts them. That requires that the greatest value
// gives the greatest score; and f32 needs a better exponential than `exp2_approx`.
template <class T>
__device__ __forceinline__ bool scales_late(float scale) {
  return sizeof(T) == 2 && scale > 0.0f && scale * LOG2_E < infinity();
}

// The term that `exponentials` adds to each exponent of two in 16-bit types, unless it is a giant. It is rounded in any
// case: `between` subtracts exactly what was added.
__device__ __forceinline__ float term_of(float shift, float scale) { return __fmul_rn(-shift, scale * LOG2_E); }

// v[i] <- e^(scale · (v[i] - shift)); in f32 the scale is 1.
template <class T, int PER>
__device__ __forceinline__ void exponentials(float (&v)[PER], float shift, float scale) {
  if constexpr (sizeof(T) == 2) {
    const float factor = scale * LOG2_E, term = term_of(shift, scale);
    if (fabsf(term) < GIANT) {
#pragma unroll
      for (int i = 0; i < PER; ++i) v[i] = exp2_approx(fmaf(v[i], factor, term));
    } else {  // a rounding of the term might be more than an exponent holds
#pragma unroll
      for (int i = 0; i < PER; ++i) v[i] = exp2_approx((v[i] - shift) * factor);
    }
  } else {
#pragma unroll
    for (int i = 0; i < PER; ++i) v[i] = expf(v[i] - shift);
  }
}

// The factor from `exponentials` with `shift` to those with `other`, including the roundings of both. A warp without
// keys comes with -infinity. In f32 the scale is 1.
template <class T>
__device__ __forceinline__ float between(float shift, float other, float scale) {
  if constexpr (sizeof(T) == 2) {
    const float term = term_of(shift, scale), other_term = term_of(other, scale);
    const bool are_terms = fabsf(term) < GIANT && fabsf(other_term) < GIANT;
    return exp2_approx(are_terms ? other_term - term : (shift - other) * (scale * LOG2_E));
  }
  return expf(shift - other);
}

// v[y] <- scores of the keys that row y sees, times `scale` unless it is applied late, and -infinity elsewhere.
template <int W, int THREADS, int PER, int ROWS, class T>
__device__ __forceinline__ void load_rows(
    const T* __restrict__ x, unsigned keys, const Keys (&visible)[ROWS], float scale, float (&v)[ROWS][PER]) {
  const unsigned thread = thread_of_row<THREADS>();
  // Packs in which no key counts read the nearest pack with one that does, if there is any: a load behind a branch
  // would be waited for before the next is issued. A pack lies in one row, whose length is a multiple of it.
  Pack<T, W> packs[ROWS][PER / W];
#pragma unroll
  for (int y = 0; y < ROWS; ++y) {
    const bool none = visible[y].end == 0;
    const unsigned first = visible[y].first / W, last = none ? 0 : (visible[y].end - 1) / W;
    const T* row = x + static_cast<u64>(none ? 0 : row_of<THREADS, ROWS>(y)) * keys;
    const auto* from = reinterpret_cast<const Pack<T, W>*>(row);
#pragma unroll
    for (int p = 0; p < PER / W; ++p) packs[y][p] = from[min(max(p * THREADS + thread, first), last)];
  }
#pragma unroll
  for (int y = 0; y < ROWS; ++y) {
#pragma unroll
    for (int p = 0; p < PER / W; ++p) unpack<W>(packs[y][p], v[y] + p * W);
    if (!scales_late<T>(scale)) {
#pragma unroll
      for (int i = 0; i < PER; ++i) v[y][i] = __fmul_rn(v[y][i], scale);
    }
    if (visible[y].first == 0 && visible[y].end >= THREADS * PER) continue;
    // in long rows, most threads see every key of most groups of eight
#pragma unroll
    for (int first = 0; first < PER; first += 8) {
      const unsigned last = column_of<THREADS, W>(first + 7, thread);
      if (column_of<THREADS, W>(first, thread) < visible[y].first || last >= visible[y].end) {
#pragma unroll
        for (int i = first; i < first + 8; ++i) {
          if (!visible[y].has(column_of<THREADS, W>(i, thread))) v[y][i] = -infinity();
        }
      }
    }
  }
}

// out = v · factors, which is then also in v. Masked keys are 0 in v.
template <int W, int THREADS, int PER, int ROWS, class T>
__device__ __forceinline__ void store_rows(T* __restrict__ out, unsigned rows, unsigned keys,
    const Keys (&visible)[ROWS], float (&v)[ROWS][PER], const float (&factors)[ROWS]) {
  const unsigned thread = thread_of_row<THREADS>();
#pragma unroll
  for (int y = 0; y < ROWS; ++y) {
    if (factors[y] != factors[y]) {  // a masked key is 0 in a row of NaN, too
#pragma unroll
      for (int i = 0; i < PER; ++i) {
        v[y][i] = visible[y].has(column_of<THREADS, W>(i, thread)) ? factors[y] : 0.0f;
      }
    } else {
#pragma unroll
      for (int i = 0; i < PER; ++i) v[y][i] *= factors[y];
    }
    const unsigned row = row_of<THREADS, ROWS>(y);
    T* to = out + static_cast<u64>(row) * keys;
#pragma unroll
    for (int i = 0; i < PER; i += W) {
      const unsigned key = column_of<THREADS, W>(i, thread);
      if (row < rows && key < keys) store<W>(to + key, v[y] + i);
    }
  }
}

// v[x] <- e^(scale · (v[x] - greatest of the warp's part of the row)); factors[x] <- the factor that completes softmax.
template <class T, int THREADS, int PER, int ROWS>
__device__ __forceinline__ void weigh(float (&v)[ROWS][PER], float scale, float (&factors)[ROWS]) {
  constexpr int LANES = THREADS < 32 ? THREADS : 32;
  float most[ROWS];
#pragma unroll
  for (int x = 0; x < ROWS; ++x) {
    most[x] = v[x][0];
#pragma unroll
    for (int i = 1; i < PER; ++i) most[x] = fmaxf(most[x], v[x][i]);
  }
  group_reduce<Max, LANES>(most);
  float sums[ROWS];
#pragma unroll
  for (int x = 0; x < ROWS; ++x) {
    exponentials<T>(v[x], shift_of(most[x]), scale);
    sums[x] = v[x][0];
#pragma unroll
    for (int i = 1; i < PER; ++i) sums[x] += v[x][i];
  }
  group_reduce<Sum, LANES>(sums);
  if constexpr (THREADS <= 32) {
#pragma unroll
    for (int x = 0; x < ROWS; ++x) factors[x] = inverse_of<T>(sums[x]);
  } else {
    // each warp has its own greatest score; warps meet at one barrier for both greatest and sum
    static_assert(ROWS == 1, "a block has one row");
    __shared__ float of_warps[THREADS / 32][2];
    if (threadIdx.x % 32 == 0) {
      of_warps[threadIdx.x / 32][0] = most[0];
      of_warps[threadIdx.x / 32][1] = sums[0];
    }
    __syncthreads();
    float greatest = of_warps[0][0];
#pragma unroll
    for (int warp = 1; warp < THREADS / 32; ++warp) greatest = fmaxf(greatest, of_warps[warp][0]);
    const float shift = shift_of(greatest);
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; ++warp) {
      sum += of_warps[warp][1] * between<T>(of_warps[warp][0], shift, scale);
    }
    factors[0] = between<T>(most[0], shift, scale) * inverse_of<T>(sum);
  }
}

template <int THREADS, int PER, int ROWS, class T>
__device__ __forceinline__ void softmax(
    const T* __restrict__ x, const Scores& scores, float scale, T* __restrict__ out) {
  const u64 bits = joint_bits(scores.keys * sizeof(T), x, out);
  Keys visible[ROWS];
#pragma unroll
  for (int y = 0; y < ROWS; ++y) visible[y] = scores.visible(row_of<THREADS, ROWS>(y));
  float v[ROWS][PER], factors[ROWS];
  WITH_WIDTH(T, bits, (load_rows<W, THREADS>(x, scores.keys, visible, scale, v)));
  weigh<T, THREADS>(v, scales_late<T>(scale) ? scale : 1.0f, factors);
  WITH_WIDTH(T, bits, (store_rows<W, THREADS>(out, scores.rows, scores.keys, visible, v, factors)));
}

// ---- rows of any length ---------------------------------------------------------------------------------------------

// The greatest of some scores, and the sum of e^(score - it).
struct Running {
  float most = -infinity(), sum = 0.0f;

  __device__ __forceinline__ void join(float other_most, float other_sum) {
    const float greatest = fmaxf(most, other_most), shift = shift_of(greatest);
    sum = sum * expf(most - shift) + other_sum * expf(other_most - shift);
    most = greatest;
  }
};

// A block for each row, which it reads twice, with biases: greatest and sum in one pass (Milakov and Gimelshein, arXiv
// 1805.02867).
template <class T>
__device__ __forceinline__ void softmax_any(const T* __restrict__ x, const Scores& scores, float scale,
    const RelativeBias<T>& bias, T* __restrict__ out) {
  constexpr int THREADS = 256;
  __shared__ float of_warps[THREADS / 32][2];
  bias.prepare();
  const unsigned row = blockIdx.x;
  const Keys visible = scores.visible(row);
  const T* from = x + static_cast<u64>(row) * scores.keys;
  T* to = out + static_cast<u64>(row) * scores.keys;
  Running running;
  for (unsigned key = visible.first + threadIdx.x; key < visible.end; key += THREADS) {
    running.join(to_float(from[key]) * scale + bias.at(scores, row, key), 1.0f);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    running.join(__shfl_xor_sync(FULL_WARP, running.most, step), __shfl_xor_sync(FULL_WARP, running.sum, step));
  }
  if (threadIdx.x % 32 == 0) {
    of_warps[threadIdx.x / 32][0] = running.most;
    of_warps[threadIdx.x / 32][1] = running.sum;
  }
  __syncthreads();
  Running all;
#pragma unroll
  for (int warp = 0; warp < THREADS / 32; ++warp) all.join(of_warps[warp][0], of_warps[warp][1]);
  const float shift = shift_of(all.most), factor = inverse_of<T>(all.sum);
  for (unsigned key = threadIdx.x; key < scores.keys; key += THREADS) {
    float weight = 0.0f;
    if (visible.has(key)) {
      const float score = to_float(from[key]) * scale + bias.at(scores, row, key);
      weight = expf(score - shift) * factor;
    }
    to[key] = from_float<T>(weight);
  }
}

// Softmax as it is usually written: a block of at least as many threads as keys for each row, one reduction after
// another.
template <class T>
__device__ __forceinline__ void softmax_classic(
    const T* __restrict__ x, const Scores& scores, float scale, T* __restrict__ out) {
  __shared__ float of_most[33], of_sum[33];
  const unsigned key = threadIdx.x;
  const u64 at = static_cast<u64>(blockIdx.x) * scores.keys + key;
  const bool is_visible = scores.visible(blockIdx.x).has(key);
  const float score = is_visible ? to_float(x[at]) * scale : -infinity();
  const float most = block_reduce_classic<Max>(score, of_most);
  const float e = sizeof(T) == 2 ? exp2_approx((score - shift_of(most)) * LOG2_E) : expf(score - shift_of(most));
  const float sum = block_reduce_classic<Sum>(e, of_sum);
  if (key < scores.keys) out[at] = from_float<T>(is_visible ? e * inverse_of<T>(sum) : 0.0f);
}

// ---- mask and bias alone --------------------------------------------------------------------------------------------
// A warp for each row.

template <class T>
__device__ __forceinline__ void mask(const T* __restrict__ x, const Scores& scores, T* __restrict__ out) {
  const unsigned row = row_of<32, 1>(0);
  const Keys visible = scores.visible(row);
  const u64 first = static_cast<u64>(row) * scores.keys;
  WITH_WIDTH(T, joint_bits(scores.keys * sizeof(T), x, out), {
    for (unsigned key = threadIdx.x % 32 * W; row < scores.rows && key < scores.keys; key += 32 * W) {
      float v[W];
      load<W>(x + first + key, v);
      for (int j = 0; j < W; ++j) v[j] = visible.has(key + j) ? v[j] : -infinity();
      store<W>(out + first + key, v);
    }
  });
}

template <class T>
__device__ __forceinline__ void add_relative_bias(
    const T* __restrict__ x, const Scores& scores, const RelativeBias<T>& bias, T* __restrict__ out) {
  bias.prepare();
  const unsigned row = row_of<32, 1>(0);
  const u64 first = static_cast<u64>(row) * scores.keys;
  WITH_WIDTH(T, joint_bits(scores.keys * sizeof(T), x, out), {
    for (unsigned key = threadIdx.x % 32 * W; row < scores.rows && key < scores.keys; key += 32 * W) {
      float v[W];
      load<W>(x + first + key, v);
      for (int j = 0; j < W; ++j) v[j] += bias.at(scores, row, key + j);
      store<W>(out + first + key, v);
    }
  });
}

// ---- instances ------------------------------------------------------------------------------------------------------

#define SCORES_PARAMETERS                                                                                          \
  unsigned rows, unsigned num_heads, unsigned queries, unsigned keys, const unsigned *seq_lens, unsigned before,   \
      unsigned after
#define SCORES \
  Scores { rows, num_heads, queries, keys, seq_lens, before, after }

#define SOFTMAX(T, NAME, BLOCK, THREADS, PER, ROWS)                                                                \
  extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
      softmax_##NAME(const T* x, SCORES_PARAMETERS, float scale, T* out) {                                         \
    softmax<THREADS, PER, ROWS>(x, SCORES, scale, out);                                                            \
  }

#define INSTANCES(T, DTYPE)                                                                                        \
  SOFTMAX(T, DTYPE##_32, 128, 4, 8, 2)                                                                             \
  SOFTMAX(T, DTYPE##_64, 128, 8, 8, 2)                                                                             \
  SOFTMAX(T, DTYPE##_128, 128, 16, 8, 2)                                                                           \
  SOFTMAX(T, DTYPE##_256_x1, 128, 32, 8, 1)                                                                        \
  SOFTMAX(T, DTYPE##_256_x2, 128, 32, 8, 2)                                                                        \
  SOFTMAX(T, DTYPE##_256_x4, 128, 32, 8, 4)                                                                        \
  SOFTMAX(T, DTYPE##_512_x1, 128, 32, 16, 1)                                                                       \
  SOFTMAX(T, DTYPE##_512_x2, 128, 32, 16, 2)                                                                       \
  SOFTMAX(T, DTYPE##_512_x4, 128, 32, 16, 4)                                                                       \
  SOFTMAX(T, DTYPE##_1024_x1, 128, 32, 32, 1)                                                                      \
  SOFTMAX(T, DTYPE##_1024_x2, 128, 32, 32, 2)                                                                      \
  SOFTMAX(T, DTYPE##_2048, 256, 256, 8, 1)                                                                         \
  SOFTMAX(T, DTYPE##_4096, 256, 256, 16, 1)                                                                        \
  extern "C" __global__ void __launch_bounds__(256)                                                                \
      softmax_##DTYPE##_any(const T* x, SCORES_PARAMETERS, float scale, T* out, unsigned kind, const T* table,     \
          const T* of_keys, unsigned num_buckets, unsigned max_distance) {                                         \
    __shared__ unsigned short near[RelativeBias<T>::NEAR];                                                         \
    softmax_any(x, SCORES, scale, RelativeBias<T>{kind, table, of_keys, num_buckets, max_distance, near}, out);    \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(1024)                                                               \
      softmax_##DTYPE##_classic(const T* x, SCORES_PARAMETERS, float scale, T* out) {                              \
    softmax_classic(x, SCORES, scale, out);                                                                        \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(256) mask_##DTYPE(const T* x, SCORES_PARAMETERS, T* out) {          \
    mask(x, SCORES, out);                                                                                          \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(256)                                                                \
      add_relative_bias_##DTYPE(const T* x, unsigned rows, unsigned num_heads, unsigned queries, unsigned keys,    \
          unsigned kind, const T* table, const T* of_keys, unsigned num_buckets, unsigned max_distance, T* out) {  \
    __shared__ unsigned short near[RelativeBias<T>::NEAR];                                                         \
    const Scores scores{rows, num_heads, queries, keys, nullptr, 0, 0};                                            \
    add_relative_bias(x, scores, RelativeBias<T>{kind, table, of_keys, num_buckets, max_distance, near}, out);     \
  }
