// Kernels that touch memory beside what they were given: 100 values to read and to write, 32 in shared memory.

extern "C" __global__ void reads_behind_its_allocation(const unsigned* in, unsigned* out) {
  out[threadIdx.x] = in[100 + threadIdx.x / 31];
}

extern "C" __global__ void reads_behind_its_view(const unsigned* in, unsigned* out) {
  const unsigned value = in[100 - 31 + threadIdx.x];  // a lane too many, of whose value nothing is written
  const unsigned next = __shfl_down_sync(FULL_WARP, value, 1);
  if (threadIdx.x < 30) out[threadIdx.x] = next;
}

extern "C" __global__ void writes_before_its_view(const unsigned*, unsigned* out) {
  if (threadIdx.x == 31) out[-2] = 1;
}

extern "C" __global__ void reads_behind_shared(const unsigned*, unsigned* out) {
  extern __shared__ unsigned shared[];
  out[threadIdx.x] = shared[threadIdx.x + 1];
}
