// Normalisation of rows in registers, for the kernels here and for embeddings: the twin of `row.rs`.

// Normalises differences to the rounded mean.
struct Moments {
  float left;     // their mean: what the rounding left out
  float inverse;  // 1 / √(variance + ε)

  __device__ __forceinline__ float normalize(float difference) const { return (difference - left) * inverse; }
};

// The moments, from the means of the differences and of their squares.
__device__ __forceinline__ Moments moments_of(float left, float square, float epsilon) {
  // E[d²] − E[d]², where E[d] is a rounding: nothing cancels unless everything does
  const float variance = square - left * left;
  // not fmaxf, which ignores NaN
  return Moments{left, 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + epsilon)};
}

// v[i] <- 0 from `own` on. One test covers all, since most threads have as many values as they can hold.
template <int PER>
__device__ __forceinline__ void clear_others(float (&v)[PER], int own) {
  if (own < PER) {
#pragma unroll
    for (int i = 0; i < PER; ++i) v[i] = i < own ? v[i] : 0.0f;
  }
}

// v <- differences to the means of rows of `columns` values, of which a thread holds the first `own` of v[x]; the
// others in v[x] are 0 and stay 0.
//
// Two passes over registers, corrected (Chan, Golub and LeVeque, The American Statistician 37, 1983): the mean of the
// first is rounded to f32, and what the rounding left out is the mean of the differences of the second. Both sums of all
// rows are reduced together. Never E[x²] − E[x]², which cancels.
template <int THREADS, int PER, int ROWS>
__device__ __forceinline__ void find_moments(
    float (&v)[ROWS][PER], int own, unsigned columns, float epsilon, Moments (&moments)[ROWS]) {
  const float n = static_cast<float>(columns);
  float means[ROWS] = {};
#pragma unroll
  for (int x = 0; x < ROWS; ++x) {
#pragma unroll
    for (int i = 0; i < PER; ++i) means[x] += v[x][i];
  }
  row_reduce<Sum, 0, THREADS>(means);
  float differences[2 * ROWS] = {};  // and their squares
#pragma unroll
  for (int x = 0; x < ROWS; ++x) {
    means[x] /= n;
#pragma unroll
    for (int i = 0; i < PER; ++i) v[x][i] -= means[x];
    clear_others(v[x], own);
#pragma unroll
    for (int i = 0; i < PER; ++i) {
      differences[2 * x] += v[x][i];
      differences[2 * x + 1] = fmaf(v[x][i], v[x][i], differences[2 * x + 1]);
    }
  }
  row_reduce<Sum, 1, THREADS>(differences);
#pragma unroll
  for (int x = 0; x < ROWS; ++x) {
    moments[x] = moments_of(differences[2 * x] / n, differences[2 * x + 1] / n, epsilon);
  }
}

// Loads the packs at `from` for this thread's values of each row; rows are `stride` values apart, 0 for the same
// everywhere. Values that do not exist read others that do: a load behind a branch would be waited for before the next
// is issued, and so would a conversion, so there is none here.
template <int THREADS, int ROWS, int PACKS, int W, class T>
__device__ __forceinline__ void load_packs(
    const T* __restrict__ from, u64 stride, int own, unsigned rows, Pack<T, W> (&packs)[ROWS][PACKS]) {
#pragma unroll
  for (int x = 0; x < ROWS; ++x) {
    const unsigned row = row_of<THREADS, ROWS>(x);
    const T* of_row = from + (row < rows ? row : 0) * stride;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
      const unsigned column = column_of<THREADS, W>(p * W, thread_of_row<THREADS>());
      packs[x][p] = load_pack<W>(of_row + (p * W < own ? column : 0));
    }
  }
}

// v <- the values of some packs.
template <int PACKS, int W, int PER, class T>
__device__ __forceinline__ void unpack_all(const Pack<T, W> (&packs)[PACKS], float (&v)[PER]) {
#pragma unroll
  for (int p = 0; p < PACKS; ++p) unpack<W>(packs[p], v + p * W);
}

