// The parts of the kernels on the tensor cores: queries, scores and results in registers, keys and values in shared
// memory. This file stands behind tile.cuh.
//
// Scores become weights in the same registers, and as they lie there they are the operand of the second product.
// Weights are powers of two, with log2(e) in the scale. Greatest scores are joined over the four lanes that share a row
// at each tile, totals only at the end. Sums are rescaled when a greatest score of the warp has risen, which is rare
// after a few tiles.
//
// The result of a row depends only on the keys that it sees, not on its place in a tile, nor on the size of the tile:
// hidden keys have weights of 0, and come with a factor of 1. There is one exception: see values that are not finite.
//
// Source: Dao, FlashAttention-2 (2023). Departs from it: queries and results move between memory and registers without
// shared memory, and values that are not finite are kept from rows that do not see them.

constexpr unsigned TILE_KEYS = 64;
constexpr unsigned GROUPS = TILE_KEYS / 16;  // of keys: what one product takes
constexpr unsigned EIGHTS = TILE_KEYS / 8;   // of keys: what one product of scores gives

constexpr float SMALLEST_NORMAL = 1.17549435e-38f;

// ---- values that are not finite -------------------------------------------------------------------------------------
// A hidden key has weight 0, and 0 · NaN is NaN. So where a tile has both hidden keys and values that are not finite,
// the product gets 0 in their place. Rows that see such values get them by addition, which turns a sum into what
// multiplication would have. The exception is an infinite value whose weight is rounded to 0: its product is NaN.

// The exponent of values that are not finite.
template <class T>
constexpr unsigned EXPONENT = 0x7c00;
template <>
constexpr unsigned EXPONENT<bf16_t> = 0x7f80;

constexpr unsigned SIGNS = 0x80008000u;

// In the result, the sign bits of a pair of values tell which are not finite; the other bits mean nothing.
template <class T>
__device__ __forceinline__ unsigned not_finite(unsigned pair) {
  return (pair & ~SIGNS) + (0x8000u - EXPONENT<T>) * 0x10001u;
}

// A pair of values with 0 for those that are not finite.
template <class T>
__device__ __forceinline__ unsigned finite_part(unsigned pair) {
  const unsigned which = not_finite<T>(pair);
  return pair & ((which & 0x8000u ? 0 : 0xffffu) | (which & 0x80000000u ? 0 : 0xffff0000u));
}

// ---- keys and values in shared memory -------------------------------------------------------------------------------

// The place of the 16 bytes `chunk` of row `row` in a tile of rows of D values: in parts of up to 64 columns, whose
// rows follow each other. An instruction reads one chunk of eight consecutive rows. In plain order these chunks would
// lie in the same banks; here they are spread over all banks, as wgmma's descriptors have it (a swizzle of 64 or 128
// bytes).
template <int D>
__device__ __forceinline__ unsigned place(unsigned row, unsigned chunk) {
  constexpr unsigned CHUNKS = D < 64 ? D / 8 : 8;
  return (chunk / CHUNKS * TILE_KEYS + row) * CHUNKS + (chunk % CHUNKS ^ (row / (8 / CHUNKS) % CHUNKS));
}

// The number of chunks of 16 bytes in a tile.
template <int D>
constexpr unsigned TILE_CHUNKS = TILE_KEYS * D / 8;

// One head of a sequence's keys or values.
template <class T, int D>
struct Source {
  const T* first;
  unsigned stride;
  unsigned end;  // of the positions that are read

  // Begins to copy the tile from position `start` on, with zeros where nothing is read.
  __device__ __forceinline__ void begin_copy(uint4* to, unsigned start) const {
    for (unsigned i = threadIdx.x; i < TILE_CHUNKS<D>; i += blockDim.x) {
      const unsigned row = i / (D / 8), chunk = i % (D / 8);
      const bool exists = start + row < end;
      const T* source = first + static_cast<u64>(start + (exists ? row : 0)) * stride + chunk * 8;
      cp_async_16(to + place<D>(row, chunk), source, exists ? 16 : 0);
    }
  }
};

