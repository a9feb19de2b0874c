#include "engine/sums/shared_memory.h"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "engine/base/reduce_ops.h"
#include "engine/mpi/common_memory.h"

namespace matex {

// How often a rank has come to a meeting. One rank writes it, and no other's is in the same line of a cache.
struct alignas(128) SharedMemory::Arrival {
  std::atomic<int64_t> count{0};
};

namespace {

constexpr int kBuffers = 2;
constexpr int kLooks = 2'000;        // some ten microseconds, or a hundred where a pause is a long one
constexpr int kYields = 200;
constexpr long kNap = 20'000;      // nanoseconds

static_assert(std::atomic<int64_t>::is_always_lock_free, "an atomic number must be one in the memory of several processes");

// Arrivals come first, then what each rank writes.
CommonLayout LayoutFor(int64_t arrivals) { return CommonLayout::Of(arrivals, kBuffers * SharedMemory::kPart); }

// Of all ranks together: each may be bound to some.
int CountProcessors(MPI_Comm communicator, int* processors) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) {
    for (long one = 0; one < std::min<long>(sysconf(_SC_NPROCESSORS_ONLN), CPU_SETSIZE); ++one) CPU_SET(one, &mine);
  }
  const int code = MPI_Allreduce(MPI_IN_PLACE, &mine, sizeof mine, MPI_BYTE, MPI_BOR, communicator);
  *processors = CPU_COUNT(&mine);
  return code;
}

}  // namespace

int SharedMemory::Make(MPI_Comm communicator, std::unique_ptr<SharedMemory>* made) {
  int rank = 0, size = 1;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);
  void* memory = nullptr;
  const auto prepare = [size](void* head) {
    for (int one = 0; one < size; ++one) new (static_cast<Arrival*>(head) + one) Arrival;
  };
  int code = MakeCommonMemory(communicator, LayoutFor(size * sizeof(Arrival)), prepare, &memory);
  int processors = 0;
  if (code == MPI_SUCCESS) code = CountProcessors(communicator, &processors);
  if (memory != nullptr && code != MPI_SUCCESS) munmap(memory, LayoutFor(size * sizeof(Arrival)).Bytes(size));
  if (memory != nullptr && code == MPI_SUCCESS) {
    made->reset(new SharedMemory(communicator, memory, rank, size, processors));
  }
  return code;
}

SharedMemory::SharedMemory(MPI_Comm communicator, void* memory, int rank, int size, int processors)
    : communicator_(communicator),
      memory_(static_cast<char*>(memory)),
      rank_(rank),
      size_(size),
      looks_(size > processors ? 0 : kLooks) {}

SharedMemory::~SharedMemory() { munmap(memory_, LayoutFor(size_ * sizeof(Arrival)).Bytes(size_)); }

char* SharedMemory::Of(int rank) const {
  char* const first = memory_ + LayoutFor(size_ * sizeof(Arrival)).head;
  return first + (rank * kBuffers + parts_ % kBuffers) * kPart;
}

char* SharedMemory::Mine() const { return Of(rank_); }

void SharedMemory::Write(Type type, const char* one, const char* other, char* to, int64_t count) {
  if (other != nullptr) return Add(type, one, other, to, count);
  std::memcpy(to, one, count * SizeOf(type));
}

// Returns when all ranks have come; what they wrote before is there then.
void SharedMemory::Meet() {
  Arrival* const arrivals = reinterpret_cast<Arrival*>(memory_);
  arrivals[rank_].count.store(++met_, std::memory_order_release);
  for (int one = 1; one < size_; ++one) {
    const std::atomic<int64_t>& other = arrivals[(rank_ + one) % size_].count;
    for (int looks = 0; other.load(std::memory_order_acquire) < met_; ++looks) {
      if (looks < looks_) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      } else if (looks < looks_ + kYields) {
        sched_yield();
      } else {
        const timespec pause{0, kNap};
        nanosleep(&pause, nullptr);
        // What MPI has still to send, another rank may be waiting for.
        int any = 0;
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator_, &any, MPI_STATUS_IGNORE);
      }
    }
  }
}

// A rank writes into a buffer again once all have come to the meeting after the one at which it was read: by then they
// are through with it. So two buffers do. Of two ranks each adds up all, of more each its own share for all others.
void SharedMemory::Sum(Type type, int64_t count, const Take& take) {
  Meet();
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
    Meet();
    for (int rank = 0; rank < size_; ++rank) {
      if (share(rank) > 0) take(Of(rank) + begin(rank) * width, nullptr, begin(rank), share(rank));
    }
  }
  ++parts_;
}

// One meeting does, as for the sum of two ranks: nobody writes what another is to read.
void SharedMemory::Sum(Type type, const std::vector<Wanted>& wanted) {
  Meet();
  for (const Wanted& one : wanted) {
    std::vector<const void*> parts;
    for (int rank = 0; rank < size_; ++rank) parts.push_back(Of(rank) + one.first * static_cast<int64_t>(SizeOf(type)));
    AddAll(type, parts, one.to, one.count);
  }
  ++parts_;
}

}  // namespace matex
