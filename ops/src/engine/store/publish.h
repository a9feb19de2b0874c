// Publishing: each rank has updated its piece of some variables and gives this piece to all ranks. Example: of a
// variable of 6 numbers, rank 0 has updated numbers 0-2 and rank 1 numbers 3-5. After publishing, both have all 6 new
// numbers. The kernel MatexPublish calls it after an update. The pieces travel in one of three ways: through shared
// memory (homes.h), by messages, or later, while the next step computes, by messages of the pull thread (pulls.h).
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

// Variables of one type, divided into pieces among the ranks, and their addresses in this process.
struct DividedVariables {
  std::shared_ptr<const Layout> layout;  // the variables, and by the cuts (layout.h) the pieces of each
  // The messages by which the pieces are sent, each with elements of one or several variables.
  std::shared_ptr<const std::vector<Transfer>> messages;
  std::vector<void*> wholes;  // the address of each complete variable
  std::string name;      // for messages
  int64_t needed = 0;    // when a step needs the variables: variables with a smaller number are sent first
  int64_t holding = -1;  // the number of a group of variables whose homes are dropped together; -1: use no homes

  // The bytes of an element.
  int64_t Width() const { return static_cast<int64_t>(SizeOf(layout->entries().front().type)); }

  // Calls `work(i, first, count)` for rank `rank`'s piece of each variable `i`.
  template <typename Work>
  void Visit(int rank, Work work) const {
    for (size_t i = 0; i < layout->cuts().size(); ++i) {
      const std::vector<int64_t>& cuts = layout->cuts()[i];
      if (!cuts.empty() && cuts[rank] < cuts[rank + 1])
        work(static_cast<int>(i), cuts[rank], cuts[rank + 1] - cuts[rank]);
    }
  }
  // The number of elements that rank `rank` owns.
  int64_t Owned(int rank) const {
    int64_t owned = 0;
    Visit(rank, [&](int, int64_t, int64_t count) { owned += count; });
    return owned;
  }
};

// The homes of these variables, to which the caller should move their values; null if there are none, or none yet.
std::shared_ptr<Homes> HomesOf(const DividedVariables& variables);

// Drops the homes of a holding. Their memory lives as long as a variable uses it.
void DropHomes(int64_t holding);

// Gives each rank's pieces to all ranks: through shared memory if `homes` is not null, else by messages. Collective;
// ranks pass equal arguments, but other addresses. The first call makes the homes of `variables`.
Error Publish(const DividedVariables& variables, Homes* homes);

// The same by messages of the pull thread (pulls.h); returns after the rendezvous. The thread calls `begin`, which
// returns the addresses of the complete variables, and then `end` for each variable that is complete or has failed.
struct Later {
  std::function<std::vector<void*>()> begin;
  std::function<void(int i, const Error& error)> end;
};
Error PublishLater(const DividedVariables& variables, Later later);

}  // namespace matex
