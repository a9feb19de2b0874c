// The buckets in which the gradients of one layout travel, where they are reduced while others are still computed. The
// first updates show when each gradient is ready and what a transfer costs; then the ranks agree on buckets for the rest.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/base/error.h"
#include "engine/layout/layout.h"

namespace matex {

class Learning {
 public:
  explicit Learning(const Layout& layout) : steps_(layout.steps()) {}

  const std::vector<Step>& steps() const { return steps_; }

  // An update of `layout` is over whose gradients came so many seconds after it was announced. Changes the steps after
  // the same update on all ranks, for which they meet.
  Error Learn(const Layout& layout, const std::vector<double>& ready);

 private:
  Error Agree(const Layout& layout);

  std::vector<Step> steps_;
  int updates_ = 0;
  std::vector<std::vector<double>> seen_;  // when the gradients of the updates that are looked at came
};

// What was learned of each layout, by its key. That is what ranks have in common: they trace functions at different
// times, so that two updates may be of one trace here and of two elsewhere. Each takes the same layouts in the same
// order, and so knows the same ones. One thread uses it.
class AllLearned {
 public:
  // Stays until the next call.
  Learning& Of(const Layout& layout);

 private:
  struct One {
    Learning learning;
    int64_t used;
  };
  std::map<uint64_t, One> all_;
  int64_t uses_ = 0;
};

}  // namespace matex
