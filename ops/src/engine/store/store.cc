// The store of asynchronous training; store.h describes its protocol. The shared memory contains, in this order:
// Control, which all ranks write; a Line for each rank; the state of each batch; a progress table for each rank; and
// the shared numbers, the variables that the ranks train.
//
// A rank takes a batch in two moves: first it announces the batch in its Line, then it changes the state of the batch.
// In between the line names a batch that the rank does not hold. So the line is a lower bound of the rank's batches.
#include "engine/store/store.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "engine/base/immortal.h"
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

// The line of a rank. As long as the rank lives, only this rank writes its line, except for `lost`.
struct alignas(128) SharedStore::Line {
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> oldest{kNone};  // a lower bound of the batches that it holds or is about to take; kNone: none
  std::atomic<int64_t> progress{-1};   // the batch of its progress table
  // Of its last `End`: 2 * batch + version, where the version, 0 or 1, is the slot in which it wrote its metrics. -2:
  // none, for which VersionOf gives 1.
  std::atomic<int64_t> version{-2};
  std::atomic<int64_t> lost{0};  // 1: the rank is lost; others write this
};

namespace {

// The state of a batch: kFree, HeldBy(its holder), TrainedBy(a rank) or kRefused. States below kFree are final.
constexpr int32_t kFree = 0, kRefused = std::numeric_limits<int32_t>::min();

constexpr int32_t HeldBy(int rank) { return rank + 1; }
constexpr int32_t TrainedBy(int rank) { return -(rank + 1); }

constexpr int64_t kLine = 128;  // bytes; the areas of different ranks have no cache line in common

struct CurrentStore {
  std::mutex mutex;
  std::shared_ptr<SharedStore> store;
};

int64_t InLines(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

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
    // The first batches are dealt, one to each rank: a slow rank might get no batch, and so have no metrics.
    line.oldest = first + rank < count ? first + rank : Line::kNone;
    if (first + rank < count) StateOf(first + rank) = HeldBy(rank);
  }
}

// Takes the next batch. The rank announces the batch in its line before it takes the batch, so a rank that takes a
// later batch always sees that this one is unfinished.
bool SharedStore::ReserveNext() {
  while (!control().stopped) {
    const int64_t batch = control().next;
    if (batch >= control().count) break;
    LineOf(rank_).oldest = batch;
    // Checked again after the announcement: a rank that has seen `stopped`, and no announced batch, regards the epoch
    // as over (`IsOver`).
    if (control().stopped) break;
    int32_t state = kFree;
    const bool is_mine = StateOf(batch).compare_exchange_strong(state, HeldBy(rank_));
    // Any rank advances `next`, because the holder may be lost before it can. No effect if another rank was faster.
    int64_t expected = batch;
    control().next.compare_exchange_strong(expected, batch + 1);
    if (is_mine) {
      reserved_ = batch;
      return true;
    }
  }
  LineOf(rank_).oldest = Line::kNone;
  return false;
}

int64_t SharedStore::FindOldest(int* rank) const {
  int64_t oldest = Line::kNone;
  for (int i = 0; i < size_; ++i) {
    const int64_t batch = LineOf(i).oldest;
    if (batch < oldest) {
      oldest = batch;
      *rank = i;
    }
  }
  return oldest;
}

int64_t SharedStore::FindHeld(int rank) const {
  const int64_t first = LineOf(rank).oldest;
  if (first == Line::kNone) return Line::kNone;
  // Control::next itself is included: the rank may have taken this batch and been lost before it advanced `next`.
  for (int64_t batch = first; batch < std::min(control().next + 1, control().count.load()); ++batch) {
    if (StateOf(batch) == HeldBy(rank)) return batch;
  }
  return Line::kNone;
}

// Takes over the batch of a lost rank, if the batch may be trained now and is older than this rank's reserved batch.
// Returns whether it did. The line of a lost rank stays until its batch is trained, so no rank gets further ahead of
// this batch than the bound.
bool SharedStore::TakeOver(int64_t bound) {
  for (int rank = 0; rank < size_; ++rank) {
    Line &lost = LineOf(rank), &mine = LineOf(rank_);
    while (lost.lost) {
      int64_t announced = lost.oldest;
      if (announced == Line::kNone) break;  // it holds no batch, or another rank has taken over its batch
      const int64_t held = FindHeld(rank);
      if (held != announced) {
        // Another rank has taken the batch over. This line keeps the batch until that rank has trained it, because
        // `FindOldest`, which reads one line after another, may have read the line of that rank too early.
        const bool is_with_another = StateOf(announced) > kFree;
        if (is_with_another) break;
        // The line is only a lower bound: replace it by the true batch, or kNone, and look again.
        lost.oldest.compare_exchange_strong(announced, held);
        continue;
      }
      int behind = -1;
      const bool has_older = reserved_ >= 0 && reserved_ < held;
      const bool is_too_early = held - FindOldest(&behind) > bound;
      if (has_older || is_too_early) break;
      // Announce first, then take, as in `ReserveNext`. The exchange fails if another rank was faster.
      SetProgress(held, rank);
      mine.oldest = held;
      int32_t state = HeldBy(rank);
      if (StateOf(held).compare_exchange_strong(state, HeldBy(rank_))) {
        batch_ = held;
        return true;
      }
      mine.oldest = reserved_ >= 0 ? reserved_ : Line::kNone;
    }
  }
  return false;
}

