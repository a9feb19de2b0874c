// Meetings of the ranks of one node, in memory that all of them have: who waits looks there, and sleeps before long.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
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

  // What two ranks give each other without a meeting: how many blocks this one has written into its part since the start, and
  // how many of the other's it has read, for that to see; and what it sees of the other.
  struct Blocks {
    int64_t written = 0;
    int64_t read = 0;
  };
  void Show(const Blocks& mine);
  Blocks See(int rank) const;

  // Returns when `is_there`, which looks at what another rank has shown, with an error code as `Meet` does.
  int WaitUntil(const std::function<bool()>& is_there);

  // How long this process has waited for others in its memory since this was first asked, and how much of a core that took.
  struct Waited {
    double seconds = 0;
    double of_a_core = 0;
  };
  static Waited WaitedSoFar();

 private:
  struct Line;

  int Progress() const;

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
