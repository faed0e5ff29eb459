// Products of four warps at once, by the instructions that only compute capability 9.0 has (`sm_90a`). This file stands
// behind common.cuh. On the CPU the emulator provides them.
//
// All threads of the four warps take part in every call; the number of the first warp is a multiple of four. A call
// only begins a product: until the product has been waited for, its sums must not be touched, its operands in registers
// not changed, and its operands in shared memory not written.

#ifndef TURBO_ON_CPU

// A matrix in shared memory with rows of BYTES = 64 or 128 bytes, swizzled over as many bytes, as the PTX manual
// describes it ("matrix descriptor"): the upper half holds the layout, the lower half the place; the step from eight
// rows to the next eight is in both.
template <unsigned BYTES>
constexpr unsigned WGMMA_LAYOUT = 8 * BYTES / 16 | (BYTES == 128 ? 1u : 2u) << 30;
template <unsigned BYTES>
__device__ __forceinline__ unsigned wgmma_place(const void* tile, unsigned offset) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(tile));
  return (address >> 4) + ((8 * BYTES / 16) << 16) + (offset >> 4);
}

#define WGMMA_SUMS(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define WGMMA_64(TYPE)                                                                                               \
  asm volatile(                                                                                                      \
      "{ .reg .pred p; .reg .b64 b; mov.b64 b, {%36, %37}; setp.ne.b32 p, %38, 0;\n"                                 \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE                                                    \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28," \
      "%29,%30,%31}, {%32,%33,%34,%35}, b, p, 1, 1, %39; }"                                                          \
      : WGMMA_SUMS(0), WGMMA_SUMS(1), WGMMA_SUMS(2), WGMMA_SUMS(3), WGMMA_SUMS(4), WGMMA_SUMS(5), WGMMA_SUMS(6),     \
        WGMMA_SUMS(7)                                                                                                \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(place), "r"(WGMMA_LAYOUT<BYTES>), "r"(int{add}),             \
        "n"(int{COLUMNS})                                                                                            \
      : "memory")
#define WGMMA_32(TYPE)                                                                                               \
  asm volatile(                                                                                                      \
      "{ .reg .pred p; .reg .b64 b; mov.b64 b, {%20, %21}; setp.ne.b32 p, %22, 0;\n"                                 \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE                                                    \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, b, p, 1, 1, %23; }"              \
      : WGMMA_SUMS(0), WGMMA_SUMS(1), WGMMA_SUMS(2), WGMMA_SUMS(3)                                                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(place), "r"(WGMMA_LAYOUT<BYTES>), "r"(int{add}),             \
        "n"(int{COLUMNS})                                                                                            \
      : "memory")

// Begins d[64, N] = a[64, 16] · b[16, N], plus d if `add`, N = 8 · EIGHTS. A warp has 16 rows of d and a, in the
// fragments of mma_m16n8k16_f16. b begins `offset` bytes, a multiple of 16, behind `tile`, which is aligned to eight
// rows. With COLUMNS, the rows there are those of b. Otherwise they are b's columns, with 16 values each.
template <int EIGHTS, unsigned BYTES, bool COLUMNS>
__device__ __forceinline__ void wgmma_f16(float (*d)[4], const unsigned (&a)[4], const void* tile, unsigned offset,
                                          bool add) {
  static_assert(EIGHTS == 4 || EIGHTS == 8, "sizes that there are");
  const unsigned place = wgmma_place<BYTES>(tile, offset);
  if constexpr (EIGHTS == 8) {
    WGMMA_64("f16");
  } else {
    WGMMA_32("f16");
  }
}

template <int EIGHTS, unsigned BYTES, bool COLUMNS>
__device__ __forceinline__ void wgmma_bf16(float (*d)[4], const unsigned (&a)[4], const void* tile, unsigned offset,
                                           bool add) {
  static_assert(EIGHTS == 4 || EIGHTS == 8, "sizes that there are");
  const unsigned place = wgmma_place<BYTES>(tile, offset);
  if constexpr (EIGHTS == 8) {
    WGMMA_64("bf16");
  } else {
    WGMMA_32("bf16");
  }
}

// Called before products that begin when none is under way: makes the writes to `d` and the other operands in registers
// visible to them.
template <int EIGHTS>
__device__ __forceinline__ void wgmma_fence(float (&d)[EIGHTS][4]) {
#pragma unroll
  for (int eight = 0; eight < EIGHTS; ++eight) asm volatile("" : WGMMA_SUMS(eight));
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Ends a group of products.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most the NEWEST last groups are under way: `d`, of an earlier group, may be touched again.
template <int NEWEST, int EIGHTS>
__device__ __forceinline__ void wgmma_wait(float (&d)[EIGHTS][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(NEWEST) : "memory");
#pragma unroll
  for (int eight = 0; eight < EIGHTS; ++eight) asm volatile("" : WGMMA_SUMS(eight));
}

// Makes this thread's writes to shared memory visible to products behind the next barrier.
__device__ __forceinline__ void wgmma_fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif

template <class T>
constexpr bool IS_F16 = false;
template <>
constexpr bool IS_F16<half_t> = true;

// See wgmma_f16.
template <class T, int EIGHTS, unsigned BYTES, bool COLUMNS>
__device__ __forceinline__ void wgmma(float (*d)[4], const unsigned (&a)[4], const void* tile, unsigned offset,
                                      bool add) {
  if constexpr (IS_F16<T>) {
    wgmma_f16<EIGHTS, BYTES, COLUMNS>(d, a, tile, offset, add);
  } else {
    wgmma_bf16<EIGHTS, BYTES, COLUMNS>(d, a, tile, offset, add);
  }
}
