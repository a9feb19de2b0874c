#include "engine/mpi/arrivals.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "engine/mpi/sleeping_wait.h"

namespace matex {

// How often a rank has come, and what it has brought. One rank writes it, and no other's is in the same line of a cache.
// It may come to the next meeting before others have read what it brought to this one, and to no later one.
struct alignas(128) Arrivals::Line {
  std::atomic<int64_t> count{0};
  Words words[2] = {};
};

namespace {

constexpr int kLooks = 2'000;  // some ten microseconds, or a hundred where a pause is a long one
constexpr int kYields = 1'000;  // less than a millisecond, if nobody else computes
constexpr int kUnaided = 16;  // meetings after which MPI goes on, also with a rank that never waits

static_assert(std::atomic<int64_t>::is_always_lock_free, "an atomic number must be one in the memory of several processes");

}  // namespace

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

int64_t Arrivals::BytesFor(int ranks) { return ranks * static_cast<int64_t>(sizeof(Line)); }

void Arrivals::Prepare(void* memory, int ranks) {
  for (int one = 0; one < ranks; ++one) new (static_cast<Line*>(memory) + one) Line;
}

Arrivals::Arrivals(void* memory, MPI_Comm communicator, int processors)
    : communicator_(communicator), lines_(static_cast<Line*>(memory)) {
  MPI_Comm_rank(communicator, &rank_);
  MPI_Comm_size(communicator, &size_);
  looks_ = size_ > processors ? 0 : kLooks;
}

int Arrivals::Meet(const Words& words, bool* same) {
  const int64_t number = ++met_;
  lines_[rank_].words[number % 2] = words;
  lines_[rank_].count.store(number, std::memory_order_release);
  // What MPI has still to send another rank may be waiting for, the script's own, too.
  const auto progress = [this] {
    int any = 0;
    return MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator_, &any, MPI_STATUS_IGNORE);
  };
  int code = number % kUnaided == 0 ? progress() : MPI_SUCCESS;
  int looks = 0;
  Pause pause;
  for (int one = 1; one < size_; ++one) {
    const Line& other = lines_[(rank_ + one) % size_];
    while (other.count.load(std::memory_order_acquire) < number) {
      if (code != MPI_SUCCESS) return code;
      if (++looks <= looks_) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      } else if (looks <= looks_ + kYields) {
        sched_yield();
      } else {
        pause.Take();
        code = progress();
      }
    }
  }
  if (same != nullptr) {
    *same = std::all_of(lines_, lines_ + size_,
                        [&](const Line& line) { return line.words[number % 2] == lines_[0].words[number % 2]; });
  }
  return MPI_SUCCESS;
}

}  // namespace matex
