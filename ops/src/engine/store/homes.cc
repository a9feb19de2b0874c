// The shared memory (homes.h) has a buffer for each rank: a table of the offsets of the published pieces, then the
// rank's variables, then room for copies of pieces that lie elsewhere.
#include "engine/store/homes.h"

#include <sys/mman.h>

#include <algorithm>

#include "engine/mpi/common_memory.h"

namespace matex {
namespace {

constexpr int64_t kAligned = 64;  // TensorFlow aborts on a tensor that is not aligned to 64 bytes

int64_t RoundUp(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

CommonLayout HomesLayout(int64_t buffer_bytes) { return CommonLayout::Of(/*bytes=*/0, buffer_bytes); }

}  // namespace

Homes::Offsets::Offsets(const std::vector<int64_t>& bytes, int64_t piece) {
  end = RoundUp(static_cast<int64_t>(bytes.size() * sizeof(int64_t)), kAligned);  // the end of the table, at first
  for (const int64_t of_variable : bytes) {
    variables.push_back(end);
    end += RoundUp(of_variable, kAligned);
  }
  copies = end;
  end = RoundUp(copies + piece, kMemoryPage);
}

int Homes::Make(MPI_Comm communicator, const std::vector<int64_t>& bytes, int64_t piece, std::shared_ptr<Homes>* made) {
  int rank = 0, size = 1;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);
  const Offsets offsets(bytes, piece);
  void* memory = nullptr;
  const auto prepare_nothing = [](void*) {};
  const int code = MakeCommonMemory(communicator, HomesLayout(offsets.end), prepare_nothing, &memory);
  if (memory != nullptr) made->reset(new Homes(memory, offsets, rank, size));
  return code;
}

Homes::Homes(void* memory, const Offsets& offsets, int rank, int size)
    : memory_(memory), offsets_(offsets), rank_(rank), size_(size), in_use_(offsets.variables.size()) {}

Homes::~Homes() { munmap(memory_, HomesLayout(offsets_.end).Bytes(size_)); }

char* Homes::BufferOf(int rank) const {
  return static_cast<char*>(memory_) + HomesLayout(offsets_.end).head + rank * offsets_.end;
}

char* Homes::Take(int i) {
  const bool was_in_use = in_use_[i].exchange(true);
  return was_in_use ? nullptr : At(i);
}

void Homes::Show(int i, const char* piece, int64_t bytes, int64_t offset_in_copies) {
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
