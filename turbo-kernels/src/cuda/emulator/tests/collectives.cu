// Each lane's result of a collective, for a test on the host. `in` holds a kernel's parameters.

// out[lane] = the value that the lane gets; in = {which, operand, width}.
extern "C" __global__ void shuffle(const unsigned* in, unsigned* out) {
  const unsigned lane = threadIdx.x, value = 100 + lane;
  const int operand = in[1], width = in[2];
  unsigned got = 0;
  if (in[0] == 0) got = __shfl_sync(FULL_WARP, value, operand, width);
  if (in[0] == 1) got = __shfl_up_sync(FULL_WARP, value, operand, width);
  if (in[0] == 2) got = __shfl_down_sync(FULL_WARP, value, operand, width);
  if (in[0] == 3) got = __shfl_xor_sync(FULL_WARP, value, operand, width);
  out[lane] = got;
}

// The upper half of a value of 8 bytes, and a float.
extern "C" __global__ void shuffle_types(const unsigned* in, unsigned* out) {
  const u64 wide = __shfl_xor_sync(FULL_WARP, u64{threadIdx.x} << 32 | 7, 1);
  const float single = __shfl_xor_sync(FULL_WARP, static_cast<float>(threadIdx.x), 1);
  out[threadIdx.x] = static_cast<unsigned>(wide >> 32) * 1000 + static_cast<unsigned>(single);
}

// Even and odd lanes vote separately, then together, on whether in[lane] is set.
extern "C" __global__ void votes(const unsigned* in, unsigned* out) {
  const unsigned lane = threadIdx.x % 32, mask = lane % 2 ? 0xaaaaaaaau : 0x55555555u;
  unsigned* own = out + 5 * threadIdx.x;
  own[4] = __activemask();
  if (lane % 2) {
    own[0] = __ballot_sync(mask, in[threadIdx.x]);
  } else {
    own[0] = __ballot_sync(mask, in[threadIdx.x]);
  }
  own[1] = __any_sync(mask, in[threadIdx.x]);
  own[2] = __all_sync(mask, in[threadIdx.x]);
  __syncwarp();
  own[3] = __ballot_sync(FULL_WARP, in[threadIdx.x]);
}

// A lane that does not take part gives no value: all bits 1.
extern "C" __global__ void shuffle_from_outside(const unsigned*, unsigned* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, threadIdx.x, 16);
}

// out = the values of the block from the last to the first, through both kinds of shared memory, twice.
extern "C" __global__ void reverse(const unsigned* in, unsigned* out) {
  __shared__ unsigned fixed[1024];
  extern __shared__ unsigned dynamic[];
  const unsigned first = blockIdx.x * blockDim.x, opposite = blockDim.x - 1 - threadIdx.x;
  unsigned value = in[first + threadIdx.x];
  for (int i = 0; i < 3; ++i) {
    fixed[threadIdx.x] = value;
    __syncthreads();
    value = fixed[opposite];
    dynamic[threadIdx.x] = value;
    __syncthreads();
    value = dynamic[opposite];
  }
  fixed[threadIdx.x] = value;
  __syncthreads();
  out[first + threadIdx.x] = fixed[opposite];
}

// The contents of shared memory before anything is written there.
extern "C" __global__ void unwritten(const unsigned*, unsigned* out) {
  __shared__ unsigned fixed[32];
  extern __shared__ unsigned dynamic[];
  out[2 * (blockIdx.x * 32 + threadIdx.x)] = fixed[threadIdx.x];
  out[2 * (blockIdx.x * 32 + threadIdx.x) + 1] = dynamic[threadIdx.x];
  fixed[threadIdx.x] = dynamic[threadIdx.x] = 1;
}

extern "C" __global__ void place(const unsigned*, unsigned* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  out[block * blockDim.x + threadIdx.x] = ((blockIdx.x * 10 + blockIdx.y) * 10 + blockIdx.z) * 1000 + threadIdx.x;
}

extern "C" __global__ void atomics(const unsigned* in, unsigned* out) {
  const unsigned value = in[threadIdx.x];
  atomicAdd(out, value);
  atomicMax(out + 1, value);
  atomicMin(out + 2, value);
  if (atomicCAS(out + 3, 0u, value) == 0) atomicExch(out + 4, threadIdx.x);
}

// The order in which threads begin.
extern "C" __global__ void order(const unsigned*, unsigned* out) { out[1 + atomicAdd(out, 1u)] = threadIdx.x; }

// Whether any thread of the block has in[thread] at one barrier, and whether any has 2 at the next.
extern "C" __global__ void votes_of_a_block(const unsigned* in, unsigned* out) {
  const int any = __syncthreads_or(in[threadIdx.x]), any_two = __syncthreads_or(in[threadIdx.x] == 2);
  __syncthreads();
  out[threadIdx.x] = (any ? 1 : 0) + (any_two ? 2 : 0) + (__syncthreads_or(0) ? 4 : 0);
}
