// Variables whose new values are on their way from the ranks that have updated them (engine/store/pulls.h). The pull
// thread holds the mutex of each variable until its value is complete. So every reader waits: eager code, saving, and
// functions that know nothing of pulls.
#pragma once

#include <vector>

#include "tensorflow/core/framework/resource_var.h"

namespace matex {

class Pulled {
 public:
  explicit Pulled(std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables);

  // Called by the pull thread. `Lock` locks all variables and returns the addresses of their values, which no other
  // tensor shares. `Unlock` unlocks variable `i`, whose value is complete.
  std::vector<void*> Lock();
  void Unlock(int i);

 private:
  const std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
};

}  // namespace matex
