// The places of a batch's sequences among rows: the twin of `sequences.rs`. Lengths are known only on the device and
// were not checked; whatever they say, only rows that exist are used.

constexpr unsigned PACKED = 0xffffffffu;

// Rows first..first + count - 1.
struct Tokens {
  unsigned first, count;
};

struct Sequences {
  const unsigned* lengths;  // [batch_size] if padded, else prefix sums, [batch_size + 1]
  unsigned batch_size;
  unsigned padded_len;  // rows of each sequence, or PACKED
  unsigned rows;        // of all sequences, padding included

  // The rows of sequence `b` that are tokens.
  __device__ __forceinline__ Tokens tokens(unsigned b) const {
    if (padded_len != PACKED) return Tokens{b * padded_len, min(lengths[b], padded_len)};
    return between(lengths[b], lengths[b + 1]);
  }

  // The rows between two prefix sums.
  __device__ __forceinline__ Tokens between(unsigned first, unsigned end) const {
    first = min(first, rows);
    end = min(end, rows);
    return Tokens{first, end > first ? end - first : 0};
  }

  // The position of `row` in its sequence, or `none` if it is padding. O(log batch_size).
  __device__ __forceinline__ unsigned position(unsigned row, unsigned none) const {
    if (padded_len != PACKED) {
      const unsigned position = row % padded_len;
      return position < lengths[row / padded_len] ? position : none;
    }
    unsigned low = 0, high = batch_size;  // the first sequence that ends behind the row
    while (low < high) {
      const unsigned middle = (low + high) / 2;
      if (lengths[middle + 1] > row) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low < batch_size && lengths[low] <= row ? row - lengths[low] : none;
  }
};
