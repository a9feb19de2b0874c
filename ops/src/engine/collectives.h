// Collectives on one tensor, an Entry (layout.h): all-reduce, broadcast, all-gather; and the barrier. The kernels call
// them in the thread that reaches them. All ranks must pass the same arguments; the rendezvous checks this.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/reduce_ops.h"
#include "engine/layout/layout.h"

namespace matex {

// to = the reduction of all ranks' `from`; `to` may be `from`.
Error Allreduce(const Entry& tensor, Reduction reduction, const void* from, void* to);

// data = the data of rank `root`, on all ranks.
Error Broadcast(const Entry& tensor, int root, void* data);

// to = all ranks' rows, in rank order. Ranks may differ in the first dimension only; a scalar is one row. `allocate`
// gets each rank's number of rows and returns the memory for all rows, or null to give up.
using Allocate = std::function<void*(const std::vector<int64_t>& rows)>;
Error Allgather(const Entry& tensor, const void* from, const Allocate& allocate);

// Returns when all ranks have called it.
Error Barrier(const std::string& name);

}  // namespace matex
