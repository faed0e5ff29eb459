// softmax(scale · q · kᵀ + bias) · v on the tensor cores, for 16-bit values in heads of 32, 64 or 128 columns that
// begin at multiples of 16 bytes: by the products of compute capability 9.0, which read keys and values directly from
// shared memory. This file stands behind wgmma.cuh and rows.cuh.
//
// A block is four warps with 64 queries of one head. While it computes the weights of a tile of 64 keys, the values of
// the tile before are multiplied, and the keys of the next tile and the values of its own are copied:
//
//   copies     keys 0 │ keys 1, values 0 │ keys 2, values 1 │ keys 3, values 2 │ …
//   products          │ scores 0         │ scores 1, sums 0 │ scores 2, sums 1 │ …
//   registers         │        weights 0 │        weights 1 │        weights 2 │ …
//
// Four such blocks fit a multiprocessor, or two with heads of 128 columns, so that some multiply while others compute
// exponentials. Slower on an H200: blocks of 128 queries, with twice the warps or twice the registers; three blocks
// with more registers each; several heads for each block, one after another; more tiles on their way.
//
// Source: Shah et al., FlashAttention-3 (2024), section 3.2. Departs from it: the warps that compute also copy.

constexpr unsigned BLOCK = 128, TILE_ROWS = 64;
constexpr unsigned RING = 2;

// The columns of a head that lie side by side in shared memory, and their bytes.
template <int D>
constexpr unsigned PART = D < 64 ? D : 64;
template <int D>
constexpr unsigned PART_BYTES = 2 * PART<D>;

// Tiles of keys and of values, each at a multiple of the 1024 bytes that eight rows of 128 take.
template <int D>
struct Tiles {
  uint4 k[RING][TILE_CHUNKS<D>];
  uint4 v[RING][TILE_CHUNKS<D>];
};

// A thread's part in copying one head of a sequence's keys or values, tile by tile: 16 bytes of every ROWS-th row.
template <class T, int D>
struct Copier {
  static constexpr unsigned ROWS = BLOCK / (D / 8);
  static_assert(ROWS % 8 == 0, "all rows of a thread are swizzled alike");

  const T* from;  // its first chunk of the tile that comes next
  unsigned stride;
  unsigned to;    // where that lies in a tile
  unsigned left;  // positions that are read, from the first row of that tile on which it copies

  __device__ __forceinline__ Copier(const T* first, unsigned stride, unsigned begin, unsigned end) : stride(stride) {
    const unsigned row = threadIdx.x / (D / 8), chunk = threadIdx.x % (D / 8);
    from = first + static_cast<u64>(begin + row) * stride + chunk * 8;
    to = place<D>(row, chunk);
    left = end - min(begin + row, end);
  }

  // Begins to copy the next tile, with zeros where nothing is read.
  __device__ __forceinline__ void begin_next(uint4* tile) {
#pragma unroll
    for (unsigned row = 0; row < TILE_KEYS; row += ROWS) {
      cp_async_16(tile + to + row * (PART<D> / 8), from, row < left ? 16 : 0);
      from += static_cast<u64>(ROWS) * stride;
    }
    left -= min(TILE_KEYS, left);
  }
};

// ---- a tile of keys -------------------------------------------------------------------------------------------------

// Begins scores = q · kᵀ.
template <class T, int D>
__device__ __forceinline__ void begin_scores(Scores& scores, const Rows<T, D, 1>& rows, const uint4* keys) {
  constexpr int STEPS = PART<D> / 16;
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    const unsigned offset = step / STEPS * TILE_KEYS * PART_BYTES<D> + step % STEPS * 32;
    wgmma<T, EIGHTS, PART_BYTES<D>, false>(scores, rows.q[0][step], keys, offset, step > 0);
  }
}

