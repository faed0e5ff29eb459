// Instructions of the tensor cores: registers in, registers out.

// in: for each lane 4 registers of a, 2 of b, 4 floats; out: for each lane 4 floats.
template <class T>
__device__ void mma(const unsigned* in, unsigned* out) {
  const unsigned* own = in + 10 * threadIdx.x;
  const unsigned a[4] = {own[0], own[1], own[2], own[3]}, b[2] = {own[4], own[5]};
  float sum[4];
  for (int i = 0; i < 4; ++i) sum[i] = __uint_as_float(own[6 + i]);
  mma_m16n8k16<T>(sum, a, b);
  for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = __float_as_uint(sum[i]);
}

extern "C" __global__ void mma_f16(const unsigned* in, unsigned* out) { mma<half_t>(in, out); }
extern "C" __global__ void mma_bf16(const unsigned* in, unsigned* out) { mma<bf16_t>(in, out); }

// in: 32 rows of 8 values of 16 bits, row by row; out: for each lane 4 registers, and 4 of the transposed matrices.
extern "C" __global__ void matrices(const unsigned* in, unsigned* out) {
  extern __shared__ uint4 rows[];
  unsigned* words = reinterpret_cast<unsigned*>(rows + threadIdx.x);
  for (int i = 0; i < 4; ++i) words[i] = in[4 * threadIdx.x + i];
  __syncwarp();
  unsigned to[4], transposed[4];
  ldmatrix_x4(to, rows + threadIdx.x);
  ldmatrix_x4_trans(transposed, rows + threadIdx.x);
  for (int i = 0; i < 4; ++i) {
    out[8 * threadIdx.x + i] = to[i];
    out[8 * threadIdx.x + 4 + i] = transposed[i];
  }
}

// Two groups of copies, of 16 and of 6 bytes: the contents before the first wait, after it, and after the second.
extern "C" __global__ void copies(const unsigned* in, unsigned* out) {
  extern __shared__ uint4 shared[];
  cp_async_16(shared, in);
  cp_async_commit();
  cp_async_16(shared + 1, in + 4, 6);
  cp_async_16(shared + 2, nullptr, 0);
  cp_async_commit();
  const unsigned* words = reinterpret_cast<const unsigned*>(shared);
  for (int i = 0; i < 12; ++i) out[i] = words[i];
  cp_async_wait<1>();
  for (int i = 0; i < 12; ++i) out[12 + i] = words[i];
  cp_async_wait<0>();
  for (int i = 0; i < 12; ++i) out[24 + i] = words[i];
}

// in: bits of f32; out: bits of the nearest f16, of the nearest bf16, and of the f16 of the lower half of in widened.
extern "C" __global__ void conversions(const unsigned* in, unsigned* out) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  out[3 * i] = f32_to_f16(__uint_as_float(in[i]));
  out[3 * i + 1] = f32_to_bf16(__uint_as_float(in[i]));
  out[3 * i + 2] = __float_as_uint(f16_to_f32(in[i] & 0xffff));
}
