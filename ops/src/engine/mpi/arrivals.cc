// Meetings in shared memory (arrivals.h): barriers of the ranks of a node, which also compare three numbers of each
// rank, its words. Each rank has a line there, which only this rank writes: the number of its meetings, its words, and
// how many blocks of data it has written and read. A waiting rank reads the other ranks' lines until they advance.
#include "engine/mpi/arrivals.h"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "engine/mpi/sleeping_wait.h"

namespace matex {

// The line of a rank, in cache lines of its own. Words of odd and even meetings have a slot each: a rank may come to
// meeting n + 1 while others still read its words of meeting n, but to meeting n + 2 only after all have read them.
struct alignas(128) Arrivals::Line {
  std::atomic<int64_t> count{0};  // the number of the last meeting that the rank has come to
  Words words[2] = {};
  std::atomic<int64_t> written{0}, read{0};
};

namespace {

constexpr int kSpins = 2'000;  // about 10 microseconds, or 100 where the pause instruction is slow
constexpr int kYields = 1'000;  // less than a millisecond if no other thread computes
constexpr std::chrono::milliseconds kMaxSleep(1);  // short, because MPI makes progress only between the sleeps
constexpr int kProgressInterval = 16;  // MPI makes progress every so many meetings, even if this rank never waits
std::atomic<bool> counts_waits{false};  // off by default: reading the clocks takes as long as a small sum
std::atomic<int64_t> waited_nanoseconds{0}, waited_core_nanoseconds{0};

int64_t ReadClock(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

static_assert(std::atomic<int64_t>::is_always_lock_free, "atomics in shared memory must be lock-free");

// The number of processors that the ranks, which may be bound, can use. Collective. Returns an MPI error code.
int CountProcessors(MPI_Comm communicator, int* processors) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) {
    // It fails if there are more processors than cpu_set_t holds; then all of them count.
    for (long i = 0; i < std::min<long>(sysconf(_SC_NPROCESSORS_ONLN), CPU_SETSIZE); ++i) CPU_SET(i, &mine);
  }
  const int code = MPI_Allreduce(MPI_IN_PLACE, &mine, sizeof mine, MPI_BYTE, MPI_BOR, communicator);
  *processors = CPU_COUNT(&mine);
  return code;
}

}  // namespace

int Arrivals::Make(MPI_Comm communicator, int64_t bytes_per_rank, std::unique_ptr<Arrivals>* made) {
  int rank = 0, size = 1, processors = 0;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);
  if (const int code = CountProcessors(communicator, &processors)) return code;
  const CommonLayout layout = CommonLayout::Of(size * static_cast<int64_t>(sizeof(Line)), bytes_per_rank);
  const auto prepare = [size](void* head) {
    for (int i = 0; i < size; ++i) new (static_cast<Line*>(head) + i) Line;
  };
  void* memory = nullptr;
  if (const int code = MakeCommonMemory(communicator, layout, prepare, &memory)) return code;
  if (memory == nullptr) return MPI_SUCCESS;
  made->reset(new Arrivals(communicator, static_cast<char*>(memory), layout, rank, size, processors));
  return MPI_SUCCESS;
}

Arrivals::Arrivals(MPI_Comm communicator, char* memory, const CommonLayout& layout, int rank, int size, int processors)
    : communicator_(communicator),
      memory_(memory),
      layout_(layout),
      rank_(rank),
      size_(size),
      spins_(size > processors ? 0 : kSpins) {}  // without a processor for each rank, spinning delays the others

Arrivals::~Arrivals() { munmap(memory_, layout_.Bytes(size_)); }

Arrivals::Line* Arrivals::lines() const { return reinterpret_cast<Line*>(memory_); }

int Arrivals::Meet(const Words& words, bool* same) {
  const int64_t number = ++meetings_;
  Line* const lines = this->lines();
  lines[rank_].words[number % 2] = words;
  lines[rank_].count.store(number, std::memory_order_release);
  int code = number % kProgressInterval == 0 ? Progress() : MPI_SUCCESS;
  for (int distance = 1; distance < size_ && code == MPI_SUCCESS; ++distance) {  // all other ranks, from the next on
    const Line& other = lines[(rank_ + distance) % size_];
    code = WaitUntil([&] { return other.count.load(std::memory_order_acquire) >= number; });
  }
  if (code != MPI_SUCCESS) return code;
  if (same != nullptr) {
    *same = std::all_of(lines, lines + size_,
                        [&](const Line& line) { return line.words[number % 2] == lines[0].words[number % 2]; });
  }
  return MPI_SUCCESS;
}

void Arrivals::Show(const Blocks& mine) {
  Line& line = lines()[rank_];
  line.written.store(mine.written, std::memory_order_release);
  line.read.store(mine.read, std::memory_order_release);
}

Arrivals::Blocks Arrivals::See(int rank) const {
  const Line& line = lines()[rank];
  return {line.written.load(std::memory_order_acquire), line.read.load(std::memory_order_acquire)};
}

// MPI_Iprobe makes progress with earlier messages: another rank may wait for a message that MPI here has still to send,
// for example a message of the script.
int Arrivals::Progress() const {
  int has_message = 0;
  return MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator_, &has_message, MPI_STATUS_IGNORE);
}

// Polls: first it spins, then it yields the core between polls, then it sleeps between polls.
int Arrivals::WaitUntil(const std::function<bool()>& has_come) {
  if (has_come()) return MPI_SUCCESS;
  const bool counts = counts_waits;
  const int64_t start = counts ? ReadClock(CLOCK_MONOTONIC) : 0, used = counts ? ReadClock(CLOCK_THREAD_CPUTIME_ID) : 0;
  int code = MPI_SUCCESS, attempts = 0;
  Pause pause(kMaxSleep);
  do {
    if (++attempts <= spins_) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    } else if (attempts <= spins_ + kYields) {
      sched_yield();
    } else {
      pause.Take();
      code = Progress();
    }
  } while (code == MPI_SUCCESS && !has_come());
  if (counts) {
    waited_nanoseconds += ReadClock(CLOCK_MONOTONIC) - start;
    waited_core_nanoseconds += ReadClock(CLOCK_THREAD_CPUTIME_ID) - used;
  }
  return code;
}

Arrivals::Waited Arrivals::WaitedSoFar() {
  counts_waits = true;  // the first call begins the count, and returns zeros
  return {1e-9 * waited_nanoseconds, 1e-9 * waited_core_nanoseconds};
}

}  // namespace matex
