// Rows of tables by id, and the sum of several tables with its layer norm.
//
// Bytes per value: those of each table (a table of few rows comes from the cache) and of the output, once; a row's
// values stay in registers from the lookup to the end of the norm. Ids are known only on the device: an id that is no
// row of its table makes its token's row NaN, and nothing is read for it.
//
//   kernel                             | threads that share a row
//   embed_...                          | a warp
//   ..._512, ..._768, ..._1024         | a warp, up to that many columns
//   ..._2048, ..._4096                 | a block of 256
//   ..._any                            | a block of 256, which reads it again
//
// The last and `embed_...` take rows of any alignment, the others require multiples of 16 bytes.

constexpr int MOST_TABLES = 4;

// Up to four tables, and for every token the row that it takes from each. Tables beyond the last repeat the first.
template <class T>
struct Lookups {
  const T* tables[MOST_TABLES];  // [rows, columns]
  const unsigned* ids[MOST_TABLES];  // [tokens]
  unsigned rows[MOST_TABLES];
  unsigned count;

  // Whether all ids of a token are rows; if so, `from` points to these rows, otherwise to the first rows.
  __device__ __forceinline__ bool find(unsigned token, unsigned columns, const T* (&from)[MOST_TABLES]) const {
    bool found = true;
#pragma unroll
    for (int t = 0; t < MOST_TABLES; ++t) {
      const unsigned id = ids[t][token];
      const bool is_row = id < rows[t];
      found = found && is_row;
      from[t] = tables[t] + static_cast<u64>(is_row ? id : 0) * columns;
    }
    return found;
  }
};

// to = from by a warp, or NaN if not `found`. All packs are read before the first is written; packs that do not exist
// read the warp's first one again.
template <int W, class T>
__device__ __forceinline__ void copy_row(const T* __restrict__ from, bool found, T* __restrict__ to, unsigned columns) {
  constexpr int PACKS = 4;
  for (unsigned column = threadIdx.x % 32 * W; column < columns; column += PACKS * 32 * W) {
    Pack<T, W> packs[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
      const unsigned at = column + p * 32 * W;
      packs[p] = load_pack<W>(from + (at < columns ? at : column));
    }
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
      const unsigned at = column + p * 32 * W;
      if (!found) {
#pragma unroll
        for (int j = 0; j < W; ++j) packs[p].values[j] = from_float<T>(not_a_number());
      }
      if (at < columns) *reinterpret_cast<Pack<T, W>*>(to + at) = packs[p];
    }
  }
}

// out[t] = table[ids[t]]
template <class T>
__device__ __forceinline__ void embed(const T* __restrict__ table, const unsigned* __restrict__ ids,
    unsigned table_rows, T* __restrict__ out, unsigned tokens, unsigned columns) {
  const unsigned token = row_of<32, 1>(0);
  if (token >= tokens) return;
  const unsigned id = ids[token];
  const T* from = table + static_cast<u64>(id < table_rows ? id : 0) * columns;
  T* to = out + static_cast<u64>(token) * columns;
  WITH_WIDTH(T, joint_bits(columns * sizeof(T), table, out), (copy_row<W>(from, id < table_rows, to, columns)));
}

// out[t] = layer_norm((a[t] + b[t]) + ...); `offset` may be null.
template <int THREADS, int PER, class T>
__device__ __forceinline__ void embed_sum_layer_norm(const Lookups<T>& lookups, const T* __restrict__ gain,
    const T* __restrict__ offset, float epsilon, T* __restrict__ out, unsigned tokens, unsigned columns) {
  constexpr int W = 16 / sizeof(T);
  const unsigned token = row_of<THREADS, 1>(0);
  const int own = owned<THREADS, W>(columns, thread_of_row<THREADS>());
  const RowWeights<T, PER / W> weights = load_weights<THREADS, PER / W>(gain, offset, own);
  const T* from[MOST_TABLES];
  const bool found = lookups.find(token < tokens ? token : 0, columns, from);
  Pack<T, W> packs[MOST_TABLES][1][PER / W];
#pragma unroll
  for (int t = 0; t < MOST_TABLES; ++t) load_packs<THREADS>(from[t], 0, own, 1, packs[t]);
  float v[1][PER];
#pragma unroll
  for (int i = 0; i < PER; ++i) {
    float sum = to_float(packs[0][0][i / W].values[i % W]);
#pragma unroll
    for (int t = 1; t < MOST_TABLES; ++t) {
      if (t < lookups.count) sum += to_float(packs[t][0][i / W].values[i % W]);
    }
    v[0][i] = i < own ? (found ? sum : not_a_number()) : 0.0f;
  }
  Moments moments[1];
  find_moments<THREADS>(v, own, columns, epsilon, moments);
  store_normalized<THREADS>(v, own, moments, weights, out, tokens, columns);
}

