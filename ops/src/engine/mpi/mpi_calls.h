// The calls of MPI that sums are made of, on one communicator: waited for in MPI, or asleep (await.h).
#pragma once

#include <mpi.h>

#include <cstdint>

#include "engine/base/types.h"

namespace matex {

// Each returns an error code of MPI.
struct Calls {
  MPI_Comm communicator;
  bool asleep;

  // data = the sum over ranks.
  int Allreduce(void* data, int64_t count, Type type) const;

  // to = this rank's part of the sum over ranks of `from`; counts are those of all ranks' parts.
  int ReduceScatter(const void* from, void* to, const int* counts, Type type) const;

  // to = all ranks' parts; this rank's is `from`, or MPI_IN_PLACE where it is there.
  int Allgatherv(const void* from, void* to, const int* counts, const int* starts, Type type) const;

  // As many bytes from and to each rank.
  int Allgather(const void* from, void* to, int64_t bytes) const;
  int Alltoall(const void* from, void* to, int64_t bytes) const;

  int rank() const;
  int size() const;
};

}  // namespace matex
