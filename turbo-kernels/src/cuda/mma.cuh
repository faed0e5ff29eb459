// What kernels on the tensor cores need of the machine beside section 1 of common.cuh, behind which this stands. On
// the CPU the emulator has it.

#ifndef TURBO_ON_CPU

// 2^value, off by about 2 units in the last place; 0 where that is below the normal numbers, which exp2f takes three
// more instructions for.
__device__ __forceinline__ float exp2_approx(float value) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
  return power;
}

#endif
