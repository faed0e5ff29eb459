// The common beginning of the attention kernels: the part of the batch that a block attends for, the keys that its rows
// see, and the bias of a distance. This file stands behind sequences.cuh.
//
// A block has one head and a tile of consecutive queries of one sequence. Lengths are known only on the device, so a
// block finds its sequence there. The host launches one block for every tile that there can be, and blocks without work
// return. A list made on the host, longest sequence first, would require copying the lengths back, and everything
// behind it would wait for that. Blocks run in the order of their numbers, so they take tiles from the last to the
// first: under a causal mask, the last tile of a sequence takes longest.

// The arguments of all blocks of a launch.
template <class T>
struct Problem {
  const T* q;                             // the first of its columns in the first row
  const T* k;                             // likewise
  const T* v;                             // likewise
  T* out;                                 // [query rows, num_heads · head_dim]
  Sequences sequences;                    // among the rows of keys and values
  unsigned q_stride, k_stride, v_stride;  // values from one row to the next
  unsigned num_heads, heads_of_kv;        // heads of queries, and how many of them read one head of keys
  unsigned head_dim;
  unsigned attending;      // of each sequence: ALL, FIRST or LAST
  unsigned before, after;  // the mask, as visible_keys takes it
  float scale;             // of scores, times LOG2_E
  unsigned bias_kind;      // of relative bias
  const T* bias;           // [num_buckets, num_heads], or what queries score with positions
  const T* bias_of_keys;   // what keys score with positions
  unsigned num_buckets, max_distance;
};

constexpr unsigned ALL = 0, FIRST = 1, LAST = 2;

// A block's share. Positions are counted from the first token of the sequence.
struct Tile {
  unsigned head;
  unsigned query_row;    // of the first query, in q and out
  unsigned first, rows;  // its position, and how many there are; none: nothing to do
  Tokens keys;           // the sequence

  // Rows that are tokens. Padding attends to nothing.
  __device__ __forceinline__ unsigned queries() const { return min(first + rows, max(first, keys.count)) - first; }
};

// A packed sequence, and the rows that its prefix sums give it.
struct Packed {
  unsigned sequence, first, end;
};

// The first tile of a packed sequence, if each sequence has one tile more than the rows before it fill: sequences then
// never share a tile, and a sequence's place follows from its own prefix sum.
__device__ __forceinline__ unsigned first_tile(unsigned sequence, unsigned prefix_sum, unsigned tile_rows) {
  return prefix_sum / tile_rows + sequence;
}

// The last packed sequence whose first tile is `number` or before. A warp looks at 31 sequences at once, and at the end
// of the last one, so a batch of up to 31 sequences takes one read and a batch of 961 two, where a binary search would
// wait for memory ten times.
__device__ __forceinline__ Packed sequence_of_tile(const unsigned* cu_seqlens, unsigned batch_size, unsigned tile_rows,
                                                   unsigned number) {
  const unsigned lane = threadIdx.x % 32;
  unsigned first = 0;
  unsigned count = batch_size;  // of sequences from `first` on that it may be
  while (true) {
    const unsigned step = (count + 30) / 31;
    const unsigned sequence = first + min(lane * step, count), prefix_sum = cu_seqlens[sequence];
    const bool begun = lane * step < count && first_tile(sequence, prefix_sum, tile_rows) <= number;
    const unsigned skipped = max(__popc(__ballot_sync(FULL_WARP, begun)), 1) - 1;
    if (step == 1) {
      return {first + skipped, __shfl_sync(FULL_WARP, prefix_sum, skipped),
              __shfl_sync(FULL_WARP, prefix_sum, skipped + 1)};
    }
    first += skipped * step;
    count = min(step, count - skipped * step);
  }
}

// The share of this block, at most `tile_rows` rows. All threads take part.
template <class T>
__device__ __forceinline__ Tile find_tile(const Problem<T>& problem, unsigned tile_rows) {
  const Sequences& sequences = problem.sequences;
  const unsigned number = (gridDim.x - 1 - blockIdx.x) / problem.num_heads;
  const unsigned head = blockIdx.x % problem.num_heads;
  if (problem.attending != ALL) {
    const Tokens keys = sequences.tokens(number);
    return {head, number, problem.attending == FIRST ? 0 : max(keys.count, 1u) - 1, 1, keys};
  }
  unsigned tile;  // of the sequence
  Tokens keys;
  const bool is_padded = sequences.padded_len != PACKED;
  if (is_padded) {
    const unsigned tiles = (sequences.padded_len + tile_rows - 1) / tile_rows;
    tile = number % tiles;
    keys = sequences.tokens(number / tiles);
  } else {
    const Packed packed = sequence_of_tile(sequences.lengths, sequences.batch_size, tile_rows, number);
    tile = number - min(first_tile(packed.sequence, packed.first, tile_rows), number);
    keys = sequences.between(packed.first, packed.end);
  }
  const unsigned rows = is_padded ? sequences.padded_len : keys.count;
  const u64 first = static_cast<u64>(tile) * tile_rows;
  if (first >= rows) return {};
  const unsigned position = static_cast<unsigned>(first);
  return {head, keys.first + position, position, min(tile_rows, rows - position), keys};
}

