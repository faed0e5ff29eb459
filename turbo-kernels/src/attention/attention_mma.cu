// softmax(scale · q · kᵀ + bias) · v on the tensor cores, for 16-bit values in heads of 32, 64 or 128 columns that
// begin at multiples of 16 bytes: by the instructions of compute capability 8.0. This file stands behind rows.cuh.
//
// A block has a tile of queries of one head, 16 or 32 for each warp, all in registers: queries, greatest scores, totals
// and sums never leave them. Keys and values come in tiles of 64, counted from the start of the sequence, by copies
// that run while the tile before is computed. Two tiles are on their way at the start, so a sequence of up to 128
// tokens waits once. With 32 queries, each key and value that a warp reads from shared memory serves two products:
// otherwise reading, rather than multiplying, would determine the time.
//
// Short sequences need no separate kernel: with tiles of 128 queries a block has a whole sequence, and reads its keys
// and values once.

constexpr unsigned STAGES = 2;

// A tile of keys and values.
template <int D>
struct Stage {
  uint4 k[TILE_CHUNKS<D>];
  uint4 v[TILE_CHUNKS<D>];
};

// One head of a sequence's keys and values.
template <class T, int D>
struct Sources {
  Source<T, D> k, v;

  // Begins to copy the tile from position `start` on, or nothing if there is none: in both cases one group of copies.
  __device__ __forceinline__ void begin_copy(Stage<D>* stages, unsigned start) const {
    if (start < k.end) {
      Stage<D>& stage = stages[start / TILE_KEYS % STAGES];
      k.begin_copy(stage.k, start);
      v.begin_copy(stage.v, start);
    }
    cp_async_commit();
  }
};

// ---- a tile of keys -------------------------------------------------------------------------------------------------

// The first product. Its order over columns and groups lets as many sums as possible grow side by side.
template <bool WHOLE, class T, int D, int M>
__device__ __forceinline__ void multiply_keys(Scores (&scores)[M], const Rows<T, D, M>& rows,
                                              const Stage<D>& stage, const Seen& seen) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (unsigned eight = 0; eight < EIGHTS; ++eight) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[m][eight][i] = 0.0f;
    }
  }
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
#pragma unroll
    for (unsigned group = 0; group < GROUPS; ++group) {
      if (!seen.template matters<WHOLE>(group)) continue;
      unsigned keys[4];  // operands of the first and of the second eight keys
      ldmatrix_x4(keys, stage.k + place<D>(16 * group + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        mma_m16n8k16<T>(scores[m][2 * group], rows.q[m][step], {keys[0], keys[1]});
        mma_m16n8k16<T>(scores[m][2 * group + 1], rows.q[m][step], {keys[2], keys[3]});
      }
    }
  }
}

// The second product.
template <bool WHOLE, class T, int D, int M>
__device__ __forceinline__ void multiply_values(Rows<T, D, M>& rows, const Scores (&weights)[M],
                                                const Stage<D>& stage, const Seen& seen) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned group = 0; group < GROUPS; ++group) {
    if (!seen.template matters<WHOLE>(group)) continue;
    unsigned operand[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) rows.round(weights[m], group, operand[m]);
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      unsigned values[4];  // operands of the first and of the second eight columns
      ldmatrix_x4_trans(values, stage.v + place<D>(16 * group + lane % 16, 2 * step + lane / 16));
      if (!WHOLE && !seen.finite) {
#pragma unroll
        for (int i = 0; i < 4; ++i) values[i] = finite_part<T>(values[i]);
      }
#pragma unroll
      for (int m = 0; m < M; ++m) {
        mma_m16n8k16<T>(rows.sums[m][2 * step], operand[m], {values[0], values[1]});
        mma_m16n8k16<T>(rows.sums[m][2 * step + 1], operand[m], {values[2], values[3]});
      }
    }
  }
}

// Adds the keys of a tile. WHOLE: every row sees every key.
template <bool WHOLE, class T, int D, int M>
__device__ __forceinline__ void add_keys(Rows<T, D, M>& rows, const Stage<D>& stage, const Seen& seen) {
  Scores scores[M];
  multiply_keys<WHOLE>(scores, rows, stage, seen);
#pragma unroll
  for (int m = 0; m < M; ++m) {
    float factors[2];
    if (seen.biases != nullptr) rows.template add_biases<WHOLE>(scores[m], m, seen);
    if (!WHOLE) rows.hide(scores[m], m, seen);
    if (rows.template weigh<WHOLE>(scores[m], m, seen, factors)) rows.rescale(m, factors);
  }
  if (!WHOLE && !seen.finite) rows.add_not_finite(stage.v, seen);
  multiply_values<WHOLE>(rows, scores, stage, seen);
}

// ---- a tile of queries ----------------------------------------------------------------------------------------------

