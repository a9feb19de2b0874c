// The buffers of the ranks in shared memory (homes.h). A buffer begins with a table of the rank's pieces, its parts of
// the variables. Then come the homes, the memory for the values of the variables; and last, copies of pieces whose
// variables are not in their homes.
#include "engine/store/homes.h"

#include <sys/mman.h>

#include <algorithm>

#include "engine/mpi/common_memory.h"

namespace matex {
namespace {

constexpr int64_t kAligned = 64;  // TensorFlow aborts on a tensor that is not aligned to 64 bytes

int64_t RoundUp(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

// The shared memory: one buffer for each rank, and no data that belong to all ranks.
CommonLayout HomesLayout(int64_t buffer_bytes) { return CommonLayout::Of(/*bytes=*/0, buffer_bytes); }

}  // namespace

Homes::Offsets::Offsets(const std::vector<int64_t>& variable_bytes, int64_t pieces_bytes) {
  const auto table_bytes = static_cast<int64_t>(variable_bytes.size() * sizeof(int64_t));
  int64_t next = RoundUp(table_bytes, kAligned);
  for (const int64_t bytes : variable_bytes) {
    homes.push_back(next);
    next += RoundUp(bytes, kAligned);
  }
  copies = next;
  end = RoundUp(copies + pieces_bytes, kMemoryPage);
}

int Homes::Make(MPI_Comm communicator, const std::vector<int64_t>& variable_bytes, int64_t pieces_bytes,
                std::shared_ptr<Homes>* made) {
  int rank = 0, size = 1;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);
  const Offsets offsets(variable_bytes, pieces_bytes);
  void* memory = nullptr;
  const auto prepare_nothing = [](void*) {};
  const int code = MakeCommonMemory(communicator, HomesLayout(offsets.end), prepare_nothing, &memory);
  if (memory != nullptr) made->reset(new Homes(memory, offsets, rank, size));
  return code;
}

Homes::Homes(void* memory, const Offsets& offsets, int rank, int size)
    : memory_(memory), offsets_(offsets), rank_(rank), size_(size), is_occupied_(offsets.homes.size()) {}

Homes::~Homes() { munmap(memory_, HomesLayout(offsets_.end).Bytes(size_)); }  // mapped by MakeCommonMemory

char* Homes::BufferOf(int rank) const {
  return static_cast<char*>(memory_) + HomesLayout(offsets_.end).head + rank * offsets_.end;
}

char* Homes::Occupy(int i) {
  const bool was_occupied = is_occupied_[i].exchange(true);
  return was_occupied ? nullptr : HomeOf(i);
}

void Homes::PublishPiece(int i, const char* piece, int64_t bytes, int64_t offset_in_copies) {
  char* const buffer = BufferOf(rank_);
  const bool is_in_buffer = piece >= buffer && piece < buffer + offsets_.end;
  if (!is_in_buffer) {
    char* const copy = buffer + offsets_.copies + offset_in_copies;
    std::copy_n(piece, bytes, copy);
    piece = copy;
  }
  TableOf(rank_)[i] = piece - buffer;
}

}  // namespace matex
