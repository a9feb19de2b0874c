// Collectives on one tensor: the world's ranks must call each with the same arguments, which the rendezvous checks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/reduce_ops.h"
#include "engine/base/types.h"

namespace matex {

// What a collective is about: its tensor and, for people, the name that the caller gave it.
struct Subject {
  Type type;
  std::vector<int64_t> shape;
  std::string name;

  int64_t count() const;
  int64_t bytes() const;
};

// to = the reduction of all ranks' `from`; `to` may be `from`.
Error Allreduce(const Subject& subject, Reduction reduction, const void* from, void* to);

// On all ranks data = rank root's data.
Error Broadcast(const Subject& subject, int root, void* data);

// to = all ranks' rows, in rank order. The first dimension may differ between ranks, the others not; a scalar is one
// row. `allocate` gets the number of rows of each rank and returns the memory for all, or null to give up.
using Allocate = std::function<void*(const std::vector<int64_t>& rows)>;
Error Allgather(const Subject& subject, const void* from, const Allocate& allocate);

// Returns when all ranks have come.
Error Barrier(const std::string& name);

}  // namespace matex
