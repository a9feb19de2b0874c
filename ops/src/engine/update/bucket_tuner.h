// Chooses the buckets of overlapped gradients from measurements. A bucket is a group of gradients that are summed in
// one message. The communication thread (async_reduction.h) reports for each update when its gradients were ready.
// After some updates the ranks measure the cost of a message and choose the best buckets together (buckets.h). All
// ranks change to the chosen buckets after the same update.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/base/error.h"
#include "engine/layout/layout.h"

namespace matex {

// The transfers (layout.h: each is one sum over ranks) of the gradients of one layout. At first they are the layout's
// own transfers, which depend only on the sizes of gradients. After a number of updates, equal on all ranks, they are
// the transfers of the chosen buckets, one or several for each.
class BucketTuner {
 public:
  explicit BucketTuner(const Layout& layout) : transfers_(layout.transfers()) {}

  const std::vector<Transfer>& transfers() const { return transfers_; }

  // Called after each update. `layout`: of this update; it equals the constructor's. `ready`: the seconds from the
  // announcement of the update, which precedes its gradients (async_reduction.h), to each gradient. The last measured
  // update ends with the choice of buckets, which is collective.
  Error AddUpdate(const Layout& layout, const std::vector<double>& ready);

 private:
  // Sets `transfers_` by the measurements of all ranks. Collective.
  Error ChooseTransfers(const Layout& layout);

  std::vector<Transfer> transfers_;
  int updates_ = 0;  // the updates so far; not counted any more after the choice
  std::vector<std::vector<double>> ready_times_;  // of each measured update, by gradient
};

// The BucketTuner of each layout, by the layout's key. The key is equal on all ranks; the layout object is not, because
// two updates may come from one traced function on one rank and from two on another. All ranks process the same layouts
// in the same order, so all have the same tuners. One thread uses it.
class BucketTuners {
 public:
  // The tuner of `layout`, made at the first call. Valid until the next call, which may drop it for another layout.
  BucketTuner& For(const Layout& layout);

 private:
  struct Used {
    BucketTuner tuner;
    int64_t last_use;  // the value of uses_ at its last use
  };
  std::map<uint64_t, Used> tuners_;
  int64_t uses_ = 0;  // the number of calls of `For`
};

}  // namespace matex
