// Variables of which each rank has updated a piece: afterwards every rank has the pieces of all.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/types.h"
#include "engine/layout/layout.h"
#include "engine/store/homes.h"

namespace matex {

// Variables of one type, each owned by the ranks in parts, and where they lie in this process.
struct Shared {
  std::shared_ptr<const Layout> layout;               // the variables, with cuts
  std::shared_ptr<const std::vector<Step>> messages;  // in which they travel
  std::vector<void*> wholes;
  std::string name;      // for people
  int64_t place = 0;     // among what travels: the smaller, the sooner it is needed
  int64_t holding = -1;  // by which the memory of these variables is dropped; -1: ranks are to have none in common

  int64_t Width() const { return static_cast<int64_t>(SizeOf(layout->entries().front().type)); }

  // Does `work(i, first, count)` with what of variable `i` a rank owns.
  template <typename Work>
  void Visit(int rank, Work work) const {
    for (size_t i = 0; i < layout->cuts().size(); ++i) {
      const std::vector<int64_t>& cuts = layout->cuts()[i];
      if (!cuts.empty() && cuts[rank] < cuts[rank + 1]) work(static_cast<int>(i), cuts[rank], cuts[rank + 1] - cuts[rank]);
    }
  }
  int64_t Owned(int rank) const {
    int64_t owned = 0;
    Visit(rank, [&](int, int64_t, int64_t count) { owned += count; });
    return owned;
  }
};

// The memory that ranks have in common for these variables, in which they had better lie; null if there is none (yet).
std::shared_ptr<Homes> HomesOf(const Shared& shared);

// It lives on for as long as a variable lies there.
void DropHomes(int64_t holding);

// Each rank's own numbers are there, and are given to all others: where `homes` has their memory they are read there, else
// sent. All ranks call it together, with equal arguments but for where the variables lie. The first call makes homes.
Error Publish(const Shared& shared, Homes* homes);

// The same by messages, on a thread of its own (pulls.h), one variable after the other: it returns once all ranks have
// come. Then `begin` is called, which tells where the variables lie, and after that `came` once for each variable: it is
// whole, or will not be.
struct Later {
  std::function<std::vector<void*>()> begin;
  std::function<void(int i, const Error& error)> came;
};
Error PublishLater(const Shared& shared, Later later);

}  // namespace matex
