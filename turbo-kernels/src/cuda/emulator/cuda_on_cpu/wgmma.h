// Products of four warps at once: see wgmma.cuh.
//
// They are computed when they begin, and their sums appear when they are waited for: until then the sums are NaN, and
// the operands, in registers and in shared memory, must not change.

namespace turbo {

// d (+)= a · b for the 16 rows of a warp. The fragments of a and d are those of multiply_add; each sum is rounded once.
template <class Widen>
void begin_product(const char* name, float (*d)[4], const unsigned (&a)[4], const Matrix& b, bool add) {
  if (!running->self().fenced) running->fail("%s: no wgmma_fence since the last wait", name);
  struct Operands {
    float (*d)[4];
    const unsigned* a;
    const Matrix* b;
    const char* name;
    bool add;
  } own = {d, a, &b, name, add};
  running->collective<Operands>(name, 0xffffffffu, own, [](Operands* const* lanes, unsigned) {
    Block& block = *running;
    const Matrix& matrix = *lanes[0]->b;
    const char* name = lanes[0]->name;
    if (!block.is_shared(matrix.first(), matrix.bytes())) block.fail("%s: the matrix lies outside shared memory", name);
    if ((matrix.tile - block.shared) % (8 * matrix.row_bytes) != 0 || matrix.offset % 16 != 0) {
      block.fail("%s: the matrix does not begin at a multiple of eight rows", name);
    }
    if (block.is_landing(matrix.first(), matrix.bytes())) {
      block.fail("%s: copies to the matrix have landed without wgmma_fence_shared", name);
    }
    const std::vector<unsigned short> bits = matrix.values();
    double a[16][16];
    std::vector<double> b;
    for (unsigned short value : bits) b.push_back(Widen::of(value));
    for (unsigned lane = 0; lane < WARP; ++lane) {
      for (unsigned i = 0; i < 8; ++i) {
        const unsigned short value = static_cast<unsigned short>(lanes[lane]->a[i / 2] >> 16 * (i % 2));
        a[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i / 4 * 8 + i % 2] = Widen::of(value);
      }
    }
    for (unsigned lane = 0; lane < WARP; ++lane) {
      Thread& thread = block.thread_of_warp(lane);
      Product& product = thread.product(lanes[lane]->d, matrix.width / 8);
      const unsigned* from = lanes[lane]->a;
      thread.fragments.push_back({from, {from[0], from[1], from[2], from[3]}, thread.product_groups});
      for (unsigned i = 0; i < matrix.width / 2; ++i) {
        const unsigned row = lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        double sum = lanes[lane]->add ? product.sums[i / 4][i % 4] : 0.0;
        for (unsigned k = 0; k < 16; ++k) sum += a[row][k] * b[k * matrix.width + column];
        product.sums[i / 4][i % 4] = static_cast<float>(sum);
      }
    }
    Thread& first = block.thread_of_warp(0);
    first.reads.push_back({matrix, bits, first.product_groups});
    first.begun += 1;
  });
}

}  // namespace turbo

template <int EIGHTS, unsigned BYTES, bool COLUMNS>
inline void wgmma_f16(float (*d)[4], const unsigned (&a)[4], const void* tile, unsigned offset, bool add) {
  const turbo::Matrix b = {static_cast<const char*>(tile), offset, BYTES, 8 * EIGHTS, COLUMNS};
  turbo::begin_product<turbo::WidenF16>("wgmma_f16", d, a, b, add);
}
template <int EIGHTS, unsigned BYTES, bool COLUMNS>
inline void wgmma_bf16(float (*d)[4], const unsigned (&a)[4], const void* tile, unsigned offset, bool add) {
  const turbo::Matrix b = {static_cast<const char*>(tile), offset, BYTES, 8 * EIGHTS, COLUMNS};
  turbo::begin_product<turbo::WidenBf16>("wgmma_bf16", d, a, b, add);
}

template <int EIGHTS>
inline void wgmma_fence(float (&)[EIGHTS][4]) {
  turbo::running->self().fenced = true;
}

inline void wgmma_commit() { turbo::running->self().product_groups += 1; }

// Waits for all groups but the NEWEST last ones, and stores their sums.
template <int NEWEST, int EIGHTS>
inline void wgmma_wait(float (&)[EIGHTS][4]) {
  turbo::Thread& self = turbo::running->self();
  const auto is_over = [&](const auto& begun) { return begun.group + NEWEST < self.product_groups; };
  for (const turbo::Read& read : self.reads) {
    if (is_over(read) && read.matrix.values() != read.values) {
      turbo::running->fail("wgmma_wait: what a product reads has been overwritten");
    }
  }
  for (const turbo::Product& product : self.products) {
    if (is_over(product)) std::memcpy(product.d, product.sums, product.eights * sizeof product.sums[0]);
  }
  for (const turbo::Fragment& fragment : self.fragments) {
    if (is_over(fragment) && std::memcmp(fragment.from, fragment.values, sizeof fragment.values) != 0) {
      turbo::running->fail("wgmma_wait: registers that a product reads have been changed");
    }
  }
  self.reads.erase(std::remove_if(self.reads.begin(), self.reads.end(), is_over), self.reads.end());
  self.fragments.erase(std::remove_if(self.fragments.begin(), self.fragments.end(), is_over), self.fragments.end());
  self.products.erase(std::remove_if(self.products.begin(), self.products.end(), is_over), self.products.end());
  if (NEWEST == 0) self.fenced = false;
}

inline void wgmma_fence_shared() { turbo::running->self().landed.clear(); }
