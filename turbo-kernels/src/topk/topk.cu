// The greatest values of rows and their columns.
//
// Each warp goes through its part of a row with the 64 greatest values so far in registers, sorted, two in each lane.
// Values greater than the k-th of them are set aside, and merged once there are 32: after the first few hundred values,
// almost none are. The warps of a row merge their 64 values in a tree. After Johnson, Douze and Jégou, arXiv
// 1702.08734, section 5 (WarpSelect).
// Bytes per value: itself, once. A thread has UNROLL packs of 16 bytes under way, as a row may have a whole
// multiprocessor to itself.
//
//   kernel         | threads of a row
//   top_k_..._warp | a warp, of four in a block
//   top_k_...      | a block of 1024
//
// A value is compared by a key of 64 bits, which is unique in its row, so the result depends neither on the order of
// threads nor on their number.

constexpr int KEPT = 64;
constexpr int UNROLL = 4;

// The key of a value: it grows with the value, and among equal values falls with the column. 0 stands for no value. NaN
// is greater than any number.
__device__ __forceinline__ u64 key_of(float value, unsigned column) {
  const unsigned bits = __float_as_uint(value + 0.0f);  // -0 becomes 0
  unsigned order = bits >> 31 ? ~bits : bits | 0x80000000u;
  if (value != value) order = 0xffffffffu;
  return static_cast<u64>(order) << 32 | (~column & 0xffffffffu);
}

// The value of a key, NaN for NaN.
__device__ __forceinline__ float value_of_key(u64 key) {
  const unsigned order = static_cast<unsigned>(key >> 32);
  return __uint_as_float(order >> 31 ? order & 0x7fffffffu : ~order);
}

__device__ __forceinline__ unsigned column_of_key(u64 key) { return ~static_cast<unsigned>(key); }

__device__ __forceinline__ u64 greater(u64 a, u64 b) { return a > b ? a : b; }
__device__ __forceinline__ u64 lesser(u64 a, u64 b) { return a < b ? a : b; }

// This lane's part in a step of a sorting network: of its key and that of the lane `distance` away, keeps one.
__device__ __forceinline__ u64 exchange(u64 key, int distance, bool keep_greater) {
  const u64 other = __shfl_xor_sync(FULL_WARP, key, distance);
  return keep_greater ? greater(key, other) : lesser(key, other);
}

// Sorts one key in each lane, descending by lane: Batcher's bitonic network.
__device__ __forceinline__ u64 sort_descending(u64 key) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (int run = 2; run <= 32; run *= 2) {
#pragma unroll
    for (int distance = run / 2; distance > 0; distance /= 2) {
      const bool descends = (lane & run) == 0, is_lower = (lane & distance) == 0;
      key = exchange(key, distance, descends == is_lower);
    }
  }
  return key;
}

// The greatest keys of a warp, descending: lane i has those at places i and i + 32.
struct Kept {
  u64 keys[2];

  // Sorts keys that rise and then fall, or the other way round.
  __device__ __forceinline__ void sort_bitonic() {
    const unsigned lane = threadIdx.x % 32;
    const u64 high = greater(keys[0], keys[1]), low = lesser(keys[0], keys[1]);
    keys[0] = high;
    keys[1] = low;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
#pragma unroll
      for (int j = 0; j < 2; ++j) keys[j] = exchange(keys[j], distance, (lane & distance) == 0);
    }
  }

  // Keeps the greatest of these keys and of 64 others in memory, descending.
  __device__ __forceinline__ void merge_sorted(const u64 (&others)[KEPT]) {
    const unsigned lane = threadIdx.x % 32;
    keys[0] = greater(keys[0], others[63 - lane]);
    keys[1] = greater(keys[1], others[31 - lane]);
    sort_bitonic();
  }

  // The key at a place, in every lane.
  __device__ __forceinline__ u64 at(unsigned place) const {
    return __shfl_sync(FULL_WARP, keys[place / 32], place % 32);
  }
};

// The greatest of the kept keys and of 32 more, one in each lane. Rare, so it is not inlined wherever it may be called.
__device__ __noinline__ Kept merged(Kept kept, u64 key) {
  // paired in descending order with the last of the others, the new keys make all of them rise and then fall
  const u64 rising = __shfl_sync(FULL_WARP, sort_descending(key), 31 - threadIdx.x % 32);
  kept.keys[1] = greater(kept.keys[1], rising);
  kept.sort_bitonic();
  return kept;
}

// The values that a warp has picked from its part of a row.
struct Picker {
  u64 (&aside)[KEPT];  // keys that are not merged yet, in shared memory
  unsigned k;
  unsigned count;  // of those, below 32 between calls
  float least;     // the k-th of those merged; NaN while there are fewer
  Kept kept;

  __device__ __forceinline__ Picker(u64 (&aside)[KEPT], unsigned k)
      : aside(aside), k(k), count(0), least(not_a_number()), kept{{0, 0}} {}

