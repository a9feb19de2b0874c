// Memory that all ranks of one node have: a file in memory of the first rank, which nobody else can open by name.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>

namespace matex {

// Pages of any processor.
constexpr int64_t kMemoryPage = 64 << 10;

// How much memory is laid out: a head of so many bytes in whole pages, and equal parts of it, one for each rank, which
// then lies near its core.
struct CommonLayout {
  int64_t head = 0;
  int64_t part = 0;

  // A head with room for `bytes`.
  static CommonLayout Of(int64_t bytes, int64_t part);
  int64_t Bytes(int ranks) const { return head + ranks * part; }
};

// All ranks of `communicator` call it together. `memory` is null on all where they have none in common: on several
// hosts, in containers that hide from one another, or where there is none left. The first rank prepares the head before
// any other sees it. Returns an error code of MPI. Whoever has it gives it back by `munmap`.
int MakeCommonMemory(MPI_Comm communicator, const CommonLayout& layout, const std::function<void(void*)>& prepare,
                     void** memory);

}  // namespace matex
