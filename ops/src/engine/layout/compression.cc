// Compression of gradients (compression.h): packing to 16 bits, and the choice of the largest numbers. The choice
// counts the numbers in 2^11 classes of equal leading bits. It takes all numbers of the highest classes, and selects
// among the numbers of one further class.
#include "engine/layout/compression.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "engine/base/half.h"

namespace matex {
namespace {

constexpr int kPackBlock = 512;  // how many numbers are converted at a time
// Bits of a float32: all but the sign; infinity. NaN has a larger magnitude.
constexpr uint32_t kMagnitude = 0x7FFFFFFFu, kInfinity = 0x7F800000u;
// The leading bits of a number's magnitude assign it to one of 2^11 classes, ordered by magnitude.
constexpr int kClassBits = 11, kBelow = 31 - kClassBits;

// The exponent e such that largest * 2^e lies in [2^14, 2^15), near the top of float16's range, which ends at 65504. At
// most 113: if `largest` is less than 2^-99, the product is less than 2^14. `largest`: the bits of a finite float32
// that is not negative; for 0, e is 0.
int PowerFor(uint32_t largest) {
  constexpr int kMaxExponent = 14, kMaxPower = 113;  // 2^113 and 2^-113 are both float32
  if (largest == 0) return 0;
  const int exponent = static_cast<int>(largest >> 23) - 127;
  return std::clamp(kMaxExponent - exponent, -kMaxPower, kMaxPower);
}

template <typename Half>
void PackAs(const float* values, int64_t count, float factor, char* packed) {
  float scaled[kPackBlock];
  Half block[kPackBlock];
  for (int64_t i = 0; i < count; i += kPackBlock) {
    const int length = static_cast<int>(std::min<int64_t>(kPackBlock, count - i));
    for (int k = 0; k < length; ++k) scaled[k] = values[i + k] * factor;
    Store(scaled, block, length);
    std::memcpy(packed + 2 * i, block, 2 * length);
  }
}

template <typename Half>
void UnpackAs(const char* packed, int64_t count, float factor, float* values) {
  Half block[kPackBlock];
  for (int64_t i = 0; i < count; i += kPackBlock) {
    const int length = static_cast<int>(std::min<int64_t>(kPackBlock, count - i));
    std::memcpy(block, packed + 2 * i, 2 * length);
    Load(block, values + i, length);
    for (int k = 0; k < length; ++k) values[i + k] *= factor;
  }
}

uint32_t MagnitudeOf(float value) { return BitsOf(value) & kMagnitude; }

}  // namespace

std::string Compression::ToString() const {
  static const char* const kNames[] = {"none", "bf16", "fp16", "topk"};
  std::string text = std::string("MATEX_COMPRESSION=") + kNames[static_cast<int>(kind)];
  if (kind == Kind::kTopK) {
    char digits[32];
    std::snprintf(digits, sizeof digits, ":%g", share);
    text += digits;
  }
  return between_nodes ? text + ":hosts" : text;
}

double Compression::CompressedFraction(int ranks) const {
  // Without compression, a ring moves the 4 bytes of each number twice: 8 bytes a number. Top-k: each rank receives 8
  // bytes, an index and a value, for each number that a rank sends: on average 8 * share * ranks bytes a number.
  if (kind == Kind::kTopK) return share * ranks;
  return kind == Kind::kNone ? 1 : 0.5;
}

void Pack(Compression::Kind kind, const float* values, int64_t count, char* packed) {
  int32_t power = 0;
  if (kind == Compression::Kind::kFloat16) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t magnitude = MagnitudeOf(values[i]);
      largest = std::max(largest, magnitude < kInfinity ? magnitude : 0u);
    }
    power = PowerFor(largest);
  }
  // The exponent comes first; 0 for bfloat16.
  std::memcpy(packed, &power, sizeof power);
  const float factor = std::ldexp(1.0f, power);
  if (kind == Compression::Kind::kFloat16) return PackAs<Float16>(values, count, factor, packed + sizeof power);
  PackAs<Bfloat16>(values, count, factor, packed + sizeof power);
}

void Unpack(Compression::Kind kind, const char* packed, int64_t count, float* values) {
  int32_t power = 0;
  std::memcpy(&power, packed, sizeof power);
  const float factor = std::ldexp(1.0f, -power);
  if (kind == Compression::Kind::kFloat16) return UnpackAs<Float16>(packed + sizeof power, count, factor, values);
  UnpackAs<Bfloat16>(packed + sizeof power, count, factor, values);
}

void AppendLargest(const float* values, int64_t count, int64_t wanted, int32_t first, std::vector<int32_t>* indices) {
  int64_t members[1 << kClassBits] = {};  // how many numbers each class has
  for (int64_t i = 0; i < count; ++i) ++members[MagnitudeOf(values[i]) >> kBelow];
  // The result has all numbers of the classes above `partial`, and the largest `missing` numbers of class `partial`.
  int64_t missing = std::min(wanted, count);
  uint32_t partial = (1 << kClassBits) - 1;
  for (; partial > 0 && members[partial] < missing; --partial) missing -= members[partial];
  std::vector<std::pair<uint32_t, int32_t>> candidates;  // (~magnitude, index) of the numbers of class `partial`
  candidates.reserve(members[partial]);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = MagnitudeOf(values[i]), its_class = magnitude >> kBelow;
    if (its_class > partial) indices->push_back(first + static_cast<int32_t>(i));
    // ~: the smallest pair has the largest magnitude, and the lowest index among equals.
    if (its_class == partial) candidates.emplace_back(~magnitude, first + static_cast<int32_t>(i));
  }
  if (missing < static_cast<int64_t>(candidates.size()))
    std::nth_element(candidates.begin(), candidates.begin() + missing, candidates.end());
  for (int64_t i = 0; i < missing; ++i) indices->push_back(candidates[i].second);
}

int64_t CountSent(double share, int64_t count) {
  return std::clamp<int64_t>(std::llround(share * static_cast<double>(count)), std::min<int64_t>(count, 1), count);
}

}  // namespace matex
