// softmax(scale · q · kᵀ + bias) · v on the tensor cores, for 16-bit values in heads of 32, 64 or 128 columns that
// begin at multiples of 16 bytes. Stands behind tile.cuh.
//
// A block has a tile of queries of one head, a warp 16 or 32 of them, all in registers: queries, greatest scores,
// totals and sums never leave them. Keys and values come in tiles of 64, counted from the start of the sequence, by
// copies that run while the tile before is computed; two tiles are on their way at the start, so a sequence of up to
// 128 tokens waits once. With 32 queries, what a warp reads of keys and values from shared memory serves two
// products: without that, reading and not multiplying would set the time.
//
// Scores become weights in the registers where they are, and as they lie there they are the operand of the second
// product. Weights are powers of two, with log2(e) in the scale. Greatest scores are joined over the four lanes that
// share a row, totals only at the end. Sums are scaled where a greatest score of the warp has risen, which is seldom
// after a few tiles.
//
// What a row becomes depends on the keys that it sees alone, not on its place in a tile, nor on the size of the tile:
// hidden keys have weights of 0, and come with a factor of 1. So short sequences need no kernel of their own: with
// tiles of 128 queries a block has the whole of one, and reads its keys and values once.
//
// Source: Dao, FlashAttention-2 (2023). Departs from it: queries and results pass from memory to registers without
// shared memory, and values that are not finite are kept from rows that do not see them.

constexpr unsigned TILE_KEYS = 64;
constexpr unsigned GROUPS = TILE_KEYS / 16;  // of keys: what one product takes
constexpr unsigned EIGHTS = TILE_KEYS / 8;   // of keys: what one product of scores gives
constexpr unsigned STAGES = 2;

constexpr float SMALLEST_NORMAL = 1.17549435e-38f;

// Greatest scores beyond this are giants: up to here, rounding one changes weights by a factor of two at most.
constexpr float GIANT = 16777216.0f;

// ---- values that are not finite -------------------------------------------------------------------------------------
// A hidden key has weight 0, and 0 · NaN is NaN. So where a tile has both hidden keys and such values, the product is
// given 0 in their place, and rows that see them get them by addition, which makes of a sum what multiplying would
// have.

// The exponent of values that are not finite.
template <class T>
constexpr unsigned EXPONENT = 0x7c00;
template <>
constexpr unsigned EXPONENT<bf16_t> = 0x7f80;

constexpr unsigned SIGNS = 0x80008000u;

// The sign bits of a pair of values tell which are not finite; the other bits mean nothing.
template <class T>
__device__ __forceinline__ unsigned not_finite(unsigned pair) {
  return (pair & ~SIGNS) + (0x8000u - EXPONENT<T>) * 0x10001u;
}

// A pair with 0 for what is not finite.
template <class T>
__device__ __forceinline__ unsigned finite_part(unsigned pair) {
  const unsigned which = not_finite<T>(pair);
  return pair & ((which & 0x8000u ? 0 : 0xffffu) | (which & 0x80000000u ? 0 : 0xffff0000u));
}

// ---- keys and values in shared memory -------------------------------------------------------------------------------

// Where the 16 bytes `chunk` of row `row` lie in a tile of rows of D values. An instruction reads one chunk of eight
// consecutive rows; in plain order those would lie in the same banks, here they are spread over all.
template <int D>
__device__ __forceinline__ unsigned place(unsigned row, unsigned chunk) {
  constexpr unsigned CHUNKS = D / 8, SPREAD = CHUNKS < 8 ? CHUNKS : 8;
  return row * CHUNKS + (chunk ^ (row / (8 / SPREAD) % SPREAD));
}

constexpr unsigned MOST_WARPS = 8;

// A tile of keys and values.
template <int D>
struct Stage {
  uint4 k[TILE_KEYS * D / 8];
  uint4 v[TILE_KEYS * D / 8];
  unsigned found[MOST_WARPS];  // whether a warp has copied values that are not finite; said where keys are hidden
};

