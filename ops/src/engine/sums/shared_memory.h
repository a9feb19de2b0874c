// Sums over the ranks of one host in shared memory. Ranks write gradients directly into shared memory and sum directly
// from it, so no message is sent. Each rank has memory of fixed size, which all ranks read: two buffers, used in turn.
// With more than two ranks, each rank adds a slice and writes the sums back for the others. With two ranks, that would
// move more bytes than if each rank adds all elements itself: so it reads the other's, from a ring of small blocks that
// one rank writes while the other reads. Longer data pass through it in chunks or blocks. A rank overwrites its
// memory only after all ranks have read it. An Adder (allreduce.h) makes one object for its communicator.
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
  // Collective. `made` is null on all ranks if they cannot share memory (common_memory.h). Returns an MPI error code.
  static int Make(MPI_Comm communicator, std::unique_ptr<SharedMemory>* made);

  // Writes this rank's elements [first, first + count) to `to`.
  using Produce = std::function<void(char* to, int64_t first, int64_t count)>;

  // Stores the sums of elements [first, first + count): with two ranks one + other, so that they are added and stored
  // in one pass; with more ranks `other` is null, and `one` has the sums. Both point at element `first`. A Consume must
  // call `Write`, which stores these sums at `to`.
  using Consume = std::function<void(const char* one, const char* other, int64_t first, int64_t count)>;
  static void Write(Type type, const char* one, const char* other, char* to, int64_t count);

  // Collective. Sums `count` elements over ranks: `produce` supplies this rank's elements, `consume` stores all sums.
  // All ranks get the same bits, because elements are added in rank order. `consume` is called for a range only after
  // `produce` has supplied it, so `consume` may write where `produce` reads. Returns an MPI error code. One thread at a
  // time.
  int Sum(Type type, int64_t count, const Produce& produce, const Consume& consume);

  // For two ranks: a sum of which each rank needs one share, of `mine` elements; the other rank's share has `theirs`
  // elements. `produce` supplies this rank's elements of the other's share. `consume` gets the other rank's elements of
  // this rank's share, and adds its own. `first` counts from the start of a share. The other arguments and the result
  // are as in `Sum`.
  using ConsumeOther = std::function<void(const char* other, int64_t first, int64_t count)>;
  int Exchange(Type type, int64_t theirs, int64_t mine, const Produce& produce, const ConsumeOther& consume);

  // For more than two ranks: a sum of which each rank needs only some elements. The caller divides it into chunks of at
  // most ElementsPerChunk elements. For each chunk every rank
  // 1. writes its elements to the memory that BeginChunk returns;
  // 2. calls SumNeeded, which writes the sums of elements [first, first + count) of the chunk to `to`, for each range
  //    in `needed`. The ranges differ between ranks.
  // SumNeeded is collective, also for a rank that needs nothing, and returns an MPI error code. A rank may write the
  // next chunk at once: it is in the other buffer, which all have read when they come to the next SumNeeded.
  int64_t ElementsPerChunk(Type type) const { return chunk_bytes_ / static_cast<int64_t>(SizeOf(type)); }
  char* BeginChunk() const { return BufferOf(rank_); }
  struct Needed {
    int64_t first;
    int64_t count;
    char* to;
  };
  int SumNeeded(Type type, const std::vector<Needed>& needed);

  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  // size: the number of ranks.
  SharedMemory(std::unique_ptr<Arrivals> arrivals, int64_t chunk_bytes, int rank, int size);
  // The buffer of a rank for the current chunk.
  char* BufferOf(int rank) const;
  // `Sum` and `Exchange` for two ranks: a rank writes `writes` elements and reads `reads` elements, in blocks.
  int PassBlocks(Type type, int64_t writes, int64_t reads, const Produce& produce, const Consume& consume);
  // `Sum` for more ranks.
  int SumOfMany(Type type, int64_t count, const Produce& produce, const Consume& consume);

  const std::unique_ptr<Arrivals> arrivals_;
  const int64_t chunk_bytes_;
  const int rank_;
  const int size_;
  Arrivals::Blocks blocks_;  // with two ranks: the blocks that this rank has written and read
  int64_t chunks_ = 0;  // with more: the number of chunks summed so far; it decides which of the two buffers is used
};

}  // namespace matex
