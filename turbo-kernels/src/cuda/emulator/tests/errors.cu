// Wrong kernels.

extern "C" __global__ void names_a_lane_that_has_returned(const unsigned*, unsigned*) {
  if (threadIdx.x == 3) return;
  __syncwarp();
}

extern "C" __global__ void does_not_name_itself(const unsigned*, unsigned*) { __syncwarp(1u << (threadIdx.x + 1) % 32); }

extern "C" __global__ void names_all(const unsigned*, unsigned*) { __syncwarp(); }

extern "C" __global__ void in_different_collectives(const unsigned*, unsigned*) {
  if (threadIdx.x % 2) {
    __shfl_xor_sync(FULL_WARP, 1, 1);
  } else {
    __syncwarp();
  }
}

extern "C" __global__ void with_different_masks(const unsigned*, unsigned*) {
  if (threadIdx.x < 3) __syncwarp(threadIdx.x == 2 ? 6u : 7u);
}

extern "C" __global__ void not_all_at_the_barrier(const unsigned*, unsigned*) {
  if (threadIdx.x != 40) __syncthreads();
}

extern "C" __global__ void barrier_and_collective(const unsigned*, unsigned*) {
  if (threadIdx.x == 7) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

extern "C" __global__ void writes_behind_shared(const unsigned*, unsigned*) {
  extern __shared__ unsigned shared[];
  shared[threadIdx.x] = 0;
}

extern "C" __global__ void matrix_off_its_alignment(const unsigned*, unsigned*) {
  extern __shared__ uint4 rows[];
  unsigned to[4];
  ldmatrix_x4(to, reinterpret_cast<const char*>(rows) + 8);
}

extern "C" __global__ void matrix_outside_shared(const unsigned* in, unsigned*) {
  unsigned to[4];
  ldmatrix_x4(to, in);
}

extern "C" __global__ void copy_off_its_alignment(const unsigned* in, unsigned*) {
  extern __shared__ uint4 rows[];
  cp_async_16(rows, in + 1);
}

extern "C" __global__ void copy_outside_shared(const unsigned* in, unsigned* out) { cp_async_16(out, in); }
