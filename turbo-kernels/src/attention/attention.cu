// softmax(scale · q · kᵀ + bias) · v by multiply-adds of f32, for inputs that the tensor cores do not take: f32, heads
// of any size, addresses of any alignment. This file stands behind tile.cuh.
//
// A block of four warps has 32 queries of one head, eight for each warp. It walks over tiles of 32 keys, counted from
// the start of the sequence, which its warps read from shared memory. For scores, a lane is a key, and each of the
// key's values meets eight queries; for sums, a lane is one to four columns of the result, and each value meets eight
// weights. So each value read from shared memory is multiplied eight times. Greatest scores and totals are carried from
// tile to tile (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
//
// The result of a row depends only on the keys that it sees: the others add nothing to it, even if they are NaN.
//
// Heads of more than 128 columns are read in parts of 128, and a block computes 128 columns of the result, so the
// scores are computed once for each such block.

constexpr unsigned WARPS = 4;
constexpr unsigned THREADS = 32 * WARPS;
constexpr unsigned WARP_ROWS = 8;
constexpr unsigned TILE_ROWS = WARPS * WARP_ROWS;
constexpr unsigned TILE_KEYS = 32;

// Shared memory of a block whose parts of a head have PART columns.
template <unsigned PART>
struct Shared {
  float k[TILE_KEYS][PART + 1];                 // a column of 32 keys lies in 32 banks
  float v[TILE_KEYS][PART];
  alignas(16) float q[WARPS][PART][WARP_ROWS];  // what one multiply-add after the other takes lies side by side
  alignas(16) float weights[WARPS][TILE_KEYS][WARP_ROWS];
  float biases[TILE_ROWS + TILE_KEYS];          // or positions, by distance, the smallest first
};

// v[i] = from[i], i < WARP_ROWS, 16 bytes at a time.
__device__ __forceinline__ void read_rows(const float* from, float (&v)[WARP_ROWS]) {
#pragma unroll
  for (int i = 0; i < WARP_ROWS; i += 4) load<4>(from + i, v + i);
}

// Copies rows of `width` columns to rows of PART in shared memory, STRIDE apart, with 0 where there is no row or
// column.
template <unsigned PART, unsigned STRIDE, class T>
__device__ __forceinline__ void load_keys(float* to, const T* from, unsigned stride, unsigned rows, unsigned width) {
  for (unsigned i = threadIdx.x; i < TILE_KEYS * PART; i += THREADS) {
    const unsigned row = i / PART, column = i % PART;
    const bool exists = row < rows && column < width;
    to[row * STRIDE + column] = exists ? to_float(from[static_cast<u64>(row) * stride + column]) : 0.0f;
  }
}

// The same for queries, with the eight of a warp side by side.
template <unsigned PART, class T>
__device__ __forceinline__ void load_queries(float (&to)[WARPS][PART][WARP_ROWS], const T* from, unsigned stride,
                                             unsigned rows, unsigned width) {
  for (unsigned i = threadIdx.x; i < TILE_ROWS * PART; i += THREADS) {
    const unsigned row = i / PART, column = i % PART;
    const bool exists = row < rows && column < width;
    to[row / WARP_ROWS][column][row % WARP_ROWS] =
        exists ? to_float(from[static_cast<u64>(row) * stride + column]) : 0.0f;
  }
}

// sums[row][i] += weights of the row · column 32 · i + lane of `v`, over the keys that the row sees, or over all of
// them if `all`. All lanes have the same row and key at a time, so unseen keys are not touched.
template <int COLUMNS>
__device__ __forceinline__ void add_values(const float (&weights)[TILE_KEYS][WARP_ROWS],
                                           const float (&v)[TILE_KEYS][32 * COLUMNS], Keys any, bool all,
                                           const Keys (&seen)[WARP_ROWS], float (&sums)[WARP_ROWS][COLUMNS]) {
  const unsigned lane = threadIdx.x % 32;
  for (unsigned key = any.first; key < any.end; ++key) {
    float weight[WARP_ROWS], value[COLUMNS];
    read_rows(weights[key], weight);
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) value[i] = v[key][32 * i + lane];
#pragma unroll
    for (int row = 0; row < WARP_ROWS; ++row) {
      if (all || seen[row].has(key)) {
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) sums[row][i] = fmaf(weight[row], value[i], sums[row][i]);
      }
    }
  }
}

