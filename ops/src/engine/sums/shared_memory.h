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
  // How much of a sum is in the memory at a time; small enough for the cores' own caches.
  static constexpr int64_t kPart = 256 << 10;

  // All ranks of `communicator` call it together. `made` is null on all where they have no memory in common: on several
  // hosts, in containers that hide from one another, or where there is none left. Returns an error code of MPI.
  static int Make(MPI_Comm communicator, std::unique_ptr<SharedMemory>* made);

  // How many numbers of `type` are a part.
  static int64_t PartOf(Type type) { return kPart / static_cast<int64_t>(SizeOf(type)); }

  // Where this rank puts its numbers of the next part.
  char* Mine() const;

  // What is done with [first, first + count) of a part: it is the sum of two arrays, or one of them, if `other` is null;
  // `Write` writes it.
  using Take = std::function<void(const char* one, const char* other, int64_t first, int64_t count)>;
  static void Write(Type type, const char* one, const char* other, char* to, int64_t count);

  int rank() const { return rank_; }

  // Gives the sum over ranks of `count` numbers, at most a part, to `take`: all of them, the same bits on all ranks, added
  // in the order of the ranks.
  // Returns an error code of MPI. One thread at a time calls it.
  int Sum(Type type, int64_t count, const Take& take);

  // The same of a part of which each rank wants some numbers only: [first, first + count), written to `to`.
  struct Wanted {
    int64_t first;
    int64_t count;
    char* to;
  };
  int Sum(Type type, const std::vector<Wanted>& wanted);

 private:
  SharedMemory(std::unique_ptr<Arrivals> arrivals, int rank, int size);
  char* Of(int rank) const;

  const std::unique_ptr<Arrivals> arrivals_;
  const int rank_;
  const int size_;
  int64_t parts_ = 0;  // how many parts have been added up
};

}  // namespace matex
