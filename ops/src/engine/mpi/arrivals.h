// Meetings of the ranks of one node, in shared memory. A meeting (`Meet`) is a barrier that also compares three words
// (64-bit numbers) of each rank. Data that a rank writes before a meeting are visible to all ranks after it, because
// stores are releases and loads are acquires. Two ranks can do without meetings: each publishes counters of its
// progress (`Show`), and reads the counters of the other rank (`See`). The rendezvous (rendezvous.cc) and the sums in
// shared memory (shared_memory.h) use Arrivals.
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
  // The words of a rank that a meeting compares.
  using Words = std::array<int64_t, 3>;

  // Collective over `communicator`. `made` is null on all ranks if they cannot share memory (common_memory.h). Each
  // rank also gets `bytes_per_rank` there, whole pages. Returns an MPI error code.
  static int Make(MPI_Comm communicator, int64_t bytes_per_rank, std::unique_ptr<Arrivals>* made);
  ~Arrivals();
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  // The bytes of a rank, readable and writable by all ranks.
  char* BytesOf(int rank) const { return memory_ + layout_.head + rank * layout_.part; }

  // Returns when all ranks have come to the same meeting. `same` becomes whether all have brought the same words; it is
  // equal on all ranks. Returns an MPI error code, because MPI may report a lost rank. One thread at a time.
  int Meet(const Words& words = {}, bool* same = nullptr);

  // Counters of a rank since the start: the blocks written into its bytes, and the other rank's blocks read.
  struct Blocks {
    int64_t written = 0;
    int64_t read = 0;
  };
  void Show(const Blocks& mine);
  Blocks See(int rank) const;

  // Returns when `has_come()` is true, a condition on the shared memory. Returns an MPI error code, as `Meet`.
  int WaitUntil(const std::function<bool()>& has_come);

  // How long this process has waited in shared memory since the first call of WaitedSoFar.
  struct Waited {
    double seconds = 0;
    double core_seconds = 0;  // in which the waiting thread occupied a core
  };
  static Waited WaitedSoFar();

 private:
  struct Line;

  int Progress() const;  // lets MPI make progress

  Arrivals(MPI_Comm communicator, char* memory, const CommonLayout& layout, int rank, int size, int processors);
  Line* lines() const;

  const MPI_Comm communicator_;
  char* const memory_;
  const CommonLayout layout_;
  const int rank_;
  const int size_;
  const int spins_;  // the polls of a wait before it yields its core
  int64_t meetings_ = 0;  // the number of meetings so far
};

}  // namespace matex
