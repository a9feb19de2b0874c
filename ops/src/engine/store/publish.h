// Variables of which each rank has updated a piece: afterwards every rank has the pieces of all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/types.h"
#include "engine/store/homes.h"

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
  std::string name;      // for people
  int64_t holding = -1;  // by which the memory of these variables is dropped; -1: ranks are to have none in common

  int64_t Width() const { return static_cast<int64_t>(SizeOf(type)); }
  int64_t Owned(int rank) const { return starts[rank + 1] - starts[rank]; }

  // Does `work(i, first, count)` with what of variable `i` is between `begin` and `end` of all numbers.
  template <typename Work>
  void Visit(int64_t begin, int64_t end, Work work) const {
    int64_t start = 0;
    for (size_t i = 0; i < wholes.size() && start < end; start += wholes[i++].count) {
      const int64_t first = std::max(begin - start, int64_t{0}), last = std::min(end - start, wholes[i].count);
      if (first < last) work(static_cast<int>(i), first, last - first);
    }
  }
};

// The memory that ranks have in common for these variables, in which they had better lie; null if there is none (yet).
std::shared_ptr<Homes> HomesOf(const Shared& shared);

// It lives on for as long as a variable lies there.
void DropHomes(int64_t holding);

// Each rank's own numbers are there, and are given to all others: where `homes` has their memory they are read there, else
// sent. All ranks call it together, with equal arguments but for where the variables lie. The first call makes homes.
Error Publish(const Shared& shared, Homes* homes);

}  // namespace matex
