// Collectives on one tensor: all-reduce, broadcast, all-gather, barrier. The kernels call them in the thread that
// reaches them. All ranks must pass the same arguments; the rendezvous checks this.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/reduce_ops.h"
#include "engine/base/types.h"

namespace matex {

// The tensor of a collective, and its name for messages.
struct Subject {
  Type type;
  std::vector<int64_t> shape;
  std::string name;

  int64_t count() const;
  int64_t bytes() const;
};

// to = the reduction of all ranks' `from`; `to` may be `from`.
Error Allreduce(const Subject& subject, Reduction reduction, const void* from, void* to);

// data = the data of rank `root`, on all ranks.
Error Broadcast(const Subject& subject, int root, void* data);

// to = all ranks' rows, in rank order. Ranks may differ in the first dimension only; a scalar is one row. `allocate`
// gets each rank's number of rows and returns the memory for all rows, or null to give up.
using Allocate = std::function<void*(const std::vector<int64_t>& rows)>;
Error Allgather(const Subject& subject, const void* from, const Allocate& allocate);

// Returns when all ranks have called it.
Error Barrier(const std::string& name);

}  // namespace matex
