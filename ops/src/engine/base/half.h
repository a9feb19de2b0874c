// Conversion of float16 and bfloat16 to and from float32, rounding to nearest, ties to even; of single values and of
// arrays. All sums of 16-bit floats use it.
#pragma once

#include <cstdint>
#include <cstring>

namespace matex {

inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

struct Bfloat16 {
  uint16_t bits;

  static float Load(Bfloat16 value) { return FloatOf(static_cast<uint32_t>(value.bits) << 16); }

  static Bfloat16 Store(float value) {
    const uint32_t bits = BitsOf(value);
    // The lower 16 bits are cut off below. Adding half of the last kept bit rounds to nearest; less by one if that bit
    // is 0, so that a tie goes to the even value.
    const uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
    const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    // Rounding could turn a NaN into infinity; a quiet bit keeps it NaN.
    return {static_cast<uint16_t>((is_nan ? bits | 0x400000u : rounded) >> 16)};
  }
};

struct Float16 {
  uint16_t bits;

  static float Load(Float16 value) {
    const uint32_t magnitude = value.bits & 0x7FFFu;
    const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
    const uint32_t normal = (magnitude << 13) + 0x38000000u;  // the difference of the biases, 127 - 15, is added
    // Multiples of 2^-24. No float32 here is subnormal: TensorFlow's threads take subnormal numbers for 0.
    const uint32_t subnormal = BitsOf(static_cast<float>(magnitude) * 0x1p-24f);
    const uint32_t special = 0x7F800000u | (magnitude << 13);  // infinity or NaN
    uint32_t bits = magnitude < 0x400u ? subnormal : normal;
    bits = magnitude >= 0x7C00u ? special : bits;
    return FloatOf(bits | sign);
  }

  static Float16 Store(float value) {
    const uint32_t bits = BitsOf(value);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    const uint32_t sign = (bits >> 16) & 0x8000u;
    // Below 2^-14 a float16 is subnormal: adding 0.5 makes the float32 adder round at the right bit. Then the bits of
    // 0.5 are subtracted.
    const uint32_t subnormal = BitsOf(FloatOf(magnitude) + 0.5f) - 0x3F000000u;
    // The exponent loses the difference of the biases, 127 - 15. Then 13 bits are rounded off, as in Bfloat16::Store.
    const uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude >= 0x477FF000u ? 0x7C00u : half;  // infinity from 65520 on, which would round to 65536
    half = magnitude > 0x7F800000u ? 0x7E00u : half;   // NaN
    return {static_cast<uint16_t>(half | sign)};
  }
};

// Arrays. float16 uses the processor's F16C instructions if available (x86-64 since 2013).
void Load(const Float16* from, float* to, int64_t count);
void Store(const float* from, Float16* to, int64_t count);

inline void Load(const Bfloat16* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = Bfloat16::Load(from[i]);
}

inline void Store(const float* from, Bfloat16* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = Bfloat16::Store(from[i]);
}

}  // namespace matex
