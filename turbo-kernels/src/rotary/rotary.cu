// Rotary positions: rotates the halves of each head against each other by the angle of the row's position.
//
// A warp for each row, in which all heads rotate the same way: it finds the row's position once, and each lane rotates
// packs of both halves. Bytes per value: itself, read and written; all heads read a position's angles, which come from
// the caches.

// x: [rows, stride], out: [rows, num_heads · head_dim], table: [positions, head_dim], cosines and sines. Padding
// becomes 0, and rows that the table has no angles for become NaN, since lengths are known only here.
template <class T>
__device__ __forceinline__ void rotary(const T* __restrict__ x, unsigned stride, const T* __restrict__ table,
    unsigned positions, T* __restrict__ out, const Sequences& sequences, unsigned num_heads,
    unsigned head_dim) {
  constexpr unsigned PADDING = 0xffffffffu;
  const unsigned row = row_of<32, 1>(0);
  if (row >= sequences.rows) return;
  const unsigned half = head_dim / 2, position = sequences.position(row, PADDING);
  const T* from = x + static_cast<u64>(row) * stride;
  T* to = out + static_cast<u64>(row) * num_heads * head_dim;
  const T* angles = table + static_cast<u64>(position < positions ? position : 0) * head_dim;
  WITH_WIDTH(T, joint_bits((stride | half) * sizeof(T), x, table, out), {
    for (unsigned i = threadIdx.x % 32 * W; i < num_heads * half; i += 32 * W) {
      const unsigned at = i / half * head_dim + i % half;
      float first[W], second[W];
      if (position < positions) {
        float x1[W], x2[W], cosine[W], sine[W];
        load<W>(from + at, x1);
        load<W>(from + at + half, x2);
        load<W>(angles + i % half, cosine);
        load<W>(angles + half + i % half, sine);
        for (int j = 0; j < W; ++j) {
          first[j] = x1[j] * cosine[j] - x2[j] * sine[j];
          second[j] = x2[j] * cosine[j] + x1[j] * sine[j];
        }
      } else {
        for (int j = 0; j < W; ++j) first[j] = second[j] = position == PADDING ? 0.0f : not_a_number();
      }
      store<W>(to + at, first);
      store<W>(to + at + half, second);
    }
  });
}

#define INSTANCES(T, DTYPE)                                                                                         \
  extern "C" __global__ void __launch_bounds__(256) rotary_##DTYPE(const T* x, unsigned stride, const T* table,    \
      unsigned positions, T* out, const unsigned* lengths, unsigned batch_size, unsigned padded_len,               \
      unsigned rows, unsigned num_heads, unsigned head_dim) {                                                      \
    const Sequences sequences{lengths, batch_size, padded_len, rows};                                              \
    rotary(x, stride, table, positions, out, sequences, num_heads, head_dim);                                      \
  }
