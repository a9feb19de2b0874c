// Meetings of the ranks of one node, in memory that all of them have: who waits looks there, and sleeps before long.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "engine/mpi/common_memory.h"

namespace matex {

class Arrivals {
 public:
  // What ranks bring to a meeting, to be compared.
  using Words = std::array<int64_t, 3>;

  // All ranks of `communicator` call it together. `made` is null on all where they have no memory in common: on several
  // hosts, in containers that hide from one another, or where there is none left. Each rank also gets `part` bytes there,
  // whole pages. Returns an error code of MPI.
  static int Make(MPI_Comm communicator, int64_t part, std::unique_ptr<Arrivals>* made);
  ~Arrivals();
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  // The bytes of a rank beside the meeting, which all ranks have.
  char* PartOf(int rank) const { return memory_ + layout_.head + rank * layout_.part; }

  // Returns when all ranks have come; what they wrote before is there then. `same`: whether all brought the same words,
  // which all ranks are told alike. Returns an error code of MPI, which may know of a rank that is lost. One thread at a
  // time calls it.
  int Meet(const Words& words = {}, bool* same = nullptr);

 private:
  struct Line;

  Arrivals(MPI_Comm communicator, char* memory, const CommonLayout& layout, int rank, int size, int processors);
  Line* lines() const;

  const MPI_Comm communicator_;
  char* const memory_;
  const CommonLayout layout_;
  const int rank_;
  const int size_;
  const int looks_;   // before others are let compute
  int64_t met_ = 0;  // how often all ranks have met
};

}  // namespace matex
