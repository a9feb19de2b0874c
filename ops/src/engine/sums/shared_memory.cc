// Three forms of a sum. Two ranks stream blocks to each other: each writes blocks and reads the other's at the same
// time (SumOfTwo). More ranks meet for each chunk (SumOfMany). If each rank needs only some elements, `Sum(needed)`
// sums only those. A meeting is a barrier (arrivals.h).
#include "engine/sums/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/base/reduce_ops.h"

namespace matex {

namespace {

constexpr int kBuffers = 2;
// The chunks of all ranks together fit into the cache that their cores share. Ranks meet for each chunk, so larger
// chunks mean fewer meetings.
constexpr int64_t kBytesOfAllRanks = 2 << 20, kMinChunk = 256 << 10, kMaxChunk = 512 << 10;
// The blocks of two ranks stay in the cache of one core. A rank first writes until it is kAhead blocks ahead of its
// reads, so that the other rank has blocks to read. Then it reads whatever is ready, and writes while nothing is.
constexpr int64_t kBlockBytes = 64 << 10;
constexpr int kAhead = 2;

int64_t ChunkBytesFor(int size) {
  return std::clamp<int64_t>(kBytesOfAllRanks / size, kMinChunk, kMaxChunk) / kMemoryPage * kMemoryPage;
}

}  // namespace

int SharedMemory::Make(MPI_Comm communicator, std::unique_ptr<SharedMemory>* made) {
  int rank = 0, size = 1;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);
  std::unique_ptr<Arrivals> arrivals;
  const int64_t chunk = ChunkBytesFor(size);
  const int code = Arrivals::Make(communicator, kBuffers * chunk, &arrivals);
  if (arrivals != nullptr) made->reset(new SharedMemory(std::move(arrivals), chunk, rank, size));
  return code;
}

SharedMemory::SharedMemory(std::unique_ptr<Arrivals> arrivals, int64_t chunk_bytes, int rank, int size)
    : arrivals_(std::move(arrivals)), chunk_bytes_(chunk_bytes), rank_(rank), size_(size) {}

char* SharedMemory::BufferOf(int rank) const { return arrivals_->BytesOf(rank) + chunks_ % kBuffers * chunk_bytes_; }

int SharedMemory::BeginChunk(char** mine) {
  *mine = BufferOf(rank_);
  return BeginBlocks(false);
}

void SharedMemory::Write(Type type, const char* one, const char* other, char* to, int64_t count) {
  if (other != nullptr) return Add(type, one, other, to, count);
  std::memcpy(to, one, count * SizeOf(type));
}

int SharedMemory::Sum(Type type, int64_t count, const Produce& produce, const Consume& consume) {
  return size_ == 2 ? SumOfTwo(type, count, produce, consume) : SumOfMany(type, count, produce, consume);
}

// Changes the use of the memory between blocks and chunks. After the meeting no rank reads the earlier content.
int SharedMemory::BeginBlocks(bool in_blocks) {
  if (in_blocks == in_blocks_) return MPI_SUCCESS;
  in_blocks_ = in_blocks;
  return arrivals_->Meet();
}

int SharedMemory::SumOfTwo(Type type, int64_t count, const Produce& produce, const Consume& consume) {
  if (const int code = BeginBlocks(true)) return code;
  const int64_t slots = kBuffers * chunk_bytes_ / kBlockBytes, block = kBlockBytes / static_cast<int64_t>(SizeOf(type));
  const int64_t first = blocks_.written, last = first + (count + block - 1) / block;
  const int other = 1 - rank_;
  const auto at = [&](int rank, int64_t number) { return arrivals_->BytesOf(rank) + number % slots * kBlockBytes; };
  const auto length = [&](int64_t number) { return std::min(block, count - (number - first) * block); };
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
      produce(at(rank_, number), (number - first) * block, length(number));
      ++blocks_.written;
    } else {
      const int64_t number = blocks_.read;
      consume(at(0, number), at(1, number), (number - first) * block, length(number));
      ++blocks_.read;
    }
    arrivals_->Show(blocks_);
  }
  return MPI_SUCCESS;
}

// For each chunk: all ranks write their elements and meet; each rank sums one share of the chunk, and all meet again;
// then all read the sums. Two alternating buffers suffice: a rank writes the buffer of chunk k again for chunk k + 2.
// That is after the meetings of chunk k + 1, to which every rank comes after it has read the sums of chunk k.
int SharedMemory::SumOfMany(Type type, int64_t count, const Produce& produce, const Consume& consume) {
  const int64_t width = static_cast<int64_t>(SizeOf(type)), chunk = ElementsPerChunk(type);
  std::vector<const void*> addends(size_);
  for (int64_t first = 0; first < count; first += chunk) {
    const int64_t length = std::min(chunk, count - first);
    produce(BufferOf(rank_), first, length);
    if (const int code = arrivals_->Meet()) return code;
    const auto begin = [&](int64_t rank) { return length * rank / size_; };
    const auto share = [&](int64_t rank) { return begin(rank + 1) - begin(rank); };  // the elements that it sums
    for (int rank = 0; rank < size_; ++rank) addends[rank] = BufferOf(rank) + begin(rank_) * width;
    AddAll(type, addends, BufferOf(rank_) + begin(rank_) * width, share(rank_));
    if (const int code = arrivals_->Meet()) return code;
    for (int rank = 0; rank < size_; ++rank) {
      if (share(rank) > 0) consume(BufferOf(rank) + begin(rank) * width, nullptr, first + begin(rank), share(rank));
    }
    ++chunks_;
  }
  return MPI_SUCCESS;
}

// One meeting for each chunk suffices: sums are written to memory of this process, and the buffer of chunk k is written
// again only after the meeting of chunk k + 1, to which every rank comes after it has read chunk k.
int SharedMemory::Sum(Type type, const std::vector<Needed>& needed) {
  if (const int code = arrivals_->Meet()) return code;
  for (const Needed& one : needed) {
    std::vector<const void*> addends;
    for (int rank = 0; rank < size_; ++rank)
      addends.push_back(BufferOf(rank) + one.first * static_cast<int64_t>(SizeOf(type)));
    AddAll(type, addends, one.to, one.count);
  }
  ++chunks_;
  return MPI_SUCCESS;
}

}  // namespace matex
