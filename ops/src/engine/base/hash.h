// 64-bit hashes of a byte range, and of a sequence of values (Hasher). The keys of layouts and rendezvous are such
// hashes, so equal input must give equal hashes on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace matex {

// XXH64 (Yann Collet, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md): not cryptographic, but every
// bit of the input moves every bit of the result, at memory speed.
uint64_t Hash(const void* data, size_t bytes, uint64_t seed);

// Hashes values one after another. The length of a text is part of the hash, so "ab", "c" differs from "a", "bc".
class Hasher {
 public:
  Hasher& Add(int64_t value) {
    state_ = Hash(&value, sizeof value, state_);
    return *this;
  }
  Hasher& Add(const std::string& text) {
    state_ = Hash(text.data(), text.size(), state_);
    return Add(static_cast<int64_t>(text.size()));
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0;
};

}  // namespace matex
