// Chooses the buckets of overlapped gradients (the gradients that are summed in one message) from measurements. The
// overlapped thread (async_reduction.h) reports when the gradients of each update were ready; after some updates the
// ranks measure the cost of a transfer and choose the best buckets (buckets.h). All ranks switch after the same update.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/base/error.h"
#include "engine/layout/layout.h"

namespace matex {

// The transfers of one layout: first in its own order; after a few updates in the buckets that measurements suggest.
class Learning {
 public:
  explicit Learning(const Layout& layout) : transfers_(layout.transfers()) {}

  const std::vector<Transfer>& transfers() const { return transfers_; }

  // Reports an update of `layout`: the seconds from its announcement to each gradient. Changes the transfers after
  // the same update on all ranks, by collective calls.
  Error Learn(const Layout& layout, const std::vector<double>& ready);

 private:
  Error Agree(const Layout& layout);

  std::vector<Transfer> transfers_;
  int updates_ = 0;  // reported so far, until the choice
  std::vector<std::vector<double>> ready_times_;  // of each measured update, by gradient
};

// The measurements of each layout, by its key. The key is equal on all ranks; the layout object is not, because two
// updates may come from one traced function on one rank and from two on another. All ranks process the same layouts in
// the same order, so all keep the same measurements. One thread uses it.
class AllLearned {
 public:
  // Valid until the next call.
  Learning& Of(const Layout& layout);

 private:
  struct OfLayout {
    Learning learning;
    int64_t last_use;  // the value of uses_ then
  };
  std::map<uint64_t, OfLayout> all_;
  int64_t uses_ = 0;  // the number of calls of `Of`
};

}  // namespace matex
