// A collective in a program compiled by XLA: one custom call, a function of this library that the program calls on the
// host. The request of a call is a text that says which collective it is. kernels.cc encodes the request when XLA
// compiles; custom_call.cc decodes it once and runs the collective at each call. A token is a scalar that is an operand
// and a result of each call, so that XLA keeps the order of calls.
#pragma once

#include <string>
#include <vector>

#include "engine/layout/layout.h"
#include "engine/sequence/mismatch.h"
#include "engine/base/reduce_ops.h"

namespace matex {

// The request of a custom call. Operands: a tensor for each entry, the weight (gradients only), and the token.
// Results: a tensor for each entry, and the token. Tensors are flat, so that XLA cannot change their layout.
struct Request {
  Kind kind = Kind::kBarrier;
  Reduction reduction = Reduction::kSum;  // of an allreduce
  int root = 0;                           // of a broadcast
  int weight_length = 1;                  // of the weight input. 1: the weight; 2: the weight and the rows
  bool checked = false;                   // whether gradients that are not finite are an error
  std::vector<Entry> entries;
  std::string place;
};

std::string Encode(const Request& request);

// The name by which XLA finds the function that runs requests.
constexpr char kTarget[] = "matex_collective";

}  // namespace matex
