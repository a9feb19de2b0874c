// Memory in which each rank of one host has its own copy of some variables, for the others to read its pieces there.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace matex {

class Homes {
 public:
  // Of variables of so many bytes, and of pieces of up to `piece` bytes together. All ranks of `communicator` call it
  // together. `made` is null on all where they have no memory in common. Returns an error code of MPI.
  static int Make(MPI_Comm communicator, const std::vector<int64_t>& bytes, int64_t piece, std::shared_ptr<Homes>* made);
  ~Homes();
  Homes(const Homes&) = delete;
  Homes& operator=(const Homes&) = delete;

  // This rank's memory of variable `i`, at a multiple of 64 bytes; null if somebody has it still. `Leave` gives it back.
  char* Take(int i);
  void Leave(int i) { taken_[i] = false; }
  bool Has(int i, const void* place) const { return place == At(i); }

  // Tells the others where this rank's piece of variable `i` lies: in the memory of that, or else in a copy that is put
  // `aside`, so many bytes behind the first.
  void Show(int i, const char* piece, int64_t bytes, int64_t aside);

  // Where that rank has told last that its piece lies.
  const char* Shown(int rank, int i) const { return PartOf(rank) + TableOf(rank)[i]; }

 private:
  // Where things are in the part of a rank: a table of what it shows, the variables, and what is put aside.
  struct Places {
    Places(const std::vector<int64_t>& bytes, int64_t piece);
    std::vector<int64_t> variables;
    int64_t aside = 0;
    int64_t part = 0;
  };

  Homes(void* memory, const Places& places, int rank, int size);
  char* PartOf(int rank) const;
  int64_t* TableOf(int rank) const { return reinterpret_cast<int64_t*>(PartOf(rank)); }
  char* At(int i) const { return PartOf(rank_) + places_.variables[i]; }

  void* const memory_;
  const Places places_;
  const int rank_;
  const int size_;
  std::vector<std::atomic<bool>> taken_;
};

}  // namespace matex