template <int COLUMNS, class T>
__device__ __forceinline__ void attend(const Problem<T>& problem, Shared<32 * COLUMNS>& shared) {
  constexpr unsigned PART = 32 * COLUMNS;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Tile tile = find_tile(problem, TILE_ROWS);
  if (tile.rows == 0) return;
  const unsigned head_dim = problem.head_dim, kv_head = tile.head / problem.heads_of_kv;
  const T* q = problem.q + static_cast<u64>(tile.query_row) * problem.q_stride + tile.head * head_dim;
  const T* k = problem.k + static_cast<u64>(tile.keys.first) * problem.k_stride + kv_head * head_dim;
  const T* v = problem.v + static_cast<u64>(tile.keys.first) * problem.v_stride + kv_head * head_dim;
  const unsigned part_of_out = blockIdx.y * PART;
  const unsigned first_row = tile.first + warp * WARP_ROWS;
  const unsigned queries = within({0, tile.queries()}, warp * WARP_ROWS, WARP_ROWS).end;  // of the warp
  const Keys of_block = seen_by_any(problem, tile.first, tile.queries(), tile.keys.count);
  const Keys of_warp = seen_by_any(problem, first_row, queries, tile.keys.count);

  float sums[WARP_ROWS][COLUMNS] = {};
  float totals[WARP_ROWS] = {};  // of this lane's keys
  float greatest[WARP_ROWS];
#pragma unroll
  for (int row = 0; row < WARP_ROWS; ++row) greatest[row] = -infinity();

  for (unsigned start = of_block.first / TILE_KEYS * TILE_KEYS; start < of_block.end; start += TILE_KEYS) {
    const unsigned keys = tile.keys.count - start;  // from the tile on
    float scores[WARP_ROWS] = {};
    for (unsigned part = 0; part < head_dim; part += PART) {
      __syncthreads();  // all threads are done with what is overwritten
      load_keys<PART, PART + 1>(shared.k[0], k + static_cast<u64>(start) * problem.k_stride + part, problem.k_stride,
                                keys, head_dim - part);
      if (head_dim > PART || start <= of_block.first) {
        load_queries(shared.q, q + part, problem.q_stride, tile.queries(), head_dim - part);
      }
      if (part == 0) {
        load_keys<PART, PART>(shared.v[0], v + static_cast<u64>(start) * problem.v_stride + part_of_out,
                              problem.v_stride, keys, head_dim - part_of_out);
        if (problem.bias_kind != BIAS_NONE) {
          const int smallest = static_cast<int>(start - (tile.first + TILE_ROWS - 1));
          for (int i = threadIdx.x; i < TILE_ROWS + TILE_KEYS - 1; i += THREADS) {
            shared.biases[i] = bias_of(problem, tile.head, smallest + i);
          }
        }
      }
      __syncthreads();
      const unsigned width = min(head_dim - part, PART);
#pragma unroll 4
      for (unsigned column = 0; column < width; ++column) {
        float query[WARP_ROWS];
        read_rows(shared.q[warp][column], query);
        const float key = shared.k[lane][column];
#pragma unroll
        for (int row = 0; row < WARP_ROWS; ++row) scores[row] = fmaf(query[row], key, scores[row]);
      }
    }
    const Keys any = within(of_warp, start, TILE_KEYS);
    if (any.first == any.end) continue;
    Keys seen[WARP_ROWS];
    float next[WARP_ROWS];
#pragma unroll
    for (int row = 0; row < WARP_ROWS; ++row) {
      seen[row] = within(seen_by_any(problem, first_row + row, 1, tile.keys.count), start, TILE_KEYS);
      float bias =
          problem.bias_kind == BIAS_NONE ? 0.0f : shared.biases[lane + TILE_ROWS - 1 - warp * WARP_ROWS - row];
      if (problem.bias_kind == BIAS_DISENTANGLED && warp * WARP_ROWS + row < tile.rows && seen[row].has(lane)) {
        bias = disentangled_bias(problem, tile.head, tile.query_row + warp * WARP_ROWS + row,
                                 tile.keys.first + start + lane, static_cast<unsigned>(bias));
      }
      scores[row] = seen[row].has(lane) ? fmaf(scores[row], problem.scale, bias) : -infinity();
      next[row] = scores[row];
    }
    group_reduce<Max, 32>(next);
    float weights[WARP_ROWS];
#pragma unroll
    for (int row = 0; row < WARP_ROWS; ++row) {
      next[row] = fmaxf(next[row], greatest[row]);
      const float base = next[row] == -infinity() ? 0.0f : next[row];
      const float before = exp2f(greatest[row] - base);
      greatest[row] = next[row];
      weights[row] = exp2f(scores[row] - base);
      totals[row] = fmaf(totals[row], before, weights[row]);
#pragma unroll
      for (int i = 0; i < COLUMNS; ++i) sums[row][i] *= before;
    }
#pragma unroll
    for (int row = 0; row < WARP_ROWS; row += 4) store<4>(shared.weights[warp][lane] + row, weights + row);
    __syncwarp();
    const bool all = seen_by_all(problem, first_row, queries, {start + any.first, start + any.end});
    add_values(shared.weights[warp], shared.v, any, all, seen, sums);
  }

  group_reduce<Sum, 32>(totals);
#pragma unroll
  for (int row = 0; row < WARP_ROWS; ++row) {
    const unsigned index = warp * WARP_ROWS + row;
    if (index >= tile.rows) break;
    T* out = problem.out + (static_cast<u64>(tile.query_row + index) * problem.num_heads + tile.head) * head_dim;
    const bool sees_any = row < queries && totals[row] != 0.0f;
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) {
      const unsigned column = part_of_out + 32 * i + lane;
      if (column < head_dim) out[column] = from_float<T>(sees_any ? sums[row][i] / totals[row] : 0.0f);
    }
  }
}

#define ATTENTION(TYPE, T, PART, BLOCKS)                                           \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                    \
      attention_##TYPE##_##PART(PARAMETERS(T)) {                                   \
    extern __shared__ uint4 shared[];                                              \
    const Problem<T> problem = PROBLEM;                                            \
    attend<PART / 32>(problem, *reinterpret_cast<Shared<PART>*>(shared));          \
  }

// Instances by the most columns of a part of a head, with the number of blocks that fit a multiprocessor's registers. A
// device stores one type, so Rust adds the line of that type: INSTANCES(f32, float).
#define INSTANCES(TYPE, T)    \
  ATTENTION(TYPE, T, 32, 4)   \
  ATTENTION(TYPE, T, 64, 4)   \
  ATTENTION(TYPE, T, 128, 3)
