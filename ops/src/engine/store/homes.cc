// Shared memory in which the ranks of a host read each other's pieces (homes.h). Each rank has one buffer in it: a table
// of offsets, then its variables, then room for copied pieces.
#include "engine/store/homes.h"

#include <sys/mman.h>

#include <algorithm>

#include "engine/mpi/common_memory.h"

namespace matex {
namespace {

constexpr int64_t kAligned = 64;  // TensorFlow aborts on a tensor that is not aligned to 64 bytes

int64_t RoundUp(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

CommonLayout HomesLayout(int64_t part) { return CommonLayout::Of(/*head_bytes=*/0, part); }

}  // namespace

Homes::Places::Places(const std::vector<int64_t>& bytes, int64_t piece) {
  part = RoundUp(static_cast<int64_t>(bytes.size() * sizeof(int64_t)), kAligned);
  for (const int64_t one : bytes) {
    variables.push_back(part);
    part += RoundUp(one, kAligned);
  }
  copies = part;
  part = RoundUp(part + piece, kMemoryPage);
}

int Homes::Make(MPI_Comm communicator, const std::vector<int64_t>& bytes, int64_t piece, std::shared_ptr<Homes>* made) {
  int rank = 0, size = 1;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);
  const Places places(bytes, piece);
  void* memory = nullptr;
  const int code = MakeCommonMemory(communicator, HomesLayout(places.part), [](void*) {}, &memory);
  if (memory != nullptr) made->reset(new Homes(memory, places, rank, size));
  return code;
}

Homes::Homes(void* memory, const Places& places, int rank, int size)
    : memory_(memory), places_(places), rank_(rank), size_(size), taken_(places.variables.size()) {}

Homes::~Homes() { munmap(memory_, HomesLayout(places_.part).Bytes(size_)); }

char* Homes::PartOf(int rank) const {
  return static_cast<char*>(memory_) + HomesLayout(places_.part).head + rank * places_.part;
}

char* Homes::Take(int i) { return taken_[i].exchange(true) ? nullptr : At(i); }

void Homes::Show(int i, const char* piece, int64_t bytes, int64_t offset_in_home) {
  char* const part = PartOf(rank_);
  if (piece < part || piece >= part + places_.part) {
    char* const copy = part + places_.copies + offset_in_home;
    std::copy_n(piece, bytes, copy);
    piece = copy;
  }
  TableOf(rank_)[i] = piece - part;
}

}  // namespace matex
