// Barriers, shuffles and votes.

inline void __syncthreads() { turbo::running->barrier(); }
inline int __syncthreads_or(int vote) { return turbo::running->barrier(vote != 0); }

// Lanes that have not returned.
inline unsigned __activemask() { return turbo::running->active_lanes(); }

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  struct Nothing {
  } nothing;
  turbo::running->collective<Nothing>("__syncwarp", mask, nothing, [](Nothing* const*, unsigned) {});
}

namespace turbo {

// The value of lane `from`; all bits are 1 if that lane does not take part.
template <class T>
T shuffle(const char* name, unsigned mask, T value, unsigned from) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
  struct Operands {
    T value, result;
    unsigned from;
  } own = {value, value, from};
  running->collective<Operands>(name, mask, own, [](Operands* const* lanes, unsigned mask) {
    for (unsigned left = mask; left != 0; left &= left - 1) {
      Operands& lane = *lanes[__builtin_ctz(left)];
      if (const Operands* source = lanes[lane.from]) {
        lane.result = source->value;
      } else {
        std::memset(&lane.result, 0xff, sizeof(T));
      }
    }
  });
  return own.result;
}

inline unsigned lane() { return running->thread % WARP; }

// The lanes of `mask` whose `vote` is set.
inline unsigned ballot(const char* name, unsigned mask, bool vote) {
  struct Operands {
    bool vote;
    unsigned result;
  } own = {vote, 0};
  running->collective<Operands>(name, mask, own, [](Operands* const* lanes, unsigned mask) {
    unsigned votes = 0;
    for (unsigned left = mask; left != 0; left &= left - 1) {
      const unsigned lane = __builtin_ctz(left);
      votes |= lanes[lane]->vote ? 1u << lane : 0;
    }
    for (unsigned left = mask; left != 0; left &= left - 1) lanes[__builtin_ctz(left)]->result = votes;
  });
  return own.result;
}

}  // namespace turbo

// Segments of `width` lanes, a power of two; a lane that would read beyond its segment reads its own value.
template <class T>
inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const unsigned segment = turbo::lane() & ~(width - 1u);
  return turbo::shuffle("__shfl_sync", mask, value, segment + (from & (width - 1)));
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned steps, int width = 32) {
  const unsigned lane = turbo::lane(), inside = lane & (width - 1u);
  return turbo::shuffle("__shfl_up_sync", mask, value, steps <= inside ? lane - steps : lane);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned steps, int width = 32) {
  const unsigned lane = turbo::lane(), inside = lane & (width - 1u);
  return turbo::shuffle("__shfl_down_sync", mask, value, steps < width - inside ? lane + steps : lane);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const unsigned lane = turbo::lane(), from = lane ^ bits;
  return turbo::shuffle("__shfl_xor_sync", mask, value, from <= (lane | (width - 1u)) ? from : lane);
}

inline unsigned __ballot_sync(unsigned mask, int vote) { return turbo::ballot("__ballot_sync", mask, vote != 0); }
inline int __any_sync(unsigned mask, int vote) { return turbo::ballot("__any_sync", mask, vote != 0) != 0; }
inline int __all_sync(unsigned mask, int vote) { return turbo::ballot("__all_sync", mask, vote != 0) == mask; }
