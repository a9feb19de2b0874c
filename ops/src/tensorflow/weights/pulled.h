// Variables whose new values are being pulled from the ranks that have updated them (engine/store/pulls.h).
//
// The pull thread locks the variable's mutex until its value is complete. So every reader waits: eager code, saving,
// and functions that know nothing of pulls.
#pragma once

#include <vector>

#include "tensorflow/core/framework/resource_var.h"

namespace matex {

class Pulled {
 public:
  explicit Pulled(std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables);

  // Called by the pull thread. `Lock` returns the addresses of the values, which no other tensor shares.
  std::vector<void*> Lock();
  void Came(int i);

 private:
  const std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
};

}  // namespace matex