// A head of the keys and values of a sequence.
template <class T, int D>
struct Source {
  const T* k;
  const T* v;
  unsigned k_stride, v_stride;
  unsigned end;  // of the positions that are read

  // Begins to copy one part of the tile from position `start` on, with zeros where nothing is read.
  __device__ __forceinline__ void begin_part(uint4* to, const T* from, unsigned stride, unsigned start) const {
    for (unsigned i = threadIdx.x; i < TILE_KEYS * D / 8; i += blockDim.x) {
      const unsigned row = i / (D / 8), chunk = i % (D / 8);
      const bool exists = start + row < end;
      const T* source = from + static_cast<u64>(start + (exists ? row : 0)) * stride + chunk * 8;
      cp_async_16(to + place<D>(row, chunk), source, exists ? 16 : 0);
    }
  }

  // Begins to copy the tile from position `start` on, or nothing if there is none: one group of copies either way.
  __device__ __forceinline__ void begin_copy(Stage<D>* stages, unsigned start) const {
    if (start < end) {
      Stage<D>& stage = stages[start / TILE_KEYS % STAGES];
      begin_part(stage.k, k, k_stride, start);
      begin_part(stage.v, v, v_stride, start);
    }
    cp_async_commit();
  }
};

// Says whether this warp has copied values that are not finite.
template <class T, int D>
__device__ __forceinline__ void look_for_not_finite(Stage<D>& stage) {
  unsigned found = 0;
  for (unsigned i = threadIdx.x; i < TILE_KEYS * D / 8; i += blockDim.x) {
    const uint4 chunk = stage.v[place<D>(i / (D / 8), i % (D / 8))];
    found |= not_finite<T>(chunk.x) | not_finite<T>(chunk.y) | not_finite<T>(chunk.z) | not_finite<T>(chunk.w);
  }
  const bool any = __any_sync(FULL_WARP, (found & SIGNS) != 0);
  if (threadIdx.x % 32 == 0) stage.found[threadIdx.x / 32] = any;
}

// Whether a warp of the block has said so.
template <int D>
__device__ __forceinline__ bool found_not_finite(const Stage<D>& stage) {
  unsigned found = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) found |= stage.found[warp];
  return found != 0;
}

// ---- queries and results in registers -------------------------------------------------------------------------------

// What a warp has to know of a tile of keys.
struct Seen {
  unsigned start;         // position of the tile's first key
  unsigned tokens;        // of the sequence
  unsigned first_row;     // position of the warp's first row
  unsigned before, after;  // as in Problem
  Keys groups;            // of the tile: those with a key that some row of the warp sees
  float scale;            // from products to scores
  const float* biases;    // by distance, from that of the tile's first key and the warp's first row on; or null
  bool finite;            // all values are, or no key is hidden

  // Whether a group matters to the warp. WHOLE: each row sees each key.
  template <bool WHOLE>
  __device__ __forceinline__ bool matters(unsigned group) const {
    return WHOLE || groups.has(group);
  }

  // The keys of the tile that a row of the warp sees, counted from its first.
  __device__ __forceinline__ Keys of_row(unsigned row) const {
    return within(visible_keys(first_row + row, tokens, before, after), start, TILE_KEYS);
  }
};

// Word j of lane p of each four lanes becomes word p of lane j. In an operand lane p has columns 2p and 2p + 1 of
// every eight; in memory 16 bytes are eight columns. So each lane reads or writes one eight of four, and they are
// exchanged.
__device__ __forceinline__ void transpose_quad(unsigned (&words)[4]) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool upper = threadIdx.x & step;
#pragma unroll
    for (int low = 0; low < 4; ++low) {
      if (low & step) continue;
      const int high = low | step;
      const unsigned got = __shfl_xor_sync(FULL_WARP, upper ? words[low] : words[high], step);
      words[low] = upper ? got : words[low];
      words[high] = upper ? words[high] : got;
    }
  }
}