  // Sets the value of each lane aside whose `counts` is true.
  __device__ __forceinline__ void add(float value, unsigned column, bool counts) {
    const unsigned counting = __ballot_sync(FULL_WARP, counts), lane = threadIdx.x % 32;
    if (counts) aside[count + __popc(counting & ((1u << lane) - 1))] = key_of(value, column);
    count += __popc(counting);
    __syncwarp();
    if (count >= 32) {
      merge(aside[lane]);
      count -= 32;
      if (lane < count) aside[lane] = aside[lane + 32];
      __syncwarp();
    }
  }

  // All kept keys, once there are no more values.
  __device__ __forceinline__ Kept finish() {
    const unsigned lane = threadIdx.x % 32;
    if (count > 0) merge(lane < count ? aside[lane] : 0);
    return kept;
  }

  __device__ __forceinline__ void merge(u64 key) {
    kept = merged(kept, key);
    const u64 of_least = kept.at(k - 1);
    least = of_least == 0 ? not_a_number() : value_of_key(of_least);
  }
};

// The greatest values of this warp's part of a row; `warps` warps share the row, and this one is number `warp`.
template <int W, class T>
__device__ __forceinline__ Kept pick(
    const T* __restrict__ row, unsigned columns, unsigned k, unsigned warp, unsigned warps, u64 (&aside)[KEPT]) {
  const unsigned lane = threadIdx.x % 32;
  Picker picker(aside, k);
  for (unsigned first = warp * 32 * W; first < columns; first += warps * 32 * W * UNROLL) {
    Pack<T, W> packs[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const unsigned column = first + (u * warps * 32 + lane) * W;
      packs[u] = load_pack<W>(row + (column < columns ? column : 0));
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const unsigned column = first + (u * warps * 32 + lane) * W;
      // The values kept before come before all of these, so a value that is not greater than the least of them does not
      // count. If the least is NaN, all values count, which is slower and equally correct.
      const float least = picker.least;
      bool counts[W], any = false;
#pragma unroll
      for (int j = 0; j < W; ++j) {
        counts[j] = column < columns && !(to_float(packs[u].values[j]) <= least);
        any = any || counts[j];
      }
      if (!__any_sync(FULL_WARP, any)) continue;
#pragma unroll
      for (int j = 0; j < W; ++j) picker.add(to_float(packs[u].values[j]), column + j, counts[j]);
    }
  }
  return picker.finish();
}

// values[i], indices[i] <- the i-th kept value, i < k.
template <class T>
__device__ __forceinline__ void store_kept(
    const Kept& kept, const T* __restrict__ row, unsigned k, T* __restrict__ values, unsigned* __restrict__ indices) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const unsigned place = threadIdx.x % 32 + 32 * j;
    if (place < k) {
      const unsigned column = column_of_key(kept.keys[j]);
      indices[place] = column;
      values[place] = row[column];
    }
  }
}

// x: [rows, columns]; values and indices: [rows, k]; 0 < k <= 64, k <= columns.
template <int BLOCK, int WARPS, class T>
__device__ __forceinline__ void top_k(const T* __restrict__ x, T* __restrict__ values,
    unsigned* __restrict__ indices, unsigned rows, unsigned columns, unsigned k) {
  __shared__ u64 shared[BLOCK / 32][KEPT];
  const unsigned warp = threadIdx.x / 32, row = blockIdx.x * (BLOCK / 32 / WARPS) + warp / WARPS;
  if (WARPS == 1 && row >= rows) return;
  const T* of_row = x + static_cast<u64>(row) * columns;
  Kept kept;
  if (joint_bits(columns * sizeof(T), x) % 16 == 0) {
    kept = pick<16 / sizeof(T)>(of_row, columns, k, warp % WARPS, WARPS, shared[warp]);
  } else {
    kept = pick<1>(of_row, columns, k, warp % WARPS, WARPS, shared[warp]);
  }
#pragma unroll 1
  for (int distance = WARPS / 2; distance > 0; distance /= 2) {
    // the warps above hand over their kept keys
#pragma unroll
    for (int j = 0; j < 2; ++j) shared[warp][threadIdx.x % 32 + 32 * j] = kept.keys[j];
    __syncthreads();
    if (warp < distance) kept.merge_sorted(shared[warp + distance]);
    __syncthreads();
  }
  if (warp % WARPS == 0) {
    store_kept(kept, of_row, k, values + static_cast<u64>(row) * k, indices + static_cast<u64>(row) * k);
  }
}

#define INSTANCES(T, DTYPE)                                                                                         \
  extern "C" __global__ void __launch_bounds__(128) top_k_##DTYPE##_warp(                                           \
      const T* x, T* values, unsigned* indices, unsigned rows, unsigned columns, unsigned k) {                      \
    top_k<128, 1>(x, values, indices, rows, columns, k);                                                            \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(1024) top_k_##DTYPE(                                                 \
      const T* x, T* values, unsigned* indices, unsigned rows, unsigned columns, unsigned k) {                      \
    top_k<1024, 32>(x, values, indices, rows, columns, k);                                                          \
  }
