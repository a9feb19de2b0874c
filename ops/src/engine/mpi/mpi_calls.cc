// Calls of MPI. Each function makes the blocking call, or, if `asleep`, the nonblocking call and then a wait that
// sleeps, which leaves the core to other threads.
#include "engine/mpi/mpi_calls.h"

#include "engine/mpi/sleeping_wait.h"
#include "engine/base/reduce_ops.h"

namespace matex {
namespace {

// Starts a call by `start`, which fills in its request, and sleeps until the call has completed.
template <typename Start>
int Asleep(Start start) {
  MPI_Request request;
  const int code = start(&request);
  return code == MPI_SUCCESS ? Await(&request) : code;
}

}  // namespace

int Calls::Allreduce(void* data, int64_t count, Type type) const {
  const int n = static_cast<int>(count);
  const MPI_Datatype of = MpiType(type);
  const MPI_Op op = MpiOp(type, Reduction::kSum);
  if (!asleep) return MPI_Allreduce(MPI_IN_PLACE, data, n, of, op, communicator);
  return Asleep([&](MPI_Request* request) {
    return MPI_Iallreduce(MPI_IN_PLACE, data, n, of, op, communicator, request);
  });
}

int Calls::ReduceScatter(const void* from, void* to, const int* counts, Type type) const {
  const MPI_Datatype of = MpiType(type);
  const MPI_Op op = MpiOp(type, Reduction::kSum);
  if (!asleep) return MPI_Reduce_scatter(from, to, counts, of, op, communicator);
  return Asleep(
      [&](MPI_Request* request) { return MPI_Ireduce_scatter(from, to, counts, of, op, communicator, request); });
}

int Calls::Allgatherv(const void* from, void* to, const int* counts, const int* starts, Type type) const {
  const MPI_Datatype of = MpiType(type);
  const int mine = counts[rank()];
  if (!asleep) return MPI_Allgatherv(from, mine, of, to, counts, starts, of, communicator);
  return Asleep([&](MPI_Request* request) {
    return MPI_Iallgatherv(from, mine, of, to, counts, starts, of, communicator, request);
  });
}

int Calls::Allgather(const void* from, void* to, int64_t bytes) const {
  const int n = static_cast<int>(bytes);
  if (!asleep) return MPI_Allgather(from, n, MPI_BYTE, to, n, MPI_BYTE, communicator);
  return Asleep([&](MPI_Request* request) {
    return MPI_Iallgather(from, n, MPI_BYTE, to, n, MPI_BYTE, communicator, request);
  });
}

int Calls::Alltoall(const void* from, void* to, int64_t bytes) const {
  const int n = static_cast<int>(bytes);
  if (!asleep) return MPI_Alltoall(from, n, MPI_BYTE, to, n, MPI_BYTE, communicator);
  return Asleep([&](MPI_Request* request) {
    return MPI_Ialltoall(from, n, MPI_BYTE, to, n, MPI_BYTE, communicator, request);
  });
}

int Calls::rank() const {
  int rank = 0;
  MPI_Comm_rank(communicator, &rank);
  return rank;
}

int Calls::size() const {
  int size = 1;
  MPI_Comm_size(communicator, &size);
  return size;
}

}  // namespace matex