// Whether this thread has copied values that are not finite.
template <class T, int D>
__device__ __forceinline__ bool has_copied_not_finite(const uint4* values) {
  unsigned any = 0;
  for (unsigned i = threadIdx.x; i < TILE_CHUNKS<D>; i += blockDim.x) {
    const uint4 chunk = values[place<D>(i / (D / 8), i % (D / 8))];
    any |= not_finite<T>(chunk.x) | not_finite<T>(chunk.y) | not_finite<T>(chunk.z) | not_finite<T>(chunk.w);
  }
  return (any & SIGNS) != 0;
}

// Replaces values that are not finite by 0.
template <class T, int D>
__device__ __forceinline__ void keep_finite(uint4* values) {
  for (unsigned i = threadIdx.x; i < TILE_CHUNKS<D>; i += blockDim.x) {
    uint4& chunk = values[place<D>(i / (D / 8), i % (D / 8))];
    chunk = {finite_part<T>(chunk.x), finite_part<T>(chunk.y), finite_part<T>(chunk.z), finite_part<T>(chunk.w)};
  }
}

// ---- queries and results in registers -------------------------------------------------------------------------------

// A warp's knowledge of a tile of keys.
struct Seen {
  unsigned start;         // position of the tile's first key
  unsigned tokens;        // of the sequence
  unsigned first_row;     // position of the warp's first row
  unsigned before, after;  // as in Problem
  Keys groups;            // of the tile: those with a key that some row of the warp sees
  float scale;            // from products to scores
  const float* biases;    // by distance, from that of the tile's first key and the warp's first row on; or null
  bool finite;            // all values are, or no key is hidden; for kernels that clean them in registers

  // Whether a group matters to the warp. WHOLE: every row sees every key.
  template <bool WHOLE>
  __device__ __forceinline__ bool matters(unsigned group) const {
    return WHOLE || groups.has(group);
  }

  // The keys of the tile that a row of the warp sees, counted from its first.
  __device__ __forceinline__ Keys of_row(unsigned row) const {
    return within(visible_keys(first_row + row, tokens, before, after), start, TILE_KEYS);
  }
};

// Word j of lane p of each four lanes becomes word p of lane j. In an operand, lane p has columns 2p and 2p + 1 of
// every eight; in memory, 16 bytes are eight columns. So each lane reads or writes one eight of four, and the lanes
// exchange words.
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

// A lane's part of the scores, and then of the weights, of a fragment for a tile of keys.
using Scores = float[EIGHTS][4];

// 16 · M queries of a warp, in fragments of 16, and their results so far.
template <class T, int D, int M>
struct Rows {
  unsigned q[M][D / 16][4];
  float sums[M][D / 8][4];
  float greatest[M][2];  // of the scores, by the row of a lane
  float totals[M][2];    // of this lane's weights

  // The number in the warp of this lane's row `half` in fragment `m`.
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

  // Turns products of fragment `m` into scores.
  template <bool WHOLE>
  static __device__ __forceinline__ void add_biases(Scores& scores, int m, const Seen& seen) {
#pragma unroll
    for (unsigned eight = 0; eight < EIGHTS; ++eight) {
      if (!seen.template matters<WHOLE>(eight / 2)) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 8 * eight + 2 * (threadIdx.x % 4) + i % 2, row = index(m, i / 2);
        scores[eight][i] = fmaf(scores[eight][i], seen.scale, seen.biases[key - row]);
      }
    }
  }

  // Sets the scores of keys that a row of fragment `m` does not see to -infinity.
  static __device__ __forceinline__ void hide(Scores& scores, int m, const Seen& seen) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Keys of_row = seen.of_row(index(m, half));
