// Products of four warps: registers and a matrix in shared memory in, registers out. And kernels that are wrong.

// in: for each thread 4 registers of a, then the matrix as it lies in shared memory. out: for each thread the first sum
// before it is waited for, then the sums of two products, the second added to the first.
template <class T, int EIGHTS, unsigned BYTES, bool COLUMNS>
__device__ void products(const unsigned* in, unsigned* out) {
  extern __shared__ __align__(1024) unsigned tile[];
  constexpr unsigned ROWS = COLUMNS ? 32 : 8 * EIGHTS, NEXT = COLUMNS ? 16 * BYTES : 32;
  for (unsigned i = threadIdx.x; i < ROWS * BYTES / 4; i += blockDim.x) tile[i] = in[4 * blockDim.x + i];
  wgmma_fence_shared();
  __syncthreads();
  const unsigned* own = in + 4 * threadIdx.x;
  const unsigned a[4] = {own[0], own[1], own[2], own[3]};
  float d[EIGHTS][4] = {};
  wgmma_fence(d);
  wgmma<T, EIGHTS, BYTES, COLUMNS>(d, a, tile, 0, false);
  wgmma<T, EIGHTS, BYTES, COLUMNS>(d, a, tile, NEXT, true);
  wgmma_commit();
  unsigned* to = out + (1 + 4 * EIGHTS) * threadIdx.x;
  to[0] = __float_as_uint(d[0][0]);
  wgmma_wait<0>(d);
  for (int i = 0; i < 4 * EIGHTS; ++i) to[1 + i] = __float_as_uint(d[i / 4][i % 4]);
}

#define PRODUCTS(TYPE, T, NAME, EIGHTS, BYTES, COLUMNS)                                          \
  extern "C" __global__ void products_##TYPE##_##NAME(const unsigned* in, unsigned* out) {       \
    products<T, EIGHTS, BYTES, COLUMNS>(in, out);                                                \
  }
PRODUCTS(f16, half_t, rows_128, 8, 128, false)
PRODUCTS(f16, half_t, rows_64, 4, 64, false)
PRODUCTS(bf16, bf16_t, columns_128, 8, 128, true)
PRODUCTS(bf16, bf16_t, columns_64, 4, 64, true)

// Adds the first 16 columns of 64 rows at `tile`.
__device__ void begin(float (&d)[8][4], const unsigned (&a)[4], const void* tile) {
  wgmma<half_t, 8, 128, false>(d, a, tile, 0, true);
  wgmma_commit();
}

__device__ void begin_and_wait(const void* tile) {
  float d[8][4] = {};
  const unsigned a[4] = {};
  wgmma_fence(d);
  begin(d, a, tile);
  wgmma_wait<0>(d);
}

extern "C" __global__ void no_mistake(const unsigned*, unsigned*) {
  extern __shared__ __align__(1024) uint4 tile[];
  begin_and_wait(tile);
}

extern "C" __global__ void registers_without_fence(const unsigned*, unsigned*) {
  extern __shared__ __align__(1024) uint4 tile[];
  float d[8][4] = {};
  const unsigned a[4] = {};
  begin(d, a, tile);
}

extern "C" __global__ void second_wave_without_fence(const unsigned*, unsigned*) {
  extern __shared__ __align__(1024) uint4 tile[];
  float d[8][4] = {};
  const unsigned a[4] = {};
  wgmma_fence(d);
  begin(d, a, tile);
  wgmma_wait<0>(d);
  begin(d, a, tile);
}

extern "C" __global__ void copies_without_fence(const unsigned* in, unsigned*) {
  extern __shared__ __align__(1024) uint4 tile[];
  cp_async_16(tile + threadIdx.x, in);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  begin_and_wait(tile);
}

extern "C" __global__ void writes_what_is_read(const unsigned*, unsigned*) {
  extern __shared__ __align__(1024) uint4 tile[];
  float d[8][4] = {};
  const unsigned a[4] = {};
  wgmma_fence(d);
  begin(d, a, tile);
  tile[threadIdx.x] = {};
  wgmma_wait<0>(d);
}

extern "C" __global__ void changes_its_registers(const unsigned* in, unsigned*) {
  extern __shared__ __align__(1024) uint4 tile[];
  float d[8][4] = {};
  unsigned a[4] = {};
  wgmma_fence(d);
  wgmma<half_t, 8, 128, false>(d, a, tile, 0, true);
  wgmma_commit();
  a[3] = in[0] + 1;
  wgmma_wait<0>(d);
}

extern "C" __global__ void without_a_warp(const unsigned*, unsigned*) {
  extern __shared__ __align__(1024) uint4 tile[];
  if (threadIdx.x / 32 != 2) begin_and_wait(tile);
}

extern "C" __global__ void off_eight_rows(const unsigned*, unsigned*) {
  extern __shared__ __align__(1024) uint4 tile[];
  begin_and_wait(tile + 8);
}

extern "C" __global__ void outside_shared(const unsigned* in, unsigned*) { begin_and_wait(in); }
