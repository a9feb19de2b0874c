// A collective in a program that XLA has compiled: one custom call, whose description travels as text beside the tensors.
#pragma once

#include <string>
#include <vector>

#include "engine/layout/layout.h"
#include "engine/sequence/mismatch.h"
#include "engine/base/reduce_ops.h"

namespace matex {

// What a custom call is to do. Its operands are a tensor for each entry, for gradients the weight, and the token; its
// results a tensor for each entry and the token. Tensors are flat, so that XLA cannot lay them out in another order.
struct Request {
  Kind kind = Kind::kBarrier;
  Reduction reduction = Reduction::kSum;  // of an allreduce
  int root = 0;                           // of a broadcast
  int numbers = 1;                        // of gradients: the weight, the rows; so many of these are said
  bool checked = false;                   // of gradients: whether such as are no finite numbers are an error
  std::vector<Entry> entries;
  std::string place;
};

std::string Encode(const Request& request);

// The name under which XLA finds the function that runs requests on the host.
constexpr char kTarget[] = "matex_collective";

}  // namespace matex