#pragma unroll
      for (unsigned eight = 0; eight < EIGHTS; ++eight) {
        if (!seen.template matters<false>(eight / 2)) continue;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const unsigned key = 8 * eight + 2 * (threadIdx.x % 4) + i;
          if (!of_row.has(key)) scores[eight][2 * half + i] = -infinity();
        }
      }
    }
  }

  // Turns scores into weights, and adds them up by row.
  template <bool WHOLE>
  static __device__ __forceinline__ void powers(Scores& scores, const Seen& seen, const float (&scales)[2],
                                                const float (&base)[2], float (&total)[2]) {
#pragma unroll
    for (unsigned eight = 0; eight < EIGHTS; ++eight) {
      if (!seen.template matters<WHOLE>(eight / 2)) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[eight][i] = exp2_approx(fmaf(scores[eight][i], scales[i / 2], -base[i / 2]));
#pragma unroll
      for (int half = 0; half < 2; ++half) total[half] += scores[eight][2 * half] + scores[eight][2 * half + 1];
    }
  }

  // Turns scores of fragment `m` into weights, and brings its totals to the scale of the greatest score so far. Returns
  // true where a greatest score of the warp has risen: then `rescale` does the same for the sums, by `factors`.
  // Greatest scores ignore NaN, which comes back as a weight.
  //
  // A greatest score is a rounded product, and the others are not rounded before it is subtracted: all weights of a row
  // share the resulting factor. Weights have no room for the factor of a giant, so giants are rounded before.
  template <bool WHOLE>
  __device__ __forceinline__ bool weigh(Scores& scores, int m, const Seen& seen, float (&factors)[2]) {
    const float scale = seen.biases == nullptr ? seen.scale : 1.0f;
    float most[2] = {-infinity(), -infinity()};
#pragma unroll
    for (unsigned eight = 0; eight < EIGHTS; ++eight) {
      if (!seen.template matters<WHOLE>(eight / 2)) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        most[half] = fmaxf(most[half], fmaxf(scores[eight][2 * half], scores[eight][2 * half + 1]));
      }
    }
    group_reduce<Max, 4>(most);
    float base[2], total[2] = {};
    bool giant[2], risen = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float next = fmaxf(greatest[m][half], most[half] * scale);
      base[half] = next == -infinity() ? 0.0f : next;
      giant[half] = fabsf(base[half]) >= GIANT;
      factors[half] = exp2_approx(greatest[m][half] - base[half]);
      risen = risen || next != greatest[m][half];
      greatest[m][half] = next;
    }
    if (__any_sync(FULL_WARP, giant[0] || giant[1])) {
      const float scales[2] = {giant[0] ? 1.0f : scale, giant[1] ? 1.0f : scale};
#pragma unroll
      for (unsigned eight = 0; eight < EIGHTS; ++eight) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (giant[i / 2]) scores[eight][i] = __fmul_rn(scores[eight][i], scale);
        }
      }
      powers<WHOLE>(scores, seen, scales, base, total);
    } else {
      powers<WHOLE>(scores, seen, {scale, scale}, base, total);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) totals[m][half] = fmaf(totals[m][half], factors[half], total[half]);
    return __any_sync(FULL_WARP, risen);
  }

  // Brings the sums of fragment `m` to the scale that `weigh` chose.
  __device__ __forceinline__ void rescale(int m, const float (&factors)[2]) {
#pragma unroll
    for (int eight = 0; eight < D / 8; ++eight) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][eight][i] *= factors[i / 2];
    }
  }

  // Rounds the weights of 16 keys, as the second product takes them.
  static __device__ __forceinline__ void round(const Scores& weights, unsigned group, unsigned (&to)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* two = weights[2 * group + i / 2] + i % 2 * 2;
      to[i] = pair_from_floats<T>(two[0], two[1]);
    }
  }

  // Adds the values that are not finite where they are seen.
  __device__ __forceinline__ void add_not_finite(const uint4* tile, const Seen& seen) {
    for (unsigned key = 16 * seen.groups.first; key < 16 * seen.groups.end; ++key) {
#pragma unroll
      for (int eight = 0; eight < D / 8; ++eight) {
        const unsigned pair = reinterpret_cast<const unsigned*>(tile + place<D>(key, eight))[threadIdx.x % 4];
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

  // Writes `rows` rows to `to`: sums over totals in the first `queries` of them; 0 in the others, and in rows that saw
  // no key.
  __device__ __forceinline__ void end(T* to, u64 stride, unsigned rows, unsigned queries) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
      group_reduce<Sum, 4>(totals[m]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned row = index(m, half);
        const bool sees_any = row < queries && totals[m][half] != 0.0f;
        const float inverse = __fdividef(1.0f, totals[m][half]);
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