// Called before this rank's first addition of a batch. If rank `from` has begun this batch, its progress is copied. The
// line names no batch while the table changes: if this rank is lost meanwhile, its table counts for no batch.
void SharedStore::SetProgress(int64_t batch, int from) {
  const bool is_begun = from >= 0 && LineOf(from).progress == batch;
  LineOf(rank_).progress = -1;
  for (int64_t part = 0; part < sizes_.parts; ++part) {
    inherited_[part] = is_begun ? TableOf(from)[part].load() : 0;
    counted_[part] = 0;
    TableOf(rank_)[part] = inherited_[part];
  }
  LineOf(rank_).progress = batch;
}

bool SharedStore::BeginAddition(int64_t part, int64_t count, Addition* addition) {
  if (batch_ < 0 || part >= sizes_.parts) return false;
  // An op may run several times in a step. If a lost rank has added 10 numbers and each run adds 6, the first run
  // starts at 6, so it adds nothing. The second run starts at 4, so it adds its last two numbers.
  addition->before_ = counted_[part].fetch_add(count);
  addition->first = std::clamp<int64_t>(inherited_[part] - addition->before_, 0, count);
  addition->progress_ = TableOf(rank_) + part;
  return true;
}

bool SharedStore::IsOver() {
  while (all_done_before_ < control().count && StateOf(all_done_before_) < kFree) ++all_done_before_;
  const bool are_all_done = all_done_before_ >= control().count;
  int behind = -1;
  return are_all_done || (control().stopped && FindOldest(&behind) == Line::kNone);
}

SharedStore::Begun SharedStore::Begin(int64_t bound, double seconds, int64_t* batch, int* behind) {
  constexpr int kSpins = 100, kYields = 200;
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  // At the first call after `Deal`, the line has the batch that `Deal` gave to this rank.
  const int64_t dealt = LineOf(rank_).oldest;
  if (reserved_ < 0 && dealt != Line::kNone) reserved_ = dealt;
  // In each attempt this rank takes over the batch of a lost rank; or, if it has no reserved batch, it reserves the
  // next one; and it begins the reserved batch if that is not too far ahead. The living rank with the oldest batch
  // never waits, so some rank always makes progress.
  for (int attempts = 0; !TakeOver(bound); ++attempts) {
    if (reserved_ < 0 && !ReserveNext() && IsOver()) return kEnd;
    if (reserved_ >= 0 && reserved_ - FindOldest(behind) <= bound) {
      SetProgress(reserved_, /*from=*/-1);
      batch_ = std::exchange(reserved_, -1);
      break;
    }
    // This rank must wait: it polls, then yields its core between polls, then sleeps between polls.
    if (attempts >= kSpins + kYields) {
      if (Clock::now() >= until) {
        FindOldest(behind);
        return kNotYet;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    } else if (attempts >= kSpins) {
      std::this_thread::yield();
    }
  }
  trained_at_begin_ = control().trained;
  *batch = batch_;
  return kTaken;
}

int64_t SharedStore::End(int version) {
  LineOf(rank_).version = 2 * batch_ + version;
  StateOf(batch_) = TrainedBy(rank_);
  const int64_t others = control().trained++ - trained_at_begin_;  // `++` gives the count without this batch
  batch_ = -1;
  LineOf(rank_).oldest = reserved_ >= 0 ? reserved_ : Line::kNone;
  return others;
}

void SharedStore::Leave() {
  for (int64_t* const held : {&batch_, &reserved_}) {  // -1: none
    if (*held >= 0) StateOf(*held) = kRefused;
    *held = -1;
  }
  all_done_before_ = 0;
  LineOf(rank_).oldest = Line::kNone;
}

void SharedStore::Stop() { control().stopped = 1; }

bool SharedStore::Lose(int rank, int64_t* batch) {
  const int64_t held = FindHeld(rank);
  *batch = held == Line::kNone ? -1 : held;
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
  std::lock_guard<std::mutex> lock(Immortal<CurrentStore>().mutex);
  return Immortal<CurrentStore>().store;
}

void SetTheStore(std::shared_ptr<SharedStore> store) {
  std::lock_guard<std::mutex> lock(Immortal<CurrentStore>().mutex);
  Immortal<CurrentStore>().store.swap(store);
}

}  // namespace matex
