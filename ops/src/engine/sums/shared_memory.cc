#include "engine/sums/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/base/reduce_ops.h"

namespace matex {

namespace {

constexpr int kBuffers = 2;

}  // namespace

int SharedMemory::Make(MPI_Comm communicator, std::unique_ptr<SharedMemory>* made) {
  int rank = 0, size = 1;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);
  std::unique_ptr<Arrivals> arrivals;
  const int code = Arrivals::Make(communicator, kBuffers * kPart, &arrivals);
  if (arrivals != nullptr) made->reset(new SharedMemory(std::move(arrivals), rank, size));
  return code;
}

SharedMemory::SharedMemory(std::unique_ptr<Arrivals> arrivals, int rank, int size)
    : arrivals_(std::move(arrivals)), rank_(rank), size_(size) {}

char* SharedMemory::Of(int rank) const { return arrivals_->PartOf(rank) + parts_ % kBuffers * kPart; }

char* SharedMemory::Mine() const { return Of(rank_); }

void SharedMemory::Write(Type type, const char* one, const char* other, char* to, int64_t count) {
  if (other != nullptr) return Add(type, one, other, to, count);
  std::memcpy(to, one, count * SizeOf(type));
}

// A rank writes into a buffer again once all have come to the meeting after the one at which it was read: by then they
// are through with it. So two buffers do. Of two ranks each adds up all, of more each its own share for all others.
int SharedMemory::Sum(Type type, int64_t count, const Take& take) {
  if (const int code = arrivals_->Meet()) return code;
  if (size_ == 2) {
    take(Of(0), Of(1), 0, count);
  } else {
    const int64_t width = static_cast<int64_t>(SizeOf(type));
    const auto begin = [&](int64_t rank) { return count * rank / size_; };
    const auto share = [&](int64_t rank) { return begin(rank + 1) - begin(rank); };
    char* const mine = Mine() + begin(rank_) * width;
    std::vector<const void*> shares;
    for (int one = 0; one < size_; ++one) shares.push_back(Of(one) + begin(rank_) * width);
    AddAll(type, shares, mine, share(rank_));
    if (const int code = arrivals_->Meet()) return code;
    for (int rank = 0; rank < size_; ++rank) {
      if (share(rank) > 0) take(Of(rank) + begin(rank) * width, nullptr, begin(rank), share(rank));
    }
  }
  ++parts_;
  return MPI_SUCCESS;
}

// One meeting does, as for the sum of two ranks: nobody writes what another is to read.
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
