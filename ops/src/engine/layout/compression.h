// Fewer bytes for the gradients of variables: each number in 16 bits, or the largest numbers alone. What that leaves out
// is kept and added to the next gradient (error feedback: Seide, Fu, Droppo, Li and Yu, 1-bit stochastic gradient
// descent, 2014), so that nothing is lost, only late.
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
  double share = 1;            // of the numbers that kTopK sends
  bool between_nodes = false;  // only what goes from node to node; within a node numbers are added up as they are

  explicit operator bool() const { return kind != Kind::kNone; }
  std::string ToString() const;  // for people: MATEX_COMPRESSION=topk:0.01:hosts

  // How many bytes a sum over `ranks` moves, of those that it moves without compression.
  double BytesLeft(int ranks) const;
};

// A number of 16 bits each, after a power of two by which they have been multiplied: 4 + 2 * count bytes at `packed`.
// float16 uses the power, so that the largest number is near the largest float16: none becomes infinite, and small ones
// keep their digits. Numbers that are no numbers stay so.
void Pack(Compression::Kind kind, const float* values, int64_t count, char* packed);
void Unpack(Compression::Kind kind, const char* packed, int64_t count, float* values);

inline int64_t PackedBytes(int64_t count) { return 4 + 2 * count; }

// The places of the `wanted` largest of |values|, appended; NaN and infinity count as the largest. Of equal ones the
// first, in no order.
void AppendLargest(const float* values, int64_t count, int64_t wanted, int32_t first, std::vector<int32_t>* places);

// How many of `count` numbers `share` of them is: at least one, so that no variable is forgotten.
int64_t Wanted(double share, int64_t count);

// What rounding or leaving out has left of a number: nothing of one that is not finite, or it would stay for ever.
inline float Left(float value, float sent) {
  const float left = value - sent;
  return left - left == 0.0f ? left : 0.0f;
}

}  // namespace matex
