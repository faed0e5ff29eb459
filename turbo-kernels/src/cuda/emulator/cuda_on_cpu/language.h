// CUDA's additions to the language.

#define __global__
#define __device__
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

#define threadIdx (turbo::Vec3{turbo::running->thread, 0, 0})
#define blockIdx (turbo::running->index)
#define blockDim (turbo::running->size)
#define gridDim (turbo::running->grid_size)

// The dynamic shared memory of the block, aligned to 16 bytes. `extern __shared__ T name[];` becomes a pointer to it
// before the unit is compiled, since no macro can do that.
inline void* dynamic_shared() { return turbo::running->shared; }

struct alignas(4 * sizeof(unsigned)) uint4 {
  unsigned x, y, z, w;
};
