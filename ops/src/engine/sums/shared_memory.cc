// Sums in shared memory (shared_memory.h). A sum has one of three forms. They differ in what a rank waits for:
//
// - PassBlocks, for two ranks: a rank writes blocks and reads the other rank's blocks at the same time. It waits only
//   for the next block, so copying and adding overlap. In a `Sum` both ranks add all elements. In an `Exchange` a rank
//   writes only the elements that the other rank needs.
// - SumOfMany, for more ranks: a rank adds only its share of each chunk, and reads the other shares. With all ranks
//   adding all elements, the work of a rank would grow with their number. Ranks meet twice for each chunk: after they
//   have written their elements, and after they have added their shares.
// - SumNeeded, for more ranks, of which each needs only some elements, for example the elements that it owns: a rank
//   adds these elements and reads no sum of another rank. So the second meeting is not necessary.
//
// A meeting is a barrier (arrivals.h).
#include "engine/sums/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/base/reduce_ops.h"

namespace matex {

namespace {

// Each rank has two buffers of a chunk, used in turn: chunk k is in buffer k % 2.
constexpr int kBuffers = 2;
// The chunks of all ranks fit into the cache that their cores share. Larger chunks mean fewer meetings.
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

void SharedMemory::Write(Type type, const char* one, const char* other, char* to, int64_t count) {
  if (other != nullptr) return Add(type, one, other, to, count);
  std::memcpy(to, one, count * SizeOf(type));
}

int SharedMemory::Sum(Type type, int64_t count, const Produce& produce, const Consume& consume) {
  return size_ == 2 ? PassBlocks(type, count, count, produce, consume) : SumOfMany(type, count, produce, consume);
}

int SharedMemory::Exchange(Type type, int64_t theirs, int64_t mine, const Produce& produce,
                           const ConsumeOther& consume) {
  return PassBlocks(type, theirs, mine, produce, [&](const char* one, const char* two, int64_t first, int64_t count) {
    consume(rank_ == 0 ? two : one, first, count);
  });
}

// The memory of a rank is a ring of `slots` blocks: block number n, counted from the first sum of the process, is in
// slot n % slots. A rank writes block n only after both ranks have read block n - slots. The two numbers of `See` are
// read one after the other: the other rank may have read blocks that it had not yet written at the first look.
// Both ranks write and read equally many blocks, so that their numbers stay equal; a shorter share ends with empty
// blocks.
int SharedMemory::PassBlocks(Type type, int64_t writes, int64_t reads, const Produce& produce, const Consume& consume) {
  const int64_t slots = kBuffers * chunk_bytes_ / kBlockBytes;
  const int64_t block = kBlockBytes / static_cast<int64_t>(SizeOf(type));  // elements
  // This sum's blocks have the numbers [first, last).
  const int64_t first = blocks_.written, last = first + (std::max(writes, reads) + block - 1) / block;
  const int other = 1 - rank_;
  const auto at = [&](int rank, int64_t number) { return arrivals_->BytesOf(rank) + number % slots * kBlockBytes; };
  // Calls `work(start, count)` for the elements of `all` that block `number` has.
  const auto within = [&](int64_t all, int64_t number, const auto& work) {
    const int64_t start = (number - first) * block;
    if (start < all) work(start, std::min(block, all - start));
  };
  while (blocks_.read < last) {
    Arrivals::Blocks seen;  // the progress of the other rank
    const auto may_write = [&] {
      return blocks_.written < last && blocks_.written - std::min(blocks_.read, seen.read) < slots;
    };
    const auto may_read = [&] { return blocks_.read < std::min(blocks_.written, seen.written); };
    const int code = arrivals_->WaitUntil([&] {
      seen = arrivals_->See(other);
      return may_write() || may_read();
    });
    if (code != MPI_SUCCESS) return code;
    const bool is_far_ahead = blocks_.written - blocks_.read >= kAhead;
    const bool prefers_read = is_far_ahead && may_read();
    if (may_write() && !prefers_read) {
      const int64_t number = blocks_.written;
      within(writes, number, [&](int64_t start, int64_t count) { produce(at(rank_, number), start, count); });
      ++blocks_.written;
    } else {
      const int64_t number = blocks_.read;
      within(reads, number, [&](int64_t start, int64_t count) { consume(at(0, number), at(1, number), start, count); });
      ++blocks_.read;
    }
    arrivals_->Show(blocks_);
  }
  return MPI_SUCCESS;
}

// For each chunk: all ranks write their elements and meet; each rank sums one share of the chunk, and all meet again;
// then all read the sums. Two alternating buffers suffice: a rank writes the buffer of chunk k again for chunk k + 2.
// Before that it meets for chunk k + 1; every rank comes to this meeting only after it has read the sums of chunk k.
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

// One meeting for each chunk suffices. After it, the elements of all ranks are in shared memory, and each rank writes
// its sums to its own memory, where no other rank reads. The two buffers protect what others still read, as in
// SumOfMany: a rank writes the buffer of chunk k again after the meeting of chunk k + 1, before which all have read
// chunk k.
int SharedMemory::SumNeeded(Type type, const std::vector<Needed>& needed) {
  if (const int code = arrivals_->Meet()) return code;
  for (const Needed& range : needed) {
    std::vector<const void*> addends;
    for (int rank = 0; rank < size_; ++rank)
      addends.push_back(BufferOf(rank) + range.first * static_cast<int64_t>(SizeOf(type)));
    AddAll(type, addends, range.to, range.count);
  }
  ++chunks_;
  return MPI_SUCCESS;
}

}  // namespace matex
