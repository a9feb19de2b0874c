// The protocol is described in store.h. The shared memory contains, in this order: Control, which all ranks write; a
// Line for each rank, which only this rank writes while it lives, except for `lost`; the state of each batch, which
// ranks take by compare-and-swap; a progress table for each rank; and the shared numbers.
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

// Numbers that all ranks write, each in its own cache line.
struct SharedStore::Control {
  alignas(128) std::atomic<int64_t> next{0};     // all batches before it are taken
  alignas(128) std::atomic<int64_t> count{0};    // the number of batches
  alignas(128) std::atomic<int64_t> trained{0};  // for `End`; may lack one batch of each lost rank
  alignas(128) std::atomic<int64_t> stopped{0};  // 1: no rank takes a batch any more
};

// The line of a rank; except for `lost`, only this rank writes it as long as it lives.
struct alignas(128) SharedStore::Line {
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  // A lower bound of the batches that the rank holds or is about to take; kNone: it holds none. The field `ticket_` of
  // the store is the batch that the rank trains.
  std::atomic<int64_t> ticket{kNone};
  std::atomic<int64_t> progress{-1};   // the batch of its progress table
  std::atomic<int64_t> version{-2};    // of its last `End`: 2 * batch + version; -2: none, for which VersionOf gives 1
  std::atomic<int64_t> lost{0};        // 1: the rank is lost; others write this
};

