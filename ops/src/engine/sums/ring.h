// Ring all-reduce, reduce-scatter and all-gather. The all-reduce sends the least that is possible: 2 (N - 1) / N of the
// data from each of N ranks (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations,
// 2009). An Adder uses it for large buffers. After an error no message is written into the caller's memory.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "engine/base/types.h"

namespace matex {

// data = the sum over the ranks of `communicator`, which pass the same count and type; the same bits on all ranks.
// `asleep`: see mpi_calls.h. `buffer` grows as needed. Returns an MPI error code.
int RingSum(MPI_Comm communicator, void* data, int64_t count, Type type, bool asleep, std::vector<char>* buffer);

// The two halves of the all-reduce. Rank r owns data[starts[r]] up to data[starts[r + 1]]. The reduce-scatter gives
// each rank the sum of its own elements and leaves the other elements undefined.
int RingReduceScatter(MPI_Comm communicator, void* data, const std::vector<int64_t>& starts, Type type, bool asleep,
                      std::vector<char>* buffer);

// Every rank gets the elements of all owners.
int RingAllgather(MPI_Comm communicator, void* data, const std::vector<int64_t>& starts, Type type, bool asleep);

}  // namespace matex
