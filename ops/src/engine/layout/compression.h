// Compression of float32 gradients: each number in 16 bits, or only the largest numbers (top-k). The error is kept as
// a residual and added to the next gradient (error feedback: Seide, Fu, Droppo, Li and Yu, 1-bit stochastic gradient
// descent, 2014), so nothing is lost, only delayed. compressed_allreduce.cc calls it.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace matex {

struct Compression {
  // The numbers are part of the C interface (abi.cc).
  enum class Kind : int { kNone = 0, kBfloat16 = 1, kFloat16 = 2, kTopK = 3 };

  Kind kind = Kind::kNone;
  double share = 1;            // the fraction of the numbers that kTopK sends
  bool between_nodes = false;  // compress only between nodes; within a node numbers are summed in float32

  explicit operator bool() const { return kind != Kind::kNone; }
  std::string ToString() const;  // for messages: MATEX_COMPRESSION=topk:0.01:hosts

  // The bytes of a sum over `ranks`, as a fraction of the bytes without compression.
  double CompressedFraction(int ranks) const;
};

// Packs numbers into 4 + 2 * count bytes: an exponent e, then 16 bits for each number, which was multiplied by 2^e.
// For float16, e puts the largest number near the largest float16, so no number overflows and small ones keep their
// digits. NaN and infinities are kept.
void Pack(Compression::Kind kind, const float* values, int64_t count, char* packed);
void Unpack(Compression::Kind kind, const char* packed, int64_t count, float* values);

inline int64_t PackedBytes(int64_t count) { return 4 + 2 * count; }

// Appends i + first for the index i of each of the `wanted` largest |values|, in no order. NaN and infinity count as
// the largest; of equal values, those with the lowest indices are chosen.
void AppendLargest(const float* values, int64_t count, int64_t wanted, int32_t first, std::vector<int32_t>* indices);

// share * count, rounded; at least one of a variable with numbers, so that each variable makes progress.
int64_t CountKept(double share, int64_t count);

// The residual of a number: value - sent. If that is NaN or infinite, 0, because it would stay in the residual forever.
inline float Remainder(float value, float sent) {
  const float remainder = value - sent;
  const bool is_finite = remainder - remainder == 0.0f;
  return is_finite ? remainder : 0.0f;
}

}  // namespace matex
