// Bits, rounding, fast functions, atomics.

namespace turbo {

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same number of bits");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <class T, class Join>
T atomic(T* at, Join join) {
  const T old = *at;
  *at = join(old);
  return old;
}

}  // namespace turbo

inline unsigned __float_as_uint(float value) { return turbo::bits_as<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return turbo::bits_as<float>(bits); }

inline float f16_to_f32(unsigned short bits) {
  const unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ffu;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

// Rounds to nearest, ties to even; any NaN becomes the hardware's one.
inline unsigned short f32_to_f16(float value) {
  const unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // from halfway between the greatest and 2^16
  if (magnitude < 0x38800000u) {
    // the steps are 2^-24, and adding 1/2 rounds to them
    return sign | (__float_as_uint(__uint_as_float(magnitude) + 0.5f) - __float_as_uint(0.5f));
  }
  return sign | (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
}

inline unsigned short f32_to_bf16(float value) {
  const unsigned bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

// `low` in the lower 16 bits.
inline unsigned f32_to_f16x2(float low, float high) { return f32_to_f16(low) | unsigned{f32_to_f16(high)} << 16; }
inline unsigned f32_to_bf16x2(float low, float high) { return f32_to_bf16(low) | unsigned{f32_to_bf16(high)} << 16; }

// A macro, as libm may have a function of this name.
#define rsqrtf(x) (1.0f / sqrtf(x))
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }

// Like ex2.approx.ftz: without subnormal results.
inline float exp2_approx(float value) {
  const float power = exp2f(value);
  return power < 0x1p-126f ? 0.0f : power;
}

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline unsigned long long min(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
inline unsigned long long max(unsigned long long a, unsigned long long b) { return a > b ? a : b; }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits)); }

// One system thread runs a launch, and fibers do not switch inside these functions.
template <class T>
inline T atomicAdd(T* at, T value) {
  return turbo::atomic(at, [=](T old) { return old + value; });
}
template <class T>
inline T atomicMax(T* at, T value) {
  return turbo::atomic(at, [=](T old) { return old > value ? old : value; });
}
template <class T>
inline T atomicMin(T* at, T value) {
  return turbo::atomic(at, [=](T old) { return old < value ? old : value; });
}
template <class T>
inline T atomicExch(T* at, T value) {
  return turbo::atomic(at, [=](T) { return value; });
}
template <class T>
inline T atomicCAS(T* at, T expected, T value) {
  return turbo::atomic(at, [=](T old) { return old == expected ? value : old; });
}