// 16 · M queries of a warp, and what has become of them so far.
template <class T, int D, int M>
struct Rows {
  using Scores = float[M][EIGHTS][4];

  unsigned q[M][D / 16][4];
  float sums[M][D / 8][4];
  float greatest[M][2];  // of the scores, by the row of a lane
  float totals[M][2];    // of this lane's weights

  // The row of the warp that is row `half` of this lane's in fragment `m`.
  static __device__ __forceinline__ unsigned index(int m, int half) {
    return 16 * m + 8 * half + threadIdx.x % 32 / 4;
  }

  // Reads the first `rows` rows from `from`; the others are 0. Turns all signs if `negative`.
  __device__ __forceinline__ void begin(const T* from, unsigned stride, unsigned rows, bool negative) {
    const unsigned signs = negative ? SIGNS : 0;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned row = index(m, half);
        greatest[m][half] = -infinity();
        totals[m][half] = 0.0f;
#pragma unroll
        for (int part = 0; part < D / 32; ++part) {
          uint4 chunk = {0, 0, 0, 0};
          if (row < rows) {
            const T* source = from + static_cast<u64>(row) * stride + part * 32 + threadIdx.x % 4 * 8;
            chunk = *reinterpret_cast<const uint4*>(source);
          }
          unsigned words[4] = {chunk.x ^ signs, chunk.y ^ signs, chunk.z ^ signs, chunk.w ^ signs};
          transpose_quad(words);
#pragma unroll
          for (int i = 0; i < 4; ++i) q[m][2 * part + i / 2][half + i % 2 * 2] = words[i];
        }
      }
#pragma unroll
      for (int eight = 0; eight < D / 8; ++eight) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][eight][i] = 0.0f;
      }
    }
  }

  // Adds the keys of a tile.
  template <bool WHOLE>
  __device__ __forceinline__ void attend(const Stage<D>& stage, const Seen& seen) {
    Scores scores;
    multiply_keys<WHOLE>(scores, stage, seen);
    if (seen.biases != nullptr) add_biases<WHOLE>(scores, seen);
    if (!WHOLE) hide(scores, seen);
    weigh<WHOLE>(scores, seen);
    if (!WHOLE && !seen.finite) add_not_finite(stage, seen);
    multiply_values<WHOLE>(scores, stage, seen);
  }

  // The first product. Its order over columns and groups lets as many sums as possible grow side by side.
  template <bool WHOLE>
  __device__ __forceinline__ void multiply_keys(Scores& scores, const Stage<D>& stage, const Seen& seen) const {
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
          mma_m16n8k16<T>(scores[m][2 * group], q[m][step], {keys[0], keys[1]});
          mma_m16n8k16<T>(scores[m][2 * group + 1], q[m][step], {keys[2], keys[3]});
        }
      }
    }
  }

  // Products become scores.
  template <bool WHOLE>
  __device__ __forceinline__ void add_biases(Scores& scores, const Seen& seen) const {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (unsigned eight = 0; eight < EIGHTS; ++eight) {
        if (!seen.template matters<WHOLE>(eight / 2)) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = 8 * eight + 2 * (threadIdx.x % 4) + i % 2, row = index(m, i / 2);
          scores[m][eight][i] = fmaf(scores[m][eight][i], seen.scale, seen.biases[key - row]);
        }
      }
    }
  }

  // Keys that a row does not see get -infinity.
  __device__ __forceinline__ void hide(Scores& scores, const Seen& seen) const {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Keys of_row = seen.of_row(index(m, half));
#pragma unroll
        for (unsigned eight = 0; eight < EIGHTS; ++eight) {
          if (!seen.template matters<false>(eight / 2)) continue;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const unsigned key = 8 * eight + 2 * (threadIdx.x % 4) + i;
            if (!of_row.has(key)) scores[m][eight][2 * half + i] = -infinity();
          }
        }
      }
    }
  }

  // Scores become weights, and what the rows hold is brought to the scale of the greatest score so far. Greatest
  // scores forget NaN, which comes back as a weight.
  //
  // A greatest score is a rounded product, and the others are not rounded before it is taken off: a factor that all
  // weights of a row share. Weights have no room for that of a giant, so giants are rounded before.
  template <bool WHOLE>
  __device__ __forceinline__ void weigh(Scores& scores, const Seen& seen) {
    const float scale = seen.biases == nullptr ? seen.scale : 1.0f;
    float factors[M][2];
    bool risen = false;
#pragma unroll
    for (int m = 0; m < M; ++m) {
      float most[2] = {-infinity(), -infinity()};
#pragma unroll
      for (unsigned eight = 0; eight < EIGHTS; ++eight) {
        if (!seen.template matters<WHOLE>(eight / 2)) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) most[i / 2] = fmaxf(most[i / 2], scores[m][eight][i]);
      }
      group_reduce<Max, 4>(most);
      float base[2], scales[2], total[2] = {};
      bool giant[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float next = fmaxf(greatest[m][half], most[half] * scale);
        base[half] = next == -infinity() ? 0.0f : next;
        giant[half] = fabsf(base[half]) > GIANT;
        scales[half] = giant[half] ? 1.0f : scale;
        factors[m][half] = exp2_approx(greatest[m][half] - base[half]);
        risen = risen || next != greatest[m][half];
        greatest[m][half] = next;
      }
      if (giant[0] || giant[1]) {
#pragma unroll
        for (unsigned eight = 0; eight < EIGHTS; ++eight) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (giant[i / 2]) scores[m][eight][i] = __fmul_rn(scores[m][eight][i], scale);
          }
        }
      }