namespace {

// The state of a batch: kFree, HeldBy(its holder), TrainedBy(a rank), or kRefused if no rank will train it.
constexpr int32_t kFree = 0, kRefused = std::numeric_limits<int32_t>::min();

constexpr int32_t HeldBy(int rank) { return rank + 1; }
constexpr int32_t TrainedBy(int rank) { return -(rank + 1); }

constexpr int64_t kLine = 128;

std::shared_ptr<SharedStore>& StorePointer() {
  static auto* const store = new std::shared_ptr<SharedStore>;
  return *store;
}

std::mutex& StoreMutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

int64_t InLines(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

double SecondsNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

int64_t SharedStore::HeadBytes(const Sizes& sizes, int size) {
  return CommonLayout::Of(TablesAt(sizes, size) + size * TableBytes(sizes), 0).head;
}

int64_t SharedStore::TablesAt(const Sizes& sizes, int size) {
  return sizeof(Control) + size * sizeof(Line) + InLines(sizes.batches * sizeof(std::atomic<int32_t>));
}

int64_t SharedStore::TableBytes(const Sizes& sizes) { return InLines(sizes.parts * sizeof(std::atomic<int64_t>)); }

Error SharedStore::Make(const Sizes& sizes, std::shared_ptr<SharedStore>* made) {
  World& world = TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  void* memory = nullptr;
  const auto prepare = [&world](void* head) {
    new (head) Control;
    Line* const lines = reinterpret_cast<Line*>(static_cast<Control*>(head) + 1);
    for (int rank = 0; rank < world.size; ++rank) new (lines + rank) Line;
    // The states and tables begin as the zeros of a new file.
  };
  const CommonLayout layout = CommonLayout::Of(HeadBytes(sizes, world.size) + sizes.bytes, 0);
  const int code = MakeCommonMemory(world.gradients, layout, prepare, &memory);
  if (code != MPI_SUCCESS) return MpiError(code, "MPI_Bcast", "making shared memory");
  if (memory != nullptr) made->reset(new SharedStore(memory, sizes, world.rank, world.size));
  return Error();
}

SharedStore::SharedStore(void* memory, const Sizes& sizes, int rank, int size)
    : memory_(memory), sizes_(sizes), rank_(rank), size_(size), inherited_(sizes.parts), counted_(sizes.parts) {
  data_ = static_cast<char*>(memory) + HeadBytes(sizes, size);
}

SharedStore::~SharedStore() {
  munmap(memory_, CommonLayout::Of(HeadBytes(sizes_, size_) + sizes_.bytes, 0).Bytes(size_));
}

SharedStore::Control& SharedStore::control() const { return *static_cast<Control*>(memory_); }

SharedStore::Line& SharedStore::LineOf(int rank) const { return reinterpret_cast<Line*>(&control() + 1)[rank]; }

std::atomic<int32_t>& SharedStore::StateOf(int64_t batch) const {
  return reinterpret_cast<std::atomic<int32_t>*>(&LineOf(size_))[batch];
}

std::atomic<int64_t>* SharedStore::TableOf(int rank) const {
  char* const table = static_cast<char*>(memory_) + TablesAt(sizes_, size_) + rank * TableBytes(sizes_);
  return reinterpret_cast<std::atomic<int64_t>*>(table);
}

void SharedStore::Deal(int64_t first, int64_t count) {
  control().trained = 0;
  control().stopped = 0;
  control().count = count;
  control().next = std::min<int64_t>(first + size_, count);
  for (int64_t batch = 0; batch < count; ++batch) StateOf(batch) = batch < first ? TrainedBy(0) : kFree;
  for (int rank = 0; rank < size_; ++rank) {
    Line& line = LineOf(rank);
    line.progress = -1;
    line.version = -2;
    // A rank without a batch would make no step in this epoch and have no metrics.
    line.ticket = first + rank < count ? first + rank : Line::kNone;
    if (first + rank < count) StateOf(first + rank) = HeldBy(rank);
  }
}

// Takes the next batch. The rank announces the batch in its line before it takes the batch, so a rank that takes a
// later batch always sees that this one is unfinished.
bool SharedStore::Take() {
  while (!control().stopped) {
    int64_t next = control().next;
    if (next >= control().count) break;
    LineOf(rank_).ticket = next;
    // Checked again after the announcement: a rank that has seen `stopped`, and no announced batch, regards the epoch
    // as over (`IsOver`).
    if (control().stopped) break;
    int32_t state = kFree;
    const bool is_mine = StateOf(next).compare_exchange_strong(state, HeldBy(rank_));
    // Any rank advances `next`, because the holder may be lost before it can.
    const int64_t taken = next;  // a failed compare_exchange changes `next`
    control().next.compare_exchange_strong(next, taken + 1);
    if (is_mine) {
      reserved_ = taken;
      return true;
    }
  }
  LineOf(rank_).ticket = Line::kNone;
  return false;
}

int64_t SharedStore::Oldest(int* rank) const {
  int64_t oldest = Line::kNone;
  for (int i = 0; i < size_; ++i) {
    const int64_t ticket = LineOf(i).ticket;
    if (ticket < oldest) {
      oldest = ticket;
      *rank = i;
    }
  }
  return oldest;
}

int64_t SharedStore::FindHeld(int rank) const {
  const int64_t first = LineOf(rank).ticket;
  if (first == Line::kNone) return Line::kNone;
  // A rank may have taken batch `next` without having advanced `next`.
  for (int64_t batch = first; batch < std::min(control().next + 1, control().count.load()); ++batch) {
    if (StateOf(batch) == HeldBy(rank)) return batch;
  }
  return Line::kNone;
}

// Takes over the batch of a lost rank, if it may be trained now and is older than this rank's reserved batch. Returns
// whether it did. The line of a lost rank stays until its batch has another holder, so no rank gets further ahead of
// this batch than the bound.
bool SharedStore::TakeOver(int64_t bound) {
  for (int rank = 0; rank < size_; ++rank) {
    Line &lost = LineOf(rank), &mine = LineOf(rank_);
    while (lost.lost) {
      int64_t announced = lost.ticket;
      if (announced == Line::kNone) break;  // it holds no batch, or another rank has taken it over
      const int64_t held = FindHeld(rank);
      if (held != announced) {
        // The line has a lower bound only: put the true batch, or kNone, there and look again.
        lost.ticket.compare_exchange_strong(announced, held);
        continue;
      }
      int behind = -1;
      const bool has_older = reserved_ >= 0 && reserved_ < held;
      const bool is_too_early = held - Oldest(&behind) > bound;
      if (has_older || is_too_early) break;
      // Announce first, then take, as in `Take`. The exchange fails if another rank was faster.
      SetProgress(held, rank);
      mine.ticket = held;
      int32_t state = HeldBy(rank);
      if (StateOf(held).compare_exchange_strong(state, HeldBy(rank_))) {
        ticket_ = held;
        return true;
      }
      mine.ticket = reserved_ >= 0 ? reserved_ : Line::kNone;
    }
  }
  return false;
}

// Before this rank's first addition of a batch: copies the progress that rank `from`, if any, made with this batch.
void SharedStore::SetProgress(int64_t ticket, int from) {
  const bool is_begun = from >= 0 && LineOf(from).progress == ticket;
  LineOf(rank_).progress = -1;
  for (int64_t part = 0; part < sizes_.parts; ++part) {
    inherited_[part] = is_begun ? TableOf(from)[part].load() : 0;
    counted_[part] = 0;
    TableOf(rank_)[part] = inherited_[part];
  }
  LineOf(rank_).progress = ticket;
}

bool SharedStore::BeginAddition(int64_t part, int64_t count, Addition* addition) {
  if (ticket_ < 0 || part >= sizes_.parts) return false;
  // An op may run several times in a step. If a lost rank has added 10 numbers and each run adds 6, the first run
  // starts at 6, so it adds nothing. The second run starts at 4, so it adds its last two numbers.
  addition->before_ = counted_[part].fetch_add(count);
  addition->first = std::clamp<int64_t>(inherited_[part] - addition->before_, 0, count);
  addition->progress_ = TableOf(rank_) + part;
  return true;
}

bool SharedStore::IsOver() {
  while (done_ < control().count && StateOf(done_) < kFree) ++done_;
  int behind = -1;
  return done_ >= control().count || (control().stopped && Oldest(&behind) == Line::kNone);
}

SharedStore::Begun SharedStore::Begin(int64_t bound, double seconds, int64_t* ticket, int* behind) {
  constexpr int kSpins = 100, kYields = 200;
  const double until = SecondsNow() + seconds;
  // At the first call after `Deal`, the line has the batch that `Deal` gave to this rank.
  const int64_t dealt = LineOf(rank_).ticket;
  if (reserved_ < 0 && dealt != Line::kNone) reserved_ = dealt;
  // The living rank with the oldest batch never waits, so some rank always makes progress.
  for (int attempts = 0; !TakeOver(bound); ++attempts) {
    if (reserved_ < 0 && !Take() && IsOver()) return kEnd;
    if (reserved_ >= 0 && reserved_ - Oldest(behind) <= bound) {
      SetProgress(reserved_, -1);
      ticket_ = std::exchange(reserved_, -1);
      break;
    }
    // This rank must wait: it polls, then yields its core between polls, then sleeps between polls.
    if (attempts >= kSpins + kYields) {
      if (SecondsNow() >= until) {
        Oldest(behind);
        return kNotYet;
      }
      const timespec pause{0, 20'000};
      nanosleep(&pause, nullptr);
    } else if (attempts >= kSpins) {
      sched_yield();
    }
  }
  seen_ = control().trained;
  *ticket = ticket_;
  return kTaken;
}

int64_t SharedStore::End(int version) {
  LineOf(rank_).version = 2 * ticket_ + version;
  StateOf(ticket_) = TrainedBy(rank_);
  const int64_t others = control().trained++ - seen_;
  ticket_ = -1;
  LineOf(rank_).ticket = reserved_ >= 0 ? reserved_ : Line::kNone;
  return others;
}

void SharedStore::Leave() {
  for (int64_t* const held : {&ticket_, &reserved_}) {  // -1: none
    if (*held >= 0) StateOf(*held) = kRefused;
    *held = -1;
  }
  done_ = 0;
  LineOf(rank_).ticket = Line::kNone;
}

void SharedStore::Stop() { control().stopped = 1; }

bool SharedStore::Lose(int rank, int64_t* ticket) {
  const int64_t held = FindHeld(rank);
  *ticket = held == Line::kNone ? -1 : held;
  return LineOf(rank).lost.exchange(1) == 0;
}

bool SharedStore::IsLost(int rank) const { return LineOf(rank).lost != 0; }

int SharedStore::VersionOf(int rank) const {
  const int64_t last = LineOf(rank).version;
  const int last_version = static_cast<int>(last & 1);
  const bool is_trained = last >= 0 && StateOf(last / 2) == TrainedBy(rank);
  // If the rank was lost within `End`, its batch does not count. A rank uses its versions alternately (store.h), so the
  // batch before had the other version.
  return is_trained ? last_version : 1 - last_version;
}

int64_t SharedStore::CountTrained() const {
  int64_t trained = 0;
  for (int64_t batch = 0; batch < control().count; ++batch)
    trained += StateOf(batch) < kFree && StateOf(batch) != kRefused;
  return trained;
}

std::shared_ptr<SharedStore> TheStore() {
  std::lock_guard<std::mutex> lock(StoreMutex());
  return StorePointer();
}

void SetTheStore(std::shared_ptr<SharedStore> store) {
  std::lock_guard<std::mutex> lock(StoreMutex());
  StorePointer().swap(store);
}

}  // namespace matex
