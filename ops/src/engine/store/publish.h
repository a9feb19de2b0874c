// Variables of which each rank has updated a piece: afterwards every rank has the pieces of all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/types.h"

namespace matex {

// Variables of one type, one after the other, and where each lies in this process. Of all their numbers, counted through,
// rank r owns those from starts[r] up to starts[r + 1].
struct Shared {
  struct Whole {
    char* data;
    int64_t count;
  };

  Type type;
  std::vector<Whole> wholes;
  std::vector<int64_t> starts;
  std::string name;  // for people

  // Does `work(at, bytes)` with where the numbers from `begin` up to `end` lie, stretch by stretch.
  template <typename Work>
  void Visit(int64_t begin, int64_t end, Work work) const {
    const int64_t width = static_cast<int64_t>(SizeOf(type));
    int64_t start = 0;
    for (const Whole& whole : wholes) {
      const int64_t first = begin > start ? begin - start : 0;
      const int64_t last = end - start < whole.count ? end - start : whole.count;
      if (first < last) work(whole.data + first * width, (last - first) * width);
      start += whole.count;
      if (start >= end) break;
    }
  }
};

// Each rank's own numbers are there, and are given to all others. All ranks call it together, with equal arguments but for
// where the variables lie.
Error Publish(const Shared& shared);

}  // namespace matex
