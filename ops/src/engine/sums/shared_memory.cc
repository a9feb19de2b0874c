#include "engine/sums/shared_memory.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "engine/base/reduce_ops.h"

namespace matex {

// How often a rank has come to a meeting. One rank writes it, and no other's is in the same line of a cache.
struct alignas(128) SharedMemory::Arrival {
  std::atomic<int64_t> count{0};
};

namespace {

constexpr int kBuffers = 2;
constexpr int64_t kPage = 64 << 10;  // of any processor
constexpr int kLooks = 2'000;        // some ten microseconds, or a hundred where a pause is a long one
constexpr int kYields = 200;
constexpr long kNap = 20'000;      // nanoseconds

static_assert(std::atomic<int64_t>::is_always_lock_free, "an atomic number must be one in the memory of several processes");

// Where what ranks write begins: in a page of its own, and so does each rank's, which is near its core then.
int64_t FirstBuffer(int64_t arrivals) { return (arrivals + sizeof(int64_t) + kPage - 1) / kPage * kPage; }

int64_t BytesFor(int64_t arrivals, int size) { return FirstBuffer(arrivals) + size * kBuffers * SharedMemory::kPart; }

// Where the first rank has put the memory: an open file of a process, without a name, and a mark by which it is known.
struct Address {
  int64_t process = 0;
  int64_t file = -1;
  int64_t mark = 0;
};

int64_t AnyMark(const void* some) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec * 1'000'000'007 + now.tv_nsec) ^ reinterpret_cast<int64_t>(some);
}

// A file in memory that no one else can open by name, with room for what comes first; -1 if there is none.
int Create(int64_t first, int64_t bytes) {
  const int file = static_cast<int>(syscall(SYS_memfd_create, "matex_tf", 1U /* MFD_CLOEXEC */));
  if (file < 0) return -1;
  if (ftruncate(file, bytes) == 0 && posix_fallocate(file, 0, first) == 0) return file;
  close(file);
  return -1;
}

int Open(const Address& address, int64_t bytes) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%lld/fd/%lld", static_cast<long long>(address.process),
                static_cast<long long>(address.file));
  // A process of that number elsewhere may have something else there, which is better not opened.
  struct stat found;
  if (stat(path, &found) != 0 || !S_ISREG(found.st_mode) || found.st_size != bytes) return -1;
  return open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

void* Map(int file, int64_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

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
  const int64_t arrivals = size * static_cast<int64_t>(sizeof(Arrival));
  const int64_t bytes = BytesFor(arrivals, size);
  Address address;
  void* memory = nullptr;
  int file = -1;
  if (rank == 0 && (file = Create(FirstBuffer(arrivals), bytes)) >= 0 && (memory = Map(file, bytes)) != nullptr) {
    address = {getpid(), file, AnyMark(memory)};
    for (int one = 0; one < size; ++one) new (static_cast<Arrival*>(memory) + one) Arrival;
    std::memcpy(static_cast<char*>(memory) + arrivals, &address.mark, sizeof address.mark);
  }
  const int told = MPI_Bcast(&address, sizeof address, MPI_BYTE, 0, communicator);
  if (told == MPI_SUCCESS && rank > 0 && address.file >= 0 && (file = Open(address, bytes)) >= 0) {
    memory = Map(file, bytes);
    // Nor need a file of the same size be the same.
    if (memory != nullptr && std::memcmp(static_cast<char*>(memory) + arrivals, &address.mark, sizeof address.mark)) {
      munmap(memory, bytes);
      memory = nullptr;
    }
  }
  // Memory that is only promised is a SIGBUS later. What a rank asks for first lies near it.
  const int64_t own = kBuffers * kPart;
  int everyone = memory != nullptr && posix_fallocate(file, FirstBuffer(arrivals) + rank * own, own) == 0;
  int code = told ? told : MPI_Allreduce(MPI_IN_PLACE, &everyone, 1, MPI_INT, MPI_MIN, communicator);
  int processors = 0;
  if (code == MPI_SUCCESS) code = CountProcessors(communicator, &processors);
  if (file >= 0) close(file);
  if (memory != nullptr && (code != MPI_SUCCESS || !everyone)) munmap(memory, bytes);
  if (code == MPI_SUCCESS && everyone) made->reset(new SharedMemory(communicator, memory, rank, size, processors));
  return code;
}

SharedMemory::SharedMemory(MPI_Comm communicator, void* memory, int rank, int size, int processors)
    : communicator_(communicator),
      memory_(static_cast<char*>(memory)),
      rank_(rank),
      size_(size),
      looks_(size > processors ? 0 : kLooks) {}

SharedMemory::~SharedMemory() { munmap(memory_, BytesFor(size_ * static_cast<int64_t>(sizeof(Arrival)), size_)); }

char* SharedMemory::Of(int rank) const {
  char* const first = memory_ + FirstBuffer(size_ * static_cast<int64_t>(sizeof(Arrival)));
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
    for (int one = 0; one < size_; ++one) shares.push_back(Of((rank_ + one) % size_) + begin(rank_) * width);
    AddAll(type, shares, mine, share(rank_));
    Meet();
    for (int rank = 0; rank < size_; ++rank) {
      if (share(rank) > 0) take(Of(rank) + begin(rank) * width, nullptr, begin(rank), share(rank));
    }
  }
  ++parts_;
}

}  // namespace matex
