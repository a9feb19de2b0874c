// Homes: shared memory of one host, in which the ranks keep variables, so that a rank reads the pieces of other ranks
// directly, without messages. Each rank has a buffer with its copy of each variable; the memory of one copy is its
// home. publish.cc uses it: a rank publishes the address of its piece (`Show`) before a rendezvous; the others read the
// piece after that rendezvous and before the next barrier.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace matex {

class Homes {
 public:
  // `bytes`: the size of each variable; `piece`: the maximum total size of one rank's pieces, in bytes. Collective over
  // `communicator`. `made` is null on all ranks if they cannot share memory. Returns an MPI error code.
  static int Make(MPI_Comm communicator, const std::vector<int64_t>& bytes, int64_t piece,
                  std::shared_ptr<Homes>* made);
  ~Homes();
  Homes(const Homes&) = delete;
  Homes& operator=(const Homes&) = delete;

  // This rank's home for variable `i`, aligned to 64 bytes; null while a tensor uses it. `Release` makes it free again.
  char* Take(int i);
  void Release(int i) { in_use_[i] = false; }
  // Whether `address` is that home.
  bool Has(int i, const void* address) const { return address == At(i); }

  // Publishes the address of this rank's piece of variable `i`. A piece outside the shared memory is copied into it,
  // to offset `offset_in_copies` of the area for such pieces.
  void Show(int i, const char* piece, int64_t bytes, int64_t offset_in_copies);

  // The published address of rank `rank`'s piece of variable `i`.
  const char* Shown(int rank, int i) const { return BufferOf(rank) + TableOf(rank)[i]; }

 private:
  // Offsets within the buffer of a rank: the table of published addresses, the variables, the area for copies.
  struct Offsets {
    Offsets(const std::vector<int64_t>& bytes, int64_t piece);
    std::vector<int64_t> variables;  // of each variable
    int64_t copies = 0;              // of the area
    int64_t end = 0;                 // the size of the buffer
  };

  Homes(void* memory, const Offsets& offsets, int rank, int size);
  char* BufferOf(int rank) const;
  // The published addresses of a rank's pieces, as offsets in its buffer.
  int64_t* TableOf(int rank) const { return reinterpret_cast<int64_t*>(BufferOf(rank)); }
  // This rank's home for variable `i`.
  char* At(int i) const { return BufferOf(rank_) + offsets_.variables[i]; }

  void* const memory_;
  const Offsets offsets_;
  const int rank_;
  const int size_;
  std::vector<std::atomic<bool>> in_use_;  // whether a tensor uses this rank's home for variable i
};

}  // namespace matex
