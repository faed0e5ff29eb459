// Copies of rows between orders of heads.
//
// GROUP lanes share a row (one head of one token, contiguous on both sides), so a warp moves four rows of 16 · GROUP
// bytes, each of them whole lines of memory on both sides. A group has ROWS rows under way at once. Bytes per value:
// itself, twice.

constexpr int GROUP = 8;
constexpr int ROWS = 4;

// Elements from one sequence, head and row to the next.
struct Strides {
  unsigned batch, head, row;

  __device__ __forceinline__ u64 at(unsigned b, unsigned h, unsigned i) const {
    return static_cast<u64>(b) * batch + static_cast<u64>(h) * head + static_cast<u64>(i) * row;
  }
};

// Rows are numbered by the row within a head, then by head, then by sequence.
template <class T>
__device__ __forceinline__ void copy_heads(const T* __restrict__ from, const Strides& from_at, T* __restrict__ to,
    const Strides& to_at, unsigned total, unsigned num_heads, unsigned rows, unsigned head_dim) {
  const u64 strides = from_at.batch | from_at.head | from_at.row | to_at.batch | to_at.head | to_at.row | head_dim;
  const T* from_row[ROWS];
  T* to_row[ROWS];
#pragma unroll
  for (int x = 0; x < ROWS; ++x) {
    const unsigned number = row_of<GROUP, ROWS>(x), of_head = number / rows;
    const unsigned b = of_head / num_heads, h = of_head % num_heads, i = number % rows;
    from_row[x] = from + (number < total ? from_at.at(b, h, i) : 0);
    to_row[x] = number < total ? to + to_at.at(b, h, i) : nullptr;
  }
  WITH_WIDTH(T, joint_bits(strides * sizeof(T), from, to), {
    for (unsigned column = thread_of_row<GROUP>() * W; column < head_dim; column += GROUP * W) {
      Pack<T, W> packs[ROWS];
      for (int x = 0; x < ROWS; ++x) packs[x] = load_pack<W>(from_row[x] + column);
      for (int x = 0; x < ROWS; ++x) {
        if (to_row[x]) *reinterpret_cast<Pack<T, W>*>(to_row[x] + column) = packs[x];
      }
    }
  });
}

#define INSTANCES(T, DTYPE)                                                                                        \
  extern "C" __global__ void __launch_bounds__(256) copy_heads_##DTYPE(const T* from, unsigned from_batch,        \
      unsigned from_head, unsigned from_row, T* to, unsigned to_batch, unsigned to_head, unsigned to_row,         \
      unsigned total, unsigned num_heads, unsigned rows, unsigned head_dim) {                                     \
    const Strides from_at{from_batch, from_head, from_row}, to_at{to_batch, to_head, to_row};                     \
    copy_heads(from, from_at, to, to_at, total, num_heads, rows, head_dim);                                       \
  }
