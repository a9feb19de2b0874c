#include "engine/base/stream_copy.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace matex {

namespace {

constexpr int64_t kMinBytes = 16 << 20;  // the caches that a core can use hold less, or little more

}  // namespace

bool ShouldStream(int64_t bytes) { return bytes >= kMinBytes; }

#if defined(__x86_64__)

void StreamCopy(const char* from, char* to, int64_t bytes) {
  constexpr int64_t kLine = 64, kWord = sizeof(__m128i);
  // Streaming stores need aligned addresses, and fill lines.
  const int64_t head = std::min<int64_t>(bytes, -reinterpret_cast<uintptr_t>(to) % kLine);
  std::memcpy(to, from, head);
  int64_t i = head;
  for (; i + kLine <= bytes; i += kLine) {
    __m128i words[kLine / kWord];
    std::memcpy(words, from + i, kLine);
    for (int64_t word = 0; word < kLine / kWord; ++word)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i) + word, words[word]);
  }
  std::memcpy(to + i, from + i, bytes - i);
  _mm_sfence();  // a release orders usual stores only
}

#else

void StreamCopy(const char* from, char* to, int64_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace matex
