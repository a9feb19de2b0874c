// Compression of float32 gradients: each number in 16 bits, or only the largest numbers (top-k). The residual of a
// number is the number less what was sent for it. Each rank keeps its residuals and adds them to the next gradient
// (error feedback: Seide, Fu, Droppo, Li and Yu, 1-bit stochastic gradient descent, 2014). So compression delays finite
// numbers and loses none. compressed_allreduce.cc calls it.
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
  // Compress only between nodes (hosts); within a node numbers are summed in float32.
  bool between_nodes = false;

  explicit operator bool() const { return kind != Kind::kNone; }
  std::string ToString() const;  // for messages: MATEX_COMPRESSION=topk:0.01:hosts

  // The bytes of a sum over `ranks` ranks, as a fraction of the bytes without compression.
  double CompressedFraction(int ranks) const;
};

// Packs numbers into 4 + 2 * count bytes: an exponent e, then each number times 2^e in 16 bits. For float16, e puts the
// largest finite number near the largest float16, so no number overflows and small numbers keep their digits. For
// bfloat16, which has the range of float32, e is 0. NaN and infinities are kept.
void Pack(Compression::Kind kind, const float* values, int64_t count, char* packed);
void Unpack(Compression::Kind kind, const char* packed, int64_t count, float* values);

inline int64_t PackedBytes(int64_t count) { return 4 + 2 * count; }

// Appends i + first for the index i of each of the `wanted` largest |values|, in no order. NaN and infinity count as
// larger than all other numbers. Of equal magnitudes the lowest indices are chosen.
void AppendLargest(const float* values, int64_t count, int64_t wanted, int32_t first, std::vector<int32_t>* indices);

// The number of the `count` numbers of a gradient that top-k sends: share * count, rounded; at least one of a gradient
// with numbers, so that each variable makes progress.
int64_t CountSent(double share, int64_t count);

// The residual of a number: value - sent. If the difference is NaN or infinite, 0, because it would stay in all later
// gradients. NaN and infinity themselves are sent.
inline float Unsent(float value, float sent) {
  const float difference = value - sent;
  const bool is_finite = difference - difference == 0.0f;
  return is_finite ? difference : 0.0f;
}

}  // namespace matex
