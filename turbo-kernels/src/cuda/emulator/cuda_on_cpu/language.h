// What CUDA adds to the language.

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

#define threadIdx (turbo::Vec3{turbo::running->thread, 0, 0})
#define blockIdx (turbo::running->index)
#define blockDim (turbo::running->size)
#define gridDim (turbo::running->grid_size)
constexpr int warpSize = 32;

// The dynamic shared memory of the block, aligned to 16 bytes. `extern __shared__ T name[];` becomes a pointer to it before
// the unit is compiled, as no macro can make it one.
inline void* dynamic_shared() { return turbo::running->shared; }

#define TURBO_VECTORS(type, name)                                                                                  \
  struct alignas(2 * sizeof(type)) name##2 { type x, y; };                                                         \
  struct alignas(4 * sizeof(type)) name##4 { type x, y, z, w; };                                                   \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }                                                 \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
TURBO_VECTORS(float, float)
TURBO_VECTORS(int, int)
TURBO_VECTORS(unsigned, uint)
#undef TURBO_VECTORS

template <class T>
inline T __ldg(const T* from) {
  return *from;
}
template <class T>
inline T __ldcs(const T* from) {
  return *from;
}
template <class T>
inline void __stcs(T* to, T value) {
  *to = value;
}
