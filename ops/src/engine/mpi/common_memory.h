// Shared memory of the ranks of one node: a nameless file in the memory of the first rank, which the other ranks open
// through /proc. Arrivals, Homes and the store (store.h) use it. Either all ranks have the memory, or none has.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>

namespace matex {

// A multiple of the page size of every supported processor.
constexpr int64_t kMemoryPage = 64 << 10;

// The layout of the memory: first the head, which all ranks share, in whole pages; then an equal part for each rank, on
// the rank's NUMA node. Sizes in bytes.
struct CommonLayout {
  int64_t head = 0;
  int64_t part = 0;

  // A layout whose head has room for `bytes`.
  static CommonLayout Of(int64_t bytes, int64_t part);
  int64_t Bytes(int ranks) const { return head + ranks * part; }
};

// Collective over `communicator`. `memory` is null on all ranks if they cannot share memory: on several hosts, in
// separate containers, or if memory is short. The first rank calls `prepare` with the head before any other rank sees
// the head. Returns an MPI error code. The caller releases the memory by `munmap`.
int MakeCommonMemory(MPI_Comm communicator, const CommonLayout& layout, const std::function<void(void*)>& prepare,
                     void** memory);

}  // namespace matex
