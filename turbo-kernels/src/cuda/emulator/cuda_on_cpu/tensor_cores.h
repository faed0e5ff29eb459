// mma, ldmatrix, cp.async.

namespace turbo {

// d += a · b. The fragments are those of the PTX manual, "mma.m16n8k16": with group = lane / 4 and pair = lane % 4, two
// values in a register, the lower half first,
//   a[0], a[1]: row group and group + 8, columns 2 · pair and 2 · pair + 1; a[2], a[3]: the same, columns + 8
//   b[0]: rows 2 · pair and 2 · pair + 1 of column group; b[1]: rows + 8
//   d[0], d[1]: row group, columns 2 · pair and 2 · pair + 1; d[2], d[3]: row group + 8
// Each sum is rounded once.
template <class Widen>
void multiply_add(const char* name, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  struct Operands {
    float* d;
    const unsigned* a;
    unsigned b[2];
  } own = {d, a, {b0, b1}};
  running->collective<Operands>(name, 0xffffffffu, own, [](Operands* const* lanes, unsigned) {
    const auto half = [](unsigned pair, unsigned i) { return Widen::of(static_cast<unsigned short>(pair >> 16 * i)); };
    double a[16][16], b[16][8];
    for (unsigned lane = 0; lane < WARP; ++lane) {
      const unsigned group = lane / 4, column = lane % 4 * 2;
      for (unsigned i = 0; i < 8; ++i) {
        a[group + i / 2 % 2 * 8][column + i / 4 * 8 + i % 2] = half(lanes[lane]->a[i / 2], i % 2);
      }
      for (unsigned i = 0; i < 4; ++i) b[column + i / 2 * 8 + i % 2][group] = half(lanes[lane]->b[i / 2], i % 2);
    }
    for (unsigned lane = 0; lane < WARP; ++lane) {
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = lanes[lane]->d[i];
        for (unsigned k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
        lanes[lane]->d[i] = static_cast<float>(sum);
      }
    }
  });
}

struct WidenF16 {
  static double of(unsigned short bits) { return f16_to_f32(bits); }
};

struct WidenBf16 {
  static double of(unsigned short bits) { return __uint_as_float(unsigned{bits} << 16); }
};

// Four 8 × 8 matrices of 16-bit values: lane i names row i % 8 of matrix i / 8; lane l gets columns 2 · (l % 4) and the next
// of row l / 4 of each, or of its transpose.
template <bool TRANSPOSED>
void load_matrices(const char* name, unsigned (&to)[4], const void* shared_row) {
  if (reinterpret_cast<uintptr_t>(shared_row) % 16 != 0) running->fail("%s: the address is no multiple of 16", name);
  if (!running->is_shared(shared_row, 16)) running->fail("%s: the row lies outside shared memory", name);
  struct Operands {
    unsigned* to;
    const unsigned short* row;
  } own = {to, static_cast<const unsigned short*>(shared_row)};
  running->collective<Operands>(name, 0xffffffffu, own, [](Operands* const* lanes, unsigned) {
    for (unsigned lane = 0; lane < WARP; ++lane) {
      for (unsigned matrix = 0; matrix < 4; ++matrix) {
        const auto at = [&](unsigned row, unsigned column) -> unsigned { return lanes[matrix * 8 + row]->row[column]; };
        const unsigned i = lane / 4, j = lane % 4 * 2;
        lanes[lane]->to[matrix] = TRANSPOSED ? at(j, i) | at(j + 1, i) << 16 : at(i, j) | at(i, j + 1) << 16;
      }
    }
  });
}

}  // namespace turbo

inline void mma_m16n8k16_f16(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  turbo::multiply_add<turbo::WidenF16>("mma_m16n8k16_f16", sum, a, b[0], b[1]);
}
inline void mma_m16n8k16_bf16(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  turbo::multiply_add<turbo::WidenBf16>("mma_m16n8k16_bf16", sum, a, b[0], b[1]);
}

inline void ldmatrix_x4(unsigned (&to)[4], const void* shared_row) {
  turbo::load_matrices<false>("ldmatrix_x4", to, shared_row);
}
inline void ldmatrix_x4_trans(unsigned (&to)[4], const void* shared_row) {
  turbo::load_matrices<true>("ldmatrix_x4_trans", to, shared_row);
}

// Copies 16 bytes to shared memory, the first `bytes` from `global` and then zeros; they are 0xff until waited for.
inline void cp_async_16(void* shared, const void* global, unsigned bytes = 16) {
  turbo::Block& block = *turbo::running;
  if (reinterpret_cast<uintptr_t>(shared) % 16 != 0) block.fail("cp_async_16: `shared` is no multiple of 16");
  if (!block.is_shared(shared, 16)) block.fail("cp_async_16: `shared` lies outside shared memory");
  if (bytes > 16) block.fail("cp_async_16: %u bytes of 16", bytes);
  if (bytes > 0 && reinterpret_cast<uintptr_t>(global) % 16 != 0) block.fail("cp_async_16: `global` is no multiple of 16");
  turbo::Thread& self = block.self();
  turbo::Copy copy = {static_cast<char*>(shared), self.groups, {}};
  if (bytes > 0) std::memcpy(copy.bytes, global, bytes);
  std::memset(shared, 0xff, 16);
  self.copies.push_back(copy);
}

// Ends a group of copies.
inline void cp_async_commit() { turbo::running->self().groups += 1; }

// Waits for all groups of this thread but the NEWEST last ones.
template <int NEWEST>
inline void cp_async_wait() {
  turbo::Thread& self = turbo::running->self();
  size_t left = 0;
  for (const turbo::Copy& copy : self.copies) {
    if (copy.group + NEWEST < self.groups) {
      std::memcpy(copy.to, copy.bytes, 16);
      self.landed.push_back(copy.to);
    } else {
      self.copies[left++] = copy;
    }
  }
  self.copies.resize(left);
}
