// Activations of values in registers: the twin of `activation.rs`, with the same errors.

// As the enum `Activation` numbers them.
enum Activation : unsigned { GELU_ERF, GELU_TANH, RELU, SILU, TANH, SIGMOID, LOG_1P_RELU };

// −|x|, but not below −most, where 1 − Φ is practically 0 and an infinite magnitude would turn it into NaN. NaN stays
// NaN.
__device__ __forceinline__ float minus_magnitude(float x, float most) {
  const float minus = -fabsf(x);
  return minus < -most ? -most : minus;
}

// x · Φ(x) = max(x, 0) − |x| · (1 − Φ(|x|)) from minus = −|x| and an approximation of 1 − Φ(|x|). The approximation's
// error has little effect: where x is large it is far below max(x, 0), and where x is small it is multiplied by x.
__device__ __forceinline__ float by_complement(float x, float minus, float complement) {
  return fmaf(minus, complement, fmaxf(x, 0.0f));
}

__device__ __forceinline__ float odds_to_chance(float odds) { return odds / (1.0f + odds); }

// x · Φ(x) with the error function, off by at most 3e-7 · max(1, |x|): the logarithm of 1 − Φ is so smooth that a
// polynomial and an exponential suffice. The coefficients are our minimax fit up to 8, see `activation.rs`. The
// exponential is a normal number, so `exp2_approx` gives the bits of exp2f.
__device__ __forceinline__ float gelu_erf(float x) {
  const float minus = minus_magnitude(x, 8.0f);
  float log = 0.000025688512f;
  log = fmaf(log, minus, 0.0007082161f);
  log = fmaf(log, minus, 0.007891644f);
  log = fmaf(log, minus, 0.053134482f);
  log = fmaf(log, minus, -0.4589703f);
  log = fmaf(log, minus, 1.1511374f);
  log = fmaf(log, minus, -1.0f);
  return by_complement(x, minus, exp2_approx(log));
}

// x/2 · (1 + tanh u) = x · sigmoid(2u) with u = √(2/π) · (x + 0.044715·x³); the factors are 2·√(2/π)·log₂e and that
// times 0.044715. The exponential is a normal number here, too.
__device__ __forceinline__ float gelu_tanh(float x) {
  const float minus = minus_magnitude(x, 10.0f);
  const float log = minus * fmaf(minus * minus, 0.10294324f, 2.3022082f);
  return by_complement(x, minus, odds_to_chance(exp2_approx(log)));
}

// x · sigmoid(x)
__device__ __forceinline__ float silu(float x) {
  const float minus = minus_magnitude(x, 87.0f);
  return by_complement(x, minus, odds_to_chance(expf(minus)));
}

// 1 / (1 + e^(−x)), computed with e^(−|x|), so nothing overflows.
__device__ __forceinline__ float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// max(x, 0); not fmaxf, which ignores NaN.
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

// v[i] <- activation(v[i]). The activation is the same for the whole launch, so no warp diverges.
template <int N>
__device__ __forceinline__ void activate(Activation activation, float (&v)[N]) {
#define EACH(function)            \
  _Pragma("unroll")               \
  for (int i = 0; i < N; ++i) v[i] = function; \
  break
  switch (activation) {
    case GELU_ERF: EACH(gelu_erf(v[i]));
    case GELU_TANH: EACH(gelu_tanh(v[i]));
    case RELU: EACH(relu(v[i]));
    case SILU: EACH(silu(v[i]));
    case TANH: EACH(tanhf(v[i]));
    case SIGMOID: EACH(sigmoid(v[i]));
    case LOG_1P_RELU: EACH(log1pf(relu(v[i])));
  }
#undef EACH
}
