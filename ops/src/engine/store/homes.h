// Homes: shared memory of one host, in which each rank keeps the values of its variables where the other ranks can read
// them. It serves the publication of new weights (publish.cc): each rank updates only its piece, a range of elements of
// each variable, and then copies the pieces of the other ranks into its own variables. Each rank has one buffer:
//
//   | addresses of its pieces | home of variable 0 | home of variable 1 | ... | copies of pieces |
//
// The home of a variable is the memory for this rank's value of the variable. A rank publishes the addresses of its
// pieces before a rendezvous (`PublishPiece`). The other ranks read the pieces after it (`PieceOf`), up to the next
// barrier. If a value could not be moved to its home, its piece is copied to the end of the buffer.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace matex {

class Homes {
 public:
  // `variable_bytes`: the size of each variable. `pieces_bytes`: the size of all pieces of a rank together, maximum
  // over ranks. Collective. `made` is null on all ranks if they cannot share memory. Returns an MPI error code.
  static int Make(MPI_Comm communicator, const std::vector<int64_t>& variable_bytes, int64_t pieces_bytes,
                  std::shared_ptr<Homes>* made);
  ~Homes();
  Homes(const Homes&) = delete;
  Homes& operator=(const Homes&) = delete;

  // This rank's home of variable `i`, aligned to 64 bytes; null while another tensor occupies it. `Release` frees it.
  char* Occupy(int i);
  void Release(int i) { is_occupied_[i] = false; }
  bool IsHome(int i, const void* address) const { return address == HomeOf(i); }

  // Publishes the address of this rank's piece of variable `i`. A piece outside of this rank's buffer is copied into
  // it, to offset `offset_in_copies` of the area for copies.
  void PublishPiece(int i, const char* piece, int64_t bytes, int64_t offset_in_copies);

  // The address of rank `rank`'s piece of variable `i`, as published by that rank.
  const char* PieceOf(int rank, int i) const { return BufferOf(rank) + TableOf(rank)[i]; }

 private:
  // Offsets in the buffer of a rank, which begins with the table of published addresses.
  struct Offsets {
    Offsets(const std::vector<int64_t>& variable_bytes, int64_t pieces_bytes);
    std::vector<int64_t> homes;  // of each variable
    int64_t copies = 0;          // the area for copies of pieces
    int64_t end = 0;             // the size of the buffer
  };

  Homes(void* memory, const Offsets& offsets, int rank, int size);
  char* BufferOf(int rank) const;
  // The addresses of a rank's pieces, as offsets in its buffer, because each process maps the memory elsewhere.
  int64_t* TableOf(int rank) const { return reinterpret_cast<int64_t*>(BufferOf(rank)); }
  char* HomeOf(int i) const { return BufferOf(rank_) + offsets_.homes[i]; }  // this rank's home of variable `i`

  void* const memory_;
  const Offsets offsets_;
  const int rank_;
  const int size_;
  std::vector<std::atomic<bool>> is_occupied_;  // whether a tensor uses this rank's home of variable i
};

}  // namespace matex