#pragma unroll
      for (unsigned eight = 0; eight < EIGHTS; ++eight) {
        if (!seen.template matters<WHOLE>(eight / 2)) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float weight = exp2_approx(fmaf(scores[m][eight][i], scales[i / 2], -base[i / 2]));
          scores[m][eight][i] = weight;
          total[i / 2] += weight;
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) totals[m][half] = fmaf(totals[m][half], factors[m][half], total[half]);
    }
    if (!__any_sync(FULL_WARP, risen)) return;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int eight = 0; eight < D / 8; ++eight) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][eight][i] *= factors[m][i / 2];
      }
    }
  }

  // The second product.
  template <bool WHOLE>
  __device__ __forceinline__ void multiply_values(const Scores& weights, const Stage<D>& stage, const Seen& seen) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned group = 0; group < GROUPS; ++group) {
      if (!seen.template matters<WHOLE>(group)) continue;
      unsigned operand[M][4];
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* two = weights[m][2 * group + i / 2] + i % 2 * 2;
          operand[m][i] = pair_from_floats<T>(two[0], two[1]);
        }
      }
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
          mma_m16n8k16<T>(sums[m][2 * step], operand[m], {values[0], values[1]});
          mma_m16n8k16<T>(sums[m][2 * step + 1], operand[m], {values[2], values[3]});
        }
      }
    }
  }

  // Adds the values that are not finite where they are seen.
  __device__ __forceinline__ void add_not_finite(const Stage<D>& stage, const Seen& seen) {
    for (unsigned key = 16 * seen.groups.first; key < 16 * seen.groups.end; ++key) {
#pragma unroll
      for (int eight = 0; eight < D / 8; ++eight) {
        const unsigned pair =
            reinterpret_cast<const unsigned*>(stage.v + place<D>(key, eight))[threadIdx.x % 4];
        if ((not_finite<T>(pair) & SIGNS) == 0) continue;
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const T value = {static_cast<unsigned short>(pair >> (16 * (i % 2)))};
            const bool counts = (not_finite<T>(value.bits) & 0x8000u) != 0 && seen.of_row(index(m, i / 2)).has(key);
            if (counts) sums[m][eight][i] += to_float(value);
          }
        }
      }
    }
  }

  // Writes `rows` rows to `to`: sums over totals in the first `queries` of them; 0 in the others, and where no key
  // was seen.
  __device__ __forceinline__ void end(T* to, u64 stride, unsigned rows, unsigned queries) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
      group_reduce<Sum, 4>(totals[m]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned row = index(m, half);
        const bool sees_any = row < queries && totals[m][half] != 0.0f;
        const float inverse = 1.0f / totals[m][half];
#pragma unroll
        for (int part = 0; part < D / 32; ++part) {
          unsigned words[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float* two = sums[m][4 * part + i] + 2 * half;
            words[i] = sees_any ? pair_from_floats<T>(two[0] * inverse, two[1] * inverse) : 0;
          }
          transpose_quad(words);
          if (row < rows) {
            T* target = to + static_cast<u64>(row) * stride + part * 32 + threadIdx.x % 4 * 8;
            *reinterpret_cast<uint4*>(target) = {words[0], words[1], words[2], words[3]};
          }
        }
      }
    }
  }
};