template <int D, int M, class T>
__device__ __forceinline__ void attend(const Problem<T>& problem, Stage<D>* stages) {
  const unsigned warp_rows = 16 * M, tile_rows = blockDim.x / 32 * warp_rows;
  const Tile tile = find_tile(problem, tile_rows);
  if (tile.rows == 0) return;
  const Keys of_tile = seen_by_any(problem, tile.first, tile.queries(), tile.keys.count);
  const unsigned begin = of_tile.first / TILE_KEYS * TILE_KEYS;

  const unsigned kv_head = tile.head / problem.heads_of_kv;
  const u64 first = tile.keys.first;
  const Sources<T, D> source = {{problem.k + first * problem.k_stride + kv_head * D, problem.k_stride, of_tile.end},
                                {problem.v + first * problem.v_stride + kv_head * D, problem.v_stride, of_tile.end}};
  source.begin_copy(stages, begin);
  source.begin_copy(stages, begin + TILE_KEYS);

  const unsigned warp_first = threadIdx.x / 32 * warp_rows;  // row of the tile
  const unsigned queries = within({0, tile.queries()}, warp_first, warp_rows).end;
  const Keys of_warp = seen_by_any(problem, tile.first + warp_first, queries, tile.keys.count);
  const u64 query_row = static_cast<u64>(tile.query_row) + warp_first;
  Rows<T, D, M> rows;
  // with the signs turned for a negative scale, greater products are greater scores
  rows.begin(problem.q + query_row * problem.q_stride + tile.head * D, problem.q_stride, queries, problem.scale < 0.0f);

  // biases of two tiles lie behind the stages, by distance: one is written while the other is read
  const unsigned distances = tile_rows + TILE_KEYS - 1;
  float* biases = reinterpret_cast<float*>(stages + STAGES);
  Seen seen;
  seen.tokens = tile.keys.count;
  seen.first_row = tile.first + warp_first;
  seen.before = problem.before;
  seen.after = problem.after;
  seen.scale = fmaxf(fabsf(problem.scale), SMALLEST_NORMAL);  // not 0, which -infinity is multiplied by
  seen.biases = nullptr;

  for (unsigned start = begin; start < of_tile.end; start += TILE_KEYS) {
    const unsigned number = start / TILE_KEYS % STAGES;
    Stage<D>& stage = stages[number];
    if (problem.bias_kind != BIAS_NONE) {
      float* of_distance = biases + number * distances;
      for (unsigned i = threadIdx.x; i < distances; i += blockDim.x) {
        of_distance[i] = bias_of(problem, tile.head, static_cast<int>(start + i - (tile.first + tile_rows - 1)));
      }
      seen.biases = of_distance + tile_rows - 1 - warp_first;
    }
    if (start == begin) {
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    const Keys keys = {start, min(start + TILE_KEYS, of_tile.end)};
    const bool hides = !seen_by_all(problem, tile.first, tile.queries(), keys);
    const bool copied_not_finite = hides && has_copied_not_finite<T, D>(stage.v);
    // the copies of all threads have landed, and no thread reads the tile before any more
    seen.finite = !__syncthreads_or(copied_not_finite);
    if (start != begin) source.begin_copy(stages, start + TILE_KEYS);

    const Keys of_warp_here = within(of_warp, start, TILE_KEYS);
    if (of_warp_here.first == of_warp_here.end) continue;
    seen.start = start;
    seen.groups = {of_warp_here.first / 16, (of_warp_here.end + 15) / 16};
    if (keys.end == start + TILE_KEYS && seen_by_all(problem, seen.first_row, queries, keys)) {
      add_keys<true>(rows, stage, seen);
    } else {
      add_keys<false>(rows, stage, seen);
    }
  }
  const u64 width = static_cast<u64>(problem.num_heads) * D;
  const unsigned rows_of_warp = within({0, tile.rows}, warp_first, warp_rows).end;
  rows.end(problem.out + query_row * width + tile.head * D, width, rows_of_warp, queries);
}

#define ATTENTION(TYPE, T, D, M, THREADS, BLOCKS)                       \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)         \
      attention_##TYPE##_mma_##D##_x##M(PARAMETERS(T)) {                \
    extern __shared__ uint4 shared[];                                   \
    const Problem<T> problem = PROBLEM;                                 \
    attend<D, M>(problem, reinterpret_cast<Stage<D>*>(shared));         \
  }

// Instances by the columns of a head and the fragments of 16 queries of a warp, with the most threads of a block and
// the number of such blocks that fit a multiprocessor's registers. A device stores one type, so Rust adds the line of
// that type.
#define INSTANCES(TYPE, T)           \
  ATTENTION(TYPE, T, 32, 1, 128, 4)  \
  ATTENTION(TYPE, T, 32, 2, 128, 2)  \
  ATTENTION(TYPE, T, 64, 1, 128, 3)  \
  ATTENTION(TYPE, T, 64, 2, 128, 2)  \
  ATTENTION(TYPE, T, 128, 1, 256, 1)