// The keys that any of the `queries` consecutive queries from position `first` on sees.
template <class T>
__device__ __forceinline__ Keys seen_by_any(const Problem<T>& problem, unsigned first, unsigned queries,
                                            unsigned tokens) {
  if (queries == 0) return {0, 0};
  return {visible_keys(first, tokens, problem.before, problem.after).first,
          visible_keys(first + queries - 1, tokens, problem.before, problem.after).end};
}

// The keys that each of these queries sees; none if there are no queries.
template <class T>
__device__ __forceinline__ Keys seen_by_each(const Problem<T>& problem, unsigned first, unsigned queries,
                                             unsigned tokens) {
  if (queries == 0) return {0, 0};
  return {visible_keys(first + queries - 1, tokens, problem.before, problem.after).first,
          visible_keys(first, tokens, problem.before, problem.after).end};
}

// Whether each of these queries sees all of `keys`.
template <class T>
__device__ __forceinline__ bool seen_by_all(const Problem<T>& problem, unsigned first, unsigned queries, Keys keys) {
  const Keys seen = seen_by_each(problem, first, queries, keys.end);
  return seen.first <= keys.first && seen.end == keys.end;
}

// The part of `keys` in the tile of `size` keys from `start` on, counted from there.
__device__ __forceinline__ Keys within(Keys keys, unsigned start, unsigned size) {
  return {min(max(keys.first, start), start + size) - start, min(max(keys.end, start), start + size) - start};
}

// The bias, times LOG2_E, of a key `distance` tokens behind its query; for disentangled attention, the key's position.
template <class T>
__device__ __forceinline__ float bias_of(const Problem<T>& problem, unsigned head, int distance) {
  if (problem.bias_kind == BIAS_ALIBI) {
    return -alibi_slope(head, problem.num_heads) * fabsf(static_cast<float>(distance)) * LOG2_E;
  }
  if (problem.bias_kind == BIAS_DISENTANGLED) {
    return static_cast<float>(relative_position(distance, problem.num_buckets, problem.max_distance));
  }
  const unsigned bucket = relative_bucket(distance, problem.num_buckets, problem.max_distance);
  return to_float(problem.bias[static_cast<u64>(bucket) * problem.num_heads + head]) * LOG2_E;
}

// The bias, times LOG2_E, of a query and a key, given by their rows, from what each scores with `position`.
template <class T>
__device__ __forceinline__ float disentangled_bias(const Problem<T>& problem, unsigned head, unsigned query_row,
                                                   unsigned key_row, unsigned position) {
  const unsigned positions = 2 * problem.num_buckets;
  const u64 of_query = (static_cast<u64>(query_row) * problem.num_heads + head) * positions + position;
  const u64 of_key = (static_cast<u64>(key_row) * problem.num_heads + head) * positions + position;
  return (to_float(problem.bias[of_query]) + to_float(problem.bias_of_keys[of_key])) * LOG2_E;
}

// The parameters of a kernel, and the Problem made from them.
#define PARAMETERS(T)                                                                                               \
  const T *q, const T *k, const T *v, T *out, const unsigned *lengths, unsigned batch_size, unsigned padded_len,    \
      unsigned rows, unsigned q_first, unsigned k_first, unsigned v_first, unsigned q_stride, unsigned k_stride,    \
      unsigned v_stride, unsigned num_heads, unsigned heads_of_kv, unsigned head_dim, unsigned attending,           \
      unsigned before, unsigned after, float scale, unsigned bias_kind, const T *bias, const T *bias_of_keys,       \
      unsigned num_buckets, unsigned max_distance
#define PROBLEM                                                                                                     \
  {q + q_first, k + k_first, v + v_first, out,      {lengths, batch_size, padded_len, rows}, q_stride, k_stride,    \
   v_stride,    num_heads,   heads_of_kv, head_dim, attending, before, after, scale, bias_kind, bias, bias_of_keys, \
   num_buckets, max_distance}