// ---- a tile of queries ----------------------------------------------------------------------------------------------

template <int D, int M, class T>
__device__ __forceinline__ void attend(const Problem<T>& problem, Stage<D>* stages) {
  const unsigned warp_rows = 16 * M, tile_rows = blockDim.x / 32 * warp_rows;
  const Tile tile = find_tile(problem, tile_rows);
  if (tile.rows == 0) return;
  const Keys of_tile = seen_by_any(problem, tile.first, tile.queries(), tile.keys.count);
  const unsigned begin = of_tile.first / TILE_KEYS * TILE_KEYS;

  const unsigned kv_head = tile.head / problem.heads_of_kv;
  const Source<T, D> source = {problem.k + static_cast<u64>(tile.keys.first) * problem.k_stride + kv_head * D,
                               problem.v + static_cast<u64>(tile.keys.first) * problem.v_stride + kv_head * D,
                               problem.k_stride, problem.v_stride, of_tile.end};
  source.begin_copy(stages, begin);
  source.begin_copy(stages, begin + TILE_KEYS);

  const unsigned warp_first = threadIdx.x / 32 * warp_rows;  // row of the tile
  const unsigned queries = within({0, tile.queries()}, warp_first, warp_rows).end;
  const Keys of_warp = seen_by_any(problem, tile.first + warp_first, queries, tile.keys.count);
  const u64 query_row = static_cast<u64>(tile.query_row) + warp_first;
  Rows<T, D, M> rows;
  // greater products are greater scores once a negative scale has turned signs
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
    if (problem.bias != nullptr) {
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
    if (hides) look_for_not_finite<T>(stage);
    __syncthreads();  // what everyone has copied is there, and nobody reads the tile before any more
    if (start != begin) source.begin_copy(stages, start + TILE_KEYS);

    const Keys of_warp_here = within(of_warp, start, TILE_KEYS);
    if (of_warp_here.first == of_warp_here.end) continue;
    seen.start = start;
    seen.finite = !hides || !found_not_finite(stage);
    seen.groups = {of_warp_here.first / 16, (of_warp_here.end + 15) / 16};
    if (keys.end == start + TILE_KEYS && seen_by_all(problem, seen.first_row, queries, keys)) {
      rows.template attend<true>(stage, seen);
    } else {
      rows.template attend<false>(stage, seen);
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

// By the columns of a head and the fragments of 16 queries of a warp; with the most threads of a block, and how many
// such blocks have room in a multiprocessor's registers. A device stores one type, so Rust adds the line of that
// type.
#define INSTANCES(TYPE, T)           \
  ATTENTION(TYPE, T, 32, 1, 128, 4)  \
  ATTENTION(TYPE, T, 32, 2, 128, 2)  \
  ATTENTION(TYPE, T, 64, 1, 128, 3)  \
  ATTENTION(TYPE, T, 64, 2, 128, 2)  \
  ATTENTION(TYPE, T, 128, 1, 256, 1)
