// The allreduce that moves the least: 2 (N - 1) / N of the data out of each rank, the bound of Patarasuk and Yuan
// (Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009), by a ring of N ranks.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "engine/base/types.h"

namespace matex {

// data = the sum over the ranks of `communicator`, which have the same count and type; the same bits on all. `asleep`:
// see await.h. `buffer` grows as it must. Returns an error code of MPI.
int RingSum(MPI_Comm communicator, void* data, int64_t count, Type type, bool asleep, std::vector<char>* buffer);

// The halves of it. Rank r owns data[starts[r]] up to data[starts[r + 1]], of which it gets the sum over ranks; elsewhere
// data are left with anything.
int RingReduceScatter(MPI_Comm communicator, void* data, const std::vector<int64_t>& starts, Type type, bool asleep,
                      std::vector<char>* buffer);

// All ranks get what each owns.
int RingAllgather(MPI_Comm communicator, void* data, const std::vector<int64_t>& starts, Type type, bool asleep);

}  // namespace matex
