#include "engine/store/store.h"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <new>
#include <utility>

#include "engine/mpi/common_memory.h"
#include "engine/sums/world.h"

namespace matex {

// What all ranks write, each number in a line of its own.
struct SharedStore::Control {
  alignas(128) std::atomic<int64_t> next{0};   // the batch that is taken next
  alignas(128) std::atomic<int64_t> count{0};  // the first that there is not
  alignas(128) std::atomic<int64_t> trained{0};
  alignas(128) std::atomic<int64_t> stopped{0};
};

// The batch that a rank has, or one before it: no rank writes another's line. kNone: nobody need wait for this rank.
struct alignas(128) SharedStore::Line {
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> ticket{kNone};
};

namespace {

CommonLayout StoreLayout(int64_t control, int64_t bytes) {
  return CommonLayout::Of(CommonLayout::Of(control, 0).head + bytes, 0);
}

double SecondsNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::shared_ptr<SharedStore>& KeptStore() {
  static auto* const store = new std::shared_ptr<SharedStore>;
  return *store;
}

std::mutex& StoreMutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

}  // namespace

Error SharedStore::Make(int64_t bytes, std::shared_ptr<SharedStore>* made) {
  World& world = TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  const int64_t control = sizeof(Control) + world.size * sizeof(Line);
  void* memory = nullptr;
  const auto prepare = [&world](void* head) {
    new (head) Control;
    Line* const lines = reinterpret_cast<Line*>(static_cast<Control*>(head) + 1);
    for (int rank = 0; rank < world.size; ++rank) new (lines + rank) Line;
  };
  const int code = MakeCommonMemory(world.gradients, StoreLayout(control, bytes), prepare, &memory);
  if (code != MPI_SUCCESS) return MpiError(code, "MPI_Bcast", "making shared memory");
  if (memory != nullptr) made->reset(new SharedStore(memory, bytes, world.rank, world.size));
  return Error();
}

SharedStore::SharedStore(void* memory, int64_t bytes, int rank, int size)
    : memory_(memory), bytes_(bytes), rank_(rank), size_(size) {
  data_ = static_cast<char*>(memory) + CommonLayout::Of(sizeof(Control) + size * sizeof(Line), 0).head;
}

SharedStore::~SharedStore() { munmap(memory_, StoreLayout(sizeof(Control) + size_ * sizeof(Line), bytes_).Bytes(size_)); }

std::atomic<int64_t>& SharedStore::LineOf(int rank) const {
  return reinterpret_cast<Line*>(static_cast<Control*>(memory_) + 1)[rank].ticket;
}

void SharedStore::Deal(int64_t count) {
  Control& control = *static_cast<Control*>(memory_);
  control.trained = 0;
  control.stopped = 0;
  control.count = count;
  control.next = std::min<int64_t>(size_, count);
  // Who has none would make no step in this epoch, and know nothing of its figures.
  for (int rank = 0; rank < size_; ++rank) LineOf(rank) = rank < count ? rank : Line::kNone;
}

// Get the next batch. The line says first that it will be none before the next: a rank that takes a later one sees that.
bool SharedStore::Take() {
  Control& control = *static_cast<Control*>(memory_);
  int64_t next = control.next;
  LineOf(rank_) = next;
  while (!control.stopped && next < control.count) {
    if (control.next.compare_exchange_weak(next, next + 1)) {
      LineOf(rank_) = ticket_ = next;
      return true;
    }
  }
  LineOf(rank_) = Line::kNone;
  return false;
}

int64_t SharedStore::Oldest(int* rank) const {
  int64_t oldest = Line::kNone;
  for (int one = 0; one < size_; ++one) {
    const int64_t ticket = LineOf(one);
    if (ticket < oldest) {
      oldest = ticket;
      *rank = one;
    }
  }
  return oldest;
}

SharedStore::Begun SharedStore::Begin(int64_t bound, double seconds, int64_t* ticket, int* behind) {
  constexpr int kSpins = 100, kGivesWay = 200;
  Control& control = *static_cast<Control*>(memory_);
  if (ticket_ < 0) {
    const int64_t dealt = LineOf(rank_);  // the first, or none
    if (dealt != Line::kNone) {
      ticket_ = dealt;
    } else if (!Take()) {
      return kEnd;
    }
  }
  const double until = SecondsNow() + seconds;
  // The rank that has the oldest never waits, so somebody always goes on.
  for (int looks = 0; ticket_ - Oldest(behind) > bound; ++looks) {
    if (looks >= kSpins + kGivesWay) {
      if (SecondsNow() >= until) return kNotYet;
      const timespec pause{0, 20'000};
      nanosleep(&pause, nullptr);
    } else if (looks >= kSpins) {
      sched_yield();
    }
  }
  seen_ = control.trained;
  *ticket = ticket_;
  return kTaken;
}

int64_t SharedStore::End() {
  const int64_t others = static_cast<Control*>(memory_)->trained++ - seen_;
  Leave();
  return others;
}

void SharedStore::Leave() {
  ticket_ = -1;
  LineOf(rank_) = Line::kNone;
}

void SharedStore::Stop() { static_cast<Control*>(memory_)->stopped = 1; }

int64_t SharedStore::Trained() const { return static_cast<Control*>(memory_)->trained; }

std::shared_ptr<SharedStore> TheStore() {
  std::lock_guard<std::mutex> lock(StoreMutex());
  return KeptStore();
}

void SetTheStore(std::shared_ptr<SharedStore> store) {
  std::lock_guard<std::mutex> lock(StoreMutex());
  KeptStore().swap(store);
}

std::atomic<int64_t>& WantedPlace() {
  static std::atomic<int64_t> place{-1};
  return place;
}

}  // namespace matex
