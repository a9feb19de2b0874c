// The MPI calls that sums consist of, on one communicator. They block in MPI, or they are nonblocking and the thread
// sleeps until they have completed (sleeping_wait.h). All sum algorithms make their collective calls through it.
#pragma once

#include <mpi.h>

#include <cstdint>

#include "engine/base/types.h"

namespace matex {

// Each function returns an MPI error code. Counts and starts are in elements of `type`.
struct Calls {
  MPI_Comm communicator;
  bool asleep;  // sleep during waits instead of polling in MPI: for threads next to threads that compute

  // data = the sum over ranks.
  int Allreduce(void* data, int64_t count, Type type) const;

  // to = this rank's segment of the sum over ranks of `from`; `counts`: the segment lengths of all ranks.
  int ReduceScatter(const void* from, void* to, const int* counts, Type type) const;

  // to = the segments of all ranks; this rank's is `from`, or MPI_IN_PLACE if it is in `to`.
  int Allgatherv(const void* from, void* to, const int* counts, const int* starts, Type type) const;

  // Allgather: to = `bytes` bytes of each rank, in rank order. Alltoall: rank r gets the r-th `bytes` bytes of `from`.
  int Allgather(const void* from, void* to, int64_t bytes) const;
  int Alltoall(const void* from, void* to, int64_t bytes) const;

  int rank() const;
  int size() const;
};

}  // namespace matex
