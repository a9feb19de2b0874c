// The hash function XXH64. The primes and the numbers of bits are from its specification (hash.h).
#include "engine/base/hash.h"

#include <cstring>

namespace matex {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ULL;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4FULL;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9ULL;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63ULL;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5ULL;

uint64_t Rotate(uint64_t value, int bits) { return (value << bits) | (value >> (64 - bits)); }

template <typename Word>
Word Read(const unsigned char* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

// Adds 8 bytes of input to a state.
uint64_t Round(uint64_t state, uint64_t word) { return Rotate(state + word * kPrime2, 31) * kPrime1; }

// Combines the hash with one of the four states.
uint64_t Merge(uint64_t hash, uint64_t state) { return (hash ^ Round(0, state)) * kPrime1 + kPrime4; }

}  // namespace

uint64_t Hash(const void* data, size_t bytes, uint64_t seed) {
  const unsigned char* at = static_cast<const unsigned char*>(data);
  const unsigned char* const end = at + bytes;
  uint64_t hash = seed + kPrime5;
  if (bytes >= 32) {
    // Blocks of 32 bytes. The processor multiplies the four independent states at the same time.
    uint64_t a = seed + kPrime1 + kPrime2, b = seed + kPrime2, c = seed, d = seed - kPrime1;
    for (; end - at >= 32; at += 32) {
      a = Round(a, Read<uint64_t>(at));
      b = Round(b, Read<uint64_t>(at + 8));
      c = Round(c, Read<uint64_t>(at + 16));
      d = Round(d, Read<uint64_t>(at + 24));
    }
    hash = Rotate(a, 1) + Rotate(b, 7) + Rotate(c, 12) + Rotate(d, 18);
    hash = Merge(Merge(Merge(Merge(hash, a), b), c), d);
  }
  // Less than 32 bytes are left: 8 at a time, then 4, then single bytes.
  hash += bytes;
  for (; end - at >= 8; at += 8) hash = Rotate(hash ^ Round(0, Read<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  if (end - at >= 4) {
    hash = Rotate(hash ^ (Read<uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < end; ++at) hash = Rotate(hash ^ (*at * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace matex
