// Variables whose new values are on their way from the ranks that have updated them.
//
// Until one has come, the thread that pulls holds its mutex: whoever reads it waits, also eager code, saving, and
// functions that know nothing of this.
#pragma once

#include <vector>

#include "tensorflow/core/framework/resource_var.h"

namespace matex {

class Pulled {
 public:
  explicit Pulled(std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables);

  // Both by the thread that pulls. The first tells where the values lie, which nobody else has from then on.
  std::vector<void*> Lock();
  void Came(int i);

 private:
  const std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
};

}  // namespace matex
