// Conversion of arrays of float16 by the processor's F16C instructions, eight values at a time. The last values, and
// all values on other processors, are converted one by one.
#include "engine/base/half.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace matex {
namespace {

#if defined(__x86_64__)

// Checked at run time, because the build machine may have another processor. Not every supported compiler knows
// "f16c" by name, so `cpuid` tells of it. The check of "avx" includes the system's support for the registers.
bool HasInstructions() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  }();
  return has;
}

// Both functions return the number of converted values, a multiple of 8.
__attribute__((target("avx,f16c"))) int64_t LoadEights(const Float16* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  return i;
}

__attribute__((target("avx,f16c"))) int64_t StoreEights(const float* from, Float16* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i eight = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), eight);
  }
  return i;
}

#else

bool HasInstructions() { return false; }
int64_t LoadEights(const Float16*, float*, int64_t) { return 0; }
int64_t StoreEights(const float*, Float16*, int64_t) { return 0; }

#endif

}  // namespace

void Load(const Float16* from, float* to, int64_t count) {
  int64_t i = HasInstructions() ? LoadEights(from, to, count) : 0;
  for (; i < count; ++i) to[i] = Float16::Load(from[i]);
}

void Store(const float* from, Float16* to, int64_t count) {
  int64_t i = HasInstructions() ? StoreEights(from, to, count) : 0;
  for (; i < count; ++i) to[i] = Float16::Store(from[i]);
}

}  // namespace matex
