#include "engine/sums/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/base/reduce_ops.h"

namespace matex {

namespace {

constexpr int kBuffers = 2;
// The chunks of all ranks together fit into the cache that their cores share. Ranks meet once for each chunk, so
// larger chunks mean fewer meetings.
constexpr int64_t kOfAll = 2 << 20, kLeast = 256 << 10, kMost = 512 << 10;
// Two ranks exchange blocks, which stay in the cache of one core: a rank writes up to kAhead blocks before it reads
// those of the other rank, and writes further while none is ready.
constexpr int64_t kBlockBytes = 64 << 10;
constexpr int kAhead = 2;

int64_t PartOfRanks(int size) {
  return std::clamp<int64_t>(kOfAll / size, kLeast, kMost) / kMemoryPage * kMemoryPage;
}

}  // namespace

int SharedMemory::Make(MPI_Comm communicator, std::unique_ptr<SharedMemory>* made) {
  int rank = 0, size = 1;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);
  std::unique_ptr<Arrivals> arrivals;
  const int64_t part = PartOfRanks(size);
  const int code = Arrivals::Make(communicator, kBuffers * part, &arrivals);
  if (arrivals != nullptr) made->reset(new SharedMemory(std::move(arrivals), part, rank, size));
  return code;
}

SharedMemory::SharedMemory(std::unique_ptr<Arrivals> arrivals, int64_t part, int rank, int size)
    : arrivals_(std::move(arrivals)), part_(part), rank_(rank), size_(size) {}

char* SharedMemory::Of(int rank) const { return arrivals_->PartOf(rank) + parts_ % kBuffers * part_; }

int SharedMemory::BeginPart(char** mine) {
  *mine = Of(rank_);
  return BeginBlocks(false);
}

void SharedMemory::Write(Type type, const char* one, const char* other, char* to, int64_t count) {
  if (other != nullptr) return Add(type, one, other, to, count);
  std::memcpy(to, one, count * SizeOf(type));
}

int SharedMemory::Sum(Type type, int64_t count, const Put& put, const Take& take) {
  return size_ == 2 ? SumOfTwo(type, count, put, take) : SumOfMany(type, count, put, take);
}

// Blocks and chunks use the same memory: after a meeting the other rank has read the memory's previous content.
int SharedMemory::BeginBlocks(bool in_blocks) {
  if (in_blocks == in_blocks_) return MPI_SUCCESS;
  in_blocks_ = in_blocks;
  return arrivals_->Meet();
}

int SharedMemory::SumOfTwo(Type type, int64_t count, const Put& put, const Take& take) {
  if (const int code = BeginBlocks(true)) return code;
  const int64_t slots = kBuffers * part_ / kBlockBytes, block = kBlockBytes / static_cast<int64_t>(SizeOf(type));
  const int64_t first = blocks_.written, last = first + (count + block - 1) / block;
  const int other = 1 - rank_;
  const auto at = [&](int rank, int64_t number) { return arrivals_->PartOf(rank) + number % slots * kBlockBytes; };
  const auto taken = [&](int64_t number) { return std::min(block, count - (number - first) * block); };
  while (blocks_.read < last) {
    Arrivals::Blocks seen;
    const auto may_write = [&] { return blocks_.written < last && blocks_.written - seen.read < slots; };
    const auto may_read = [&] { return blocks_.read < std::min(blocks_.written, seen.written); };
    const int code = arrivals_->WaitUntil([&] {
      seen = arrivals_->See(other);
      return may_write() || may_read();
    });
    if (code != MPI_SUCCESS) return code;
    if (may_write() && (blocks_.written - blocks_.read < kAhead || !may_read())) {
      const int64_t number = blocks_.written;
      put(at(rank_, number), (number - first) * block, taken(number));
      ++blocks_.written;
    } else {
      const int64_t number = blocks_.read;
      take(at(0, number), at(1, number), (number - first) * block, taken(number));
      ++blocks_.read;
    }
    arrivals_->Show(blocks_);
  }
  return MPI_SUCCESS;
}

// A rank rewrites a buffer only after the meeting that follows its reads: by then all ranks have finished reading. So
// two buffers suffice. Each rank sums its own share of the elements for all ranks.
int SharedMemory::SumOfMany(Type type, int64_t count, const Put& put, const Take& take) {
  const int64_t width = static_cast<int64_t>(SizeOf(type)), part = PartOf(type);
  std::vector<const void*> shares(size_);
  for (int64_t first = 0; first < count; first += part) {
    const int64_t taken = std::min(part, count - first);
    put(Of(rank_), first, taken);
    if (const int code = arrivals_->Meet()) return code;
    const auto begin = [&](int64_t rank) { return taken * rank / size_; };
    const auto share = [&](int64_t rank) { return begin(rank + 1) - begin(rank); };
    for (int one = 0; one < size_; ++one) shares[one] = Of(one) + begin(rank_) * width;
    AddAll(type, shares, Of(rank_) + begin(rank_) * width, share(rank_));
    if (const int code = arrivals_->Meet()) return code;
    for (int rank = 0; rank < size_; ++rank) {
      if (share(rank) > 0) take(Of(rank) + begin(rank) * width, nullptr, first + begin(rank), share(rank));
    }
    ++parts_;
  }
  return MPI_SUCCESS;
}

// One meeting suffices: no rank overwrites memory that another rank reads.
int SharedMemory::Sum(Type type, const std::vector<Wanted>& wanted) {
  if (const int code = arrivals_->Meet()) return code;
  for (const Wanted& one : wanted) {
    std::vector<const void*> parts;
    for (int rank = 0; rank < size_; ++rank) parts.push_back(Of(rank) + one.first * static_cast<int64_t>(SizeOf(type)));
    AddAll(type, parts, one.to, one.count);
  }
  ++parts_;
  return MPI_SUCCESS;
}

}  // namespace matex