// v += the values of some packs.
template <int PACKS, int W, int PER, class T>
__device__ __forceinline__ void add_all(const Pack<T, W> (&packs)[PACKS], float (&v)[PER]) {
#pragma unroll
  for (int p = 0; p < PACKS; ++p) {
    float terms[W];
    unpack<W>(packs[p], terms);
#pragma unroll
    for (int j = 0; j < W; ++j) v[p * W + j] += terms[j];
  }
}

// Gain and offset for a thread's values of every row.
template <class T, int PACKS>
struct RowWeights {
  Pack<T, 16 / sizeof(T)> gain[1][PACKS], offset[1][PACKS];
  bool has_offset;
};

// Called before anything waits; `offset` may be null.
template <int THREADS, int PACKS, class T>
__device__ __forceinline__ RowWeights<T, PACKS> load_weights(
    const T* __restrict__ gain, const T* __restrict__ offset, int own) {
  RowWeights<T, PACKS> weights;
  weights.has_offset = offset != nullptr;
  load_packs<THREADS>(gain, 0, own, 1, weights.gain);
  load_packs<THREADS>(offset ? offset : gain, 0, own, 1, weights.offset);
  return weights;
}

// out = normalised v · gain + offset, where v holds differences to the mean, for the first `own` values of this thread in
// the rows below `rows`, which begin at multiples of 16 bytes.
template <int THREADS, int PER, int ROWS, int PACKS, class T>
__device__ __forceinline__ void store_normalized(const float (&v)[ROWS][PER], int own, const Moments (&moments)[ROWS],
    const RowWeights<T, PACKS>& weights, T* __restrict__ out, unsigned rows, unsigned columns) {
  constexpr int W = PER / PACKS;
#pragma unroll
  for (int p = 0; p < PACKS; ++p) {
    const unsigned column = column_of<THREADS, W>(p * W, thread_of_row<THREADS>());
#pragma unroll
    for (int x = 0; x < ROWS; ++x) {
      const unsigned row = row_of<THREADS, ROWS>(x);
      float y[W], factor[W], term[W];
      unpack<W>(weights.gain[0][p], factor);
      unpack<W>(weights.offset[0][p], term);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        y[j] = fmaf(moments[x].normalize(v[x][p * W + j]), factor[j], weights.has_offset ? term[j] : 0.0f);
      }
      if (p * W < own && row < rows) store<W>(out + static_cast<u64>(row) * columns + column, y);
    }
  }
}

// out = normalised row · gain + offset for a row of any length; a block of THREADS keeps none of it in registers.
// `row.load<W>(column, v)` gives W values of it, three times. `offset` may be null.
template <int W, int THREADS, class Row, class T>
__device__ __forceinline__ void normalize_streamed(const Row& row, const T* __restrict__ gain,
    const T* __restrict__ offset, float epsilon, T* __restrict__ out, unsigned columns) {
  const float n = static_cast<float>(columns);
  float v[W], mean[1] = {};
  for (unsigned column = threadIdx.x * W; column < columns; column += THREADS * W) {
    row.template load<W>(column, v);
#pragma unroll
    for (int j = 0; j < W; ++j) mean[0] += v[j];
  }
  row_reduce<Sum, 0, THREADS>(mean);
  mean[0] /= n;
  float differences[2] = {};  // and their squares
  for (unsigned column = threadIdx.x * W; column < columns; column += THREADS * W) {
    row.template load<W>(column, v);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const float d = v[j] - mean[0];
      differences[0] += d;
      differences[1] = fmaf(d, d, differences[1]);
    }
  }
  row_reduce<Sum, 1, THREADS>(differences);
  const Moments moments = moments_of(differences[0] / n, differences[1] / n, epsilon);
  for (unsigned column = threadIdx.x * W; column < columns; column += THREADS * W) {
    float factor[W], term[W] = {};
    row.template load<W>(column, v);
    load<W>(gain + column, factor);
    if (offset) load<W>(offset + column, term);
#pragma unroll
    for (int j = 0; j < W; ++j) v[j] = fmaf(moments.normalize(v[j] - mean[0]), factor[j], term[j]);
    store<W>(out + column, v);
  }
}