// The sum of a token's rows.
template <class T>
struct RowSum {
  const T* from[MOST_TABLES];
  unsigned count;
  bool found;

  template <int W>
  __device__ __forceinline__ void load(unsigned column, float (&v)[W]) const {
    ::load<W>(from[0] + column, v);
    for (unsigned t = 1; t < count; ++t) {
      float term[W];
      ::load<W>(from[t] + column, term);
#pragma unroll
      for (int j = 0; j < W; ++j) v[j] += term[j];
    }
#pragma unroll
    for (int j = 0; j < W; ++j) v[j] = found ? v[j] : not_a_number();
  }
};

template <class T>
__device__ __forceinline__ void embed_sum_layer_norm_any(const Lookups<T>& lookups, const T* __restrict__ gain,
    const T* __restrict__ offset, float epsilon, T* __restrict__ out, unsigned columns) {
  RowSum<T> row;
  row.found = lookups.find(blockIdx.x, columns, row.from);
  row.count = lookups.count;
  normalize_streamed<1, 256>(row, gain, offset, epsilon, out + static_cast<u64>(blockIdx.x) * columns, columns);
}

#define LOOKUPS_PARAMETERS(T)                                                                                        \
  const T *table0, const T *table1, const T *table2, const T *table3, const unsigned *ids0, const unsigned *ids1,   \
      const unsigned *ids2, const unsigned *ids3, unsigned rows0, unsigned rows1, unsigned rows2, unsigned rows3,   \
      unsigned count
#define LOOKUPS(T)                                                                                                  \
  Lookups<T> {                                                                                                      \
    {table0, table1, table2, table3}, {ids0, ids1, ids2, ids3}, {rows0, rows1, rows2, rows3}, count                 \
  }

#define SUM_LAYER_NORM(T, NAME, BLOCK, THREADS, PER)                                                                \
  extern "C" __global__ void __launch_bounds__(BLOCK) embed_sum_layer_norm_##NAME(LOOKUPS_PARAMETERS(T),             \
      const T* gain, const T* offset, float epsilon, T* out, unsigned tokens, unsigned columns) {                   \
    embed_sum_layer_norm<THREADS, PER>(LOOKUPS(T), gain, offset, epsilon, out, tokens, columns);                    \
  }

#define INSTANCES(T, DTYPE)                                                                                         \
  extern "C" __global__ void __launch_bounds__(256) embed_##DTYPE(const T* table, const unsigned* ids,              \
      unsigned table_rows, T* out, unsigned tokens, unsigned columns) {                                             \
    embed(table, ids, table_rows, out, tokens, columns);                                                            \
  }                                                                                                                 \
  SUM_LAYER_NORM(T, DTYPE##_512, 128, 32, 16)                                                                       \
  SUM_LAYER_NORM(T, DTYPE##_768, 128, 32, 24)                                                                       \
  SUM_LAYER_NORM(T, DTYPE##_1024, 128, 32, 32)                                                                      \
  SUM_LAYER_NORM(T, DTYPE##_2048, 256, 256, 8)                                                                      \
  SUM_LAYER_NORM(T, DTYPE##_4096, 256, 256, 16)                                                                     \
  extern "C" __global__ void __launch_bounds__(256) embed_sum_layer_norm_##DTYPE##_any(LOOKUPS_PARAMETERS(T),        \
      const T* gain, const T* offset, float epsilon, T* out, unsigned tokens, unsigned columns) {                   \
    embed_sum_layer_norm_any(LOOKUPS(T), gain, offset, epsilon, out, columns);                                      \
  }