// Begins sums += weights · v.
template <class T, int D>
__device__ __forceinline__ void begin_sums(Rows<T, D, 1>& rows, const unsigned (&weights)[GROUPS][4],
                                           const uint4* values) {
#pragma unroll
  for (unsigned group = 0; group < GROUPS; ++group) {
#pragma unroll
    for (int part = 0; part < D / PART<D>; ++part) {
      const unsigned offset = (part * TILE_KEYS + group * 16) * PART_BYTES<D>;
      wgmma<T, PART<D> / 8, PART_BYTES<D>, true>(rows.sums[0] + part * 8, weights[group], values, offset, true);
    }
  }
}

// ---- a tile of queries ----------------------------------------------------------------------------------------------

// A value that is the same in all lanes of the warp. This tells the compiler so, which otherwise takes branches on the
// value for divergent, and then lets each product end before the next begins.
__device__ __forceinline__ unsigned of_warp(unsigned value) { return __shfl_sync(FULL_WARP, value, 0); }

// BIASED: there are biases. A kernel without biases has no code for them: their logarithms would be computed anyway,
// before the first tile.
template <int D, bool BIASED, class T>
__device__ __forceinline__ void attend(const Problem<T>& problem, Tiles<D>& tiles) {
  Tile tile = find_tile(problem, TILE_ROWS);
  tile = {of_warp(tile.head), of_warp(tile.query_row), of_warp(tile.first), of_warp(tile.rows),
          {of_warp(tile.keys.first), of_warp(tile.keys.count)}};
  if (tile.rows == 0) return;
  const Keys of_tile = seen_by_any(problem, tile.first, tile.queries(), tile.keys.count);
  const Keys whole_of_tile = seen_by_each(problem, tile.first, tile.queries(), tile.keys.count);
  const unsigned begin = of_tile.first / TILE_KEYS * TILE_KEYS, end = of_tile.end;

  const unsigned kv_head = problem.heads_of_kv == 1 ? tile.head : tile.head / problem.heads_of_kv;
  const u64 first = tile.keys.first;
  Copier<T, D> k(problem.k + first * problem.k_stride + kv_head * D, problem.k_stride, begin, end);
  Copier<T, D> v(problem.v + first * problem.v_stride + kv_head * D, problem.v_stride, begin, end);
  k.begin_next(tiles.k[0]);
  cp_async_commit();
  if (begin + TILE_KEYS < end) k.begin_next(tiles.k[1]);
  v.begin_next(tiles.v[0]);
  cp_async_commit();

  const unsigned warp_first = of_warp(threadIdx.x / 32) * 16;
  const unsigned queries = within({0, tile.queries()}, warp_first, 16).end;
  const Keys whole = seen_by_each(problem, tile.first + warp_first, queries, tile.keys.count);
  const u64 query_row = static_cast<u64>(tile.query_row) + warp_first;
  Rows<T, D, 1> rows;
  // with the signs turned for a negative scale, greater products are greater scores
  rows.begin(problem.q + query_row * problem.q_stride + tile.head * D, problem.q_stride, queries, problem.scale < 0.0f);

  Seen seen;
  seen.tokens = tile.keys.count;
  seen.first_row = tile.first + warp_first;
  seen.before = problem.before;
  seen.after = problem.after;
  seen.groups = {0, GROUPS};
  seen.scale = fmaxf(fabsf(problem.scale), SMALLEST_NORMAL);  // not 0, which -infinity is multiplied by
  seen.biases = nullptr;

  // biases of two tiles lie behind the tiles, by distance: one is written while the other is read
  constexpr unsigned DISTANCES = TILE_ROWS + TILE_KEYS - 1;
  float* biases = reinterpret_cast<float*>(&tiles + 1);
  const auto write_biases = [&](unsigned start) {
    if constexpr (BIASED) {
      for (unsigned i = threadIdx.x; i < DISTANCES && start < end; i += BLOCK) {
        const int distance = static_cast<int>(start + i - (tile.first + TILE_ROWS - 1));
        biases[start / TILE_KEYS % 2 * DISTANCES + i] = bias_of(problem, tile.head, distance);
      }
    }
  };

  Scores scores;
  unsigned weights[GROUPS][4];
  float factors[2];
  // turns the scores of the tile from `start` on into weights; returns whether sums then have to be multiplied by
  // `factors`
  const auto weigh = [&](unsigned start) {
    seen.start = start;
    if constexpr (BIASED) {
      seen.biases = biases + start / TILE_KEYS % 2 * DISTANCES + TILE_ROWS - 1 - warp_first;
      rows.template add_biases<true>(scores, 0, seen);
    }
    if (start < whole.first || start + TILE_KEYS > whole.end) rows.hide(scores, 0, seen);
    return rows.template weigh<true>(scores, 0, seen, factors);
  };
  const auto round_weights = [&] {
#pragma unroll
    for (unsigned group = 0; group < GROUPS; ++group) rows.round(scores, group, weights[group]);
  };

  write_biases(begin);
  cp_async_wait<1>();
  wgmma_fence_shared();
  __syncthreads();
  if (begin < end) {
    wgmma_fence(rows.sums[0]);
    begin_scores(scores, rows, tiles.k[0]);
    wgmma_commit();
    wgmma_wait<0>(scores);
    weigh(begin);  // sums are 0
    round_weights();
  }
  unsigned now = 0;  // where in the ring the tile from `start` on lies
  for (unsigned start = begin; start < end; start += TILE_KEYS, now ^= 1) {
    const unsigned next = start + TILE_KEYS;
    write_biases(next);
    const bool hides = start < whole_of_tile.first || min(next, end) > whole_of_tile.end;
    cp_async_wait<0>();
    const bool copied_not_finite = hides && has_copied_not_finite<T, D>(tiles.v[now]);
    // the copies of all threads have landed, and no thread reads the tiles before any more
    wgmma_fence_shared();
    if (__syncthreads_or(copied_not_finite)) {
      seen.start = start;
      rows.add_not_finite(tiles.v[now], seen);
      __syncthreads();
      keep_finite<T, D>(tiles.v[now]);
      wgmma_fence_shared();
      __syncthreads();
    }
    if (next < end) {
      wgmma_fence(rows.sums[0]);
      begin_scores(scores, rows, tiles.k[now ^ 1]);
      wgmma_commit();
      begin_sums(rows, weights, tiles.v[now]);
      wgmma_commit();
      if (next + TILE_KEYS < end) k.begin_next(tiles.k[now]);
      v.begin_next(tiles.v[now ^ 1]);
      cp_async_commit();
      wgmma_wait<1>(scores);
      const bool risen = weigh(next);
      wgmma_wait<0>(rows.sums[0]);
      if (risen) rows.rescale(0, factors);
      round_weights();
    } else {
      wgmma_fence(rows.sums[0]);
      begin_sums(rows, weights, tiles.v[now]);
      wgmma_commit();
      wgmma_wait<0>(rows.sums[0]);
    }
  }
  const u64 width = static_cast<u64>(problem.num_heads) * D;
  const unsigned rows_of_warp = within({0, tile.rows}, warp_first, 16).end;
  rows.end(problem.out + query_row * width + tile.head * D, width, rows_of_warp, queries);
}

#define ATTENTION(NAME, T, D, BIASED, BLOCKS)                                                   \
  extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS) attention_##NAME(PARAMETERS(T)) { \
    extern __shared__ __align__(1024) uint4 shared[];                                           \
    const Problem<T> problem = PROBLEM;                                                         \
    attend<D, BIASED>(problem, *reinterpret_cast<Tiles<D>*>(shared));                           \
  }

// Instances by the columns of a head, without and with biases, with the number of such blocks that fit a
// multiprocessor's registers. A device stores one type, so Rust adds the line of that type.
#define INSTANCES(TYPE, T)                           \
  ATTENTION(TYPE##_wgmma_32, T, 32, false, 4)        \
  ATTENTION(TYPE##_wgmma_64, T, 64, false, 4)        \
  ATTENTION(TYPE##_wgmma_128, T, 128, false, 2)      \
  ATTENTION(TYPE##_wgmma_32_biased, T, 32, true, 4)  \
  ATTENTION(TYPE##_wgmma_64_biased, T, 64, true, 4)  \
  ATTENTION(TYPE##_wgmma_128_biased, T, 128, true, 2)
