// Sums over the ranks of one node in memory that all of them have: what a sum reads is what another rank has written, so
// nothing is sent. A rank weighs its gradients right into it, and adds up right out of it.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/base/types.h"
#include "engine/mpi/arrivals.h"

namespace matex {

class SharedMemory {
 public:
  // All ranks of `communicator` call it together. `made` is null on all where they have no memory in common: on several
  // hosts, in containers that hide from one another, or where there is none left. Returns an error code of MPI.
  static int Make(MPI_Comm communicator, std::unique_ptr<SharedMemory>* made);

  // What is done with [first, first + count) of a sum: it is the sum of two arrays, or one of them, if `other` is null;
  // `Write` writes it.
  using Take = std::function<void(const char* one, const char* other, int64_t first, int64_t count)>;
  static void Write(Type type, const char* one, const char* other, char* to, int64_t count);

  // Writes this rank's numbers [first, first + count) to `to`.
  using Put = std::function<void(char* to, int64_t first, int64_t count)>;

  int rank() const { return rank_; }

  // Gets `count` numbers of this rank from `put`, and gives their sum over ranks to `take`: all of them, the same bits on all
  // ranks, added in the order of the ranks. Numbers are taken after they were put, so that they may be taken to where
  // they came from. Returns an error code of MPI. One thread at a time calls it.
  int Sum(Type type, int64_t count, const Put& put, const Take& take);

  // For sums of which each rank wants some numbers only: how many numbers of `type` are a part, and where this rank puts its
  // numbers of the next one. Returns an error code of MPI.
  int64_t PartOf(Type type) const { return part_ / static_cast<int64_t>(SizeOf(type)); }
  int BeginPart(char** mine);

  // The sum of a part, of which this rank wants numbers [first, first + count), written to `to`. Returns an error code of MPI.
  struct Wanted {
    int64_t first;
    int64_t count;
    char* to;
  };
  int Sum(Type type, const std::vector<Wanted>& wanted);

 private:
  SharedMemory(std::unique_ptr<Arrivals> arrivals, int64_t part, int rank, int size);
  char* Of(int rank) const;
  int SumOfTwo(Type type, int64_t count, const Put& put, const Take& take);
  int SumOfMany(Type type, int64_t count, const Put& put, const Take& take);
  int BeginBlocks(bool in_blocks);

  const std::unique_ptr<Arrivals> arrivals_;
  const int64_t part_;  // bytes
  const int rank_;
  const int size_;
  int64_t parts_ = 0;  // how many parts have been added up
  Arrivals::Blocks blocks_;  // of two ranks: how many this one has written and read
  bool in_blocks_ = false;   // whether the last sum was in blocks
};

}  // namespace matex
