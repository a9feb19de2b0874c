// Meetings of the ranks of one node, in memory that all of them have: who waits looks there, and sleeps before long.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace matex {

// How many processors the ranks of `communicator`, all on one node, may compute on: each may be bound to some. All call it
// together. Returns an error code of MPI.
int CountProcessors(MPI_Comm communicator, int* processors);

class Arrivals {
 public:
  // What ranks bring to a meeting, to be compared.
  using Words = std::array<int64_t, 3>;

  // How much memory they take, which `Prepare` makes ready before any rank comes.
  static int64_t BytesFor(int ranks);
  static void Prepare(void* memory, int ranks);

  // `memory` is that of all ranks of `communicator`, who may compute on so many `processors`. It stays the caller's.
  Arrivals(void* memory, MPI_Comm communicator, int processors);

  // Returns when all ranks have come; what they wrote before is there then. `same`: whether all brought the same words,
  // which all ranks are told alike. Returns an error code of MPI, which may know of a rank that is lost. One thread at a
  // time calls it.
  int Meet(const Words& words = {}, bool* same = nullptr);

 private:
  struct Line;

  const MPI_Comm communicator_;
  Line* const lines_;
  int rank_ = 0;
  int size_ = 1;
  int looks_ = 0;     // before others are let compute
  int64_t met_ = 0;  // how often all ranks have met
};

}  // namespace matex
