// The engine alone under load: random collectives, layouts, sizes, types and orders, several updates at once, some
// given up; each value compared with a plain sum. Built and run by scripts/sanitize.py, with a sanitizer or without.
//
//   mpirun -n 3 stress STEPS SEED [mpi|ring|two_level [none|bf16|fp16|topk [all|hosts [RANKS_PER_NODE]]]]
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/collectives.h"
#include "engine/base/half.h"
#include "engine/update/inline.h"
#include "engine/update/async_reduction.h"
#include "engine/sequence/trace.h"
#include "engine/sequence/rendezvous.h"
#include "engine/sequence/v1_order.h"
#include "engine/sequence/wait_state.h"
#include "engine/store/pulls.h"
#include "engine/sums/world.h"

extern "C" int matex_rendezvous(int kind, uint64_t key, const char* what, int64_t bytes, int64_t rows,
                                int exit_code);
extern "C" int matex_waiting(double* seconds, int64_t* number, char* text, int size);

// Replaces MPI's barrier, which only the choice of buckets calls in this program. Made slow, it shows whether MPI is
// finalized while the communication thread still uses it.
std::atomic<int> barriers{0}, barriers_under_way{0};
std::atomic<bool> barriers_are_slow{false};

extern "C" int MPI_Barrier(MPI_Comm communicator) {
  ++barriers_under_way;
  if (barriers_are_slow) usleep(20'000);
  const int code = PMPI_Barrier(communicator);
  ++barriers;
  --barriers_under_way;
  return code;
}

namespace {

using namespace matex;
using Random = std::mt19937_64;

constexpr int kUpdatesToBuckets = 13, kBarriersOfBuckets = 10, kExit = 7;
int my_rank = 0, ranks = 1, step = 0;

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "stress: rank %d, step %d: %s\n", my_rank, step, message.c_str());
  std::fflush(stderr);
  MPI_Abort(MPI_COMM_WORLD, 3);
  std::abort();
}

void Check(bool is_right, const std::string& message) {
  if (!is_right) Fail(message);
}

void Check(const Error& error) { Check(!error, error.message); }

// A number from 0 to `below` - 1. Ranks draw equal numbers from `random`, and different ones from `own`.
int64_t Draw(Random& random, int64_t below) { return static_cast<int64_t>(random() % static_cast<uint64_t>(below)); }

// Small whole numbers: with weights of up to 1.5 every type, bfloat16 too, holds the sums of 42 ranks exactly, in
// whatever order they are added, compressed or not.
double Value(int rank, int number, int64_t i) {
  return (rank * 5 + number * 3 + step + i * 7) % (ranks <= 10 ? 9 : 3);
}

// The weighted sum of `Value` over ranks.
double Summed(int number, int64_t i, const std::vector<double>& weights) {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += weights[rank] * Value(rank, number, i);
  return sum;
}

void Put(Type type, char* data, int64_t i, double value) {
  char* const at = data + i * static_cast<int64_t>(SizeOf(type));
  const auto put = [at](auto typed) { std::memcpy(at, &typed, sizeof typed); };
  switch (type) {
    case Type::kFloat32: return put(static_cast<float>(value));
    case Type::kFloat64: return put(value);
    case Type::kFloat16: return put(Float16::Store(static_cast<float>(value)));
    case Type::kBfloat16: return put(Bfloat16::Store(static_cast<float>(value)));
    case Type::kInt32: return put(static_cast<int32_t>(value));
    case Type::kInt64: return put(static_cast<int64_t>(value));
    case Type::kUint8: return put(static_cast<uint8_t>(value));
    case Type::kBool: return put(static_cast<uint8_t>(value != 0));
  }
}

double Get(Type type, const char* data, int64_t i) {
  const char* const at = data + i * static_cast<int64_t>(SizeOf(type));
  const auto get = [at](auto typed) {
    std::memcpy(&typed, at, sizeof typed);
    return typed;
  };
  switch (type) {
    case Type::kFloat32: return get(0.0f);
    case Type::kFloat64: return get(0.0);
    case Type::kFloat16: return Float16::Load(get(Float16{}));
    case Type::kBfloat16: return Bfloat16::Load(get(Bfloat16{}));
    case Type::kInt32: return get(int32_t{});
    case Type::kInt64: return static_cast<double>(get(int64_t{}));
    case Type::kUint8:
    case Type::kBool: return get(uint8_t{});
  }
  return 0;
}

std::vector<char> Filled(Type type, int64_t count, int number, double weight = 1) {
  std::vector<char> data(count * SizeOf(type));
  for (int64_t i = 0; i < count; ++i) {
    const double value = weight == 0 ? std::numeric_limits<double>::quiet_NaN() : Value(my_rank, number, i);
    Put(type, data.data(), i, value);
  }
  return data;
}

// The number of elements of a tensor: none, one, some, or more than the layouts fuse or send in one transfer.
int64_t DrawCount(Random& random) {
  switch (Draw(random, 8)) {
    case 0: return 0;
    case 1: return 1;
    case 2: return 16'000 + Draw(random, 9'000);
    case 3: return Draw(random, 4'000);
    default: return Draw(random, 300);
  }
}

std::vector<Entry> DrawEntries(Random& random) {
  std::vector<Entry> entries;
  for (int64_t n = 1 + Draw(random, 6), i = 0; i < n; ++i) {
    const int64_t count = DrawCount(random);
    std::vector<int64_t> shape{count};
    if (count == 1 && Draw(random, 2)) shape.clear();
    // The number of a variable returns with other sizes and in other layouts.
    entries.push_back({"variable " + std::to_string(i), static_cast<Type>(Draw(random, 4)), shape, Draw(random, 9)});
  }
  return entries;
}

std::vector<double> DrawWeights(Random& random) {
  std::vector<double> weights;
  for (int rank = 0; rank < ranks; ++rank) weights.push_back(0.5 * static_cast<double>(Draw(random, 4)));
  return weights;
}

// The gradients of one update on this rank, reduced in place or not. Those of weight 0 are NaN, which no sum may show.
struct Gradients {
  Gradients(const std::vector<Entry>& of, std::vector<double> by, bool in_place) : entries(of), weights(std::move(by)) {
    for (size_t i = 0; i < entries.size(); ++i) {
      inputs.push_back(Filled(entries[i].type, entries[i].count(), static_cast<int>(i), weights[my_rank]));
      outputs.emplace_back(in_place ? 0 : inputs.back().size());
    }
    for (size_t i = 0; i < entries.size(); ++i) {
      from.push_back(inputs[i].data());
      to.push_back(in_place ? inputs[i].data() : outputs[i].data());
    }
  }

  void CheckSum(size_t i) const { CheckSum(i, 0, entries[i].count()); }

  void CheckSum(size_t i, int64_t first, int64_t last) const {
    const Entry& entry = entries[i];
    for (int64_t k = first; k < last; ++k) {
      const double found = Get(entry.type, static_cast<const char*>(to[i]), k);
      const double expected = Summed(static_cast<int>(i), k, weights);
      if (found != expected) {
        Fail(entry.ToString() + ": element " + std::to_string(k) + " is " + std::to_string(found) + ", not " +
             std::to_string(expected));
      }
    }
  }

  std::vector<Entry> entries;
  std::vector<double> weights;
  std::vector<std::vector<char>> inputs, outputs;
  std::vector<const void*> from;
  std::vector<void*> to;
};

// The first element of each rank's piece of `count` elements, and the end of the last piece.
std::vector<int64_t> DrawCuts(int64_t count, Random& random) {
  std::vector<int64_t> cuts{0, count};
  for (int rank = 1; rank < ranks; ++rank) cuts.push_back(Draw(random, count + 1));
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

// The cuts of some of these entries, or of none.
Cuts DrawCuts(const std::vector<Entry>& entries, Random& random) {
  Cuts cuts;
  for (const Entry& entry : entries) {
    cuts.push_back(Draw(random, 4) ? DrawCuts(entry.count(), random) : std::vector<int64_t>());
  }
  return Draw(random, 4) ? cuts : Cuts();
}

// Checks the sums of gradient `i` that this rank needs.
void CheckOwn(const Layout& layout, const Gradients& gradients, size_t i) {
  const std::vector<int64_t> cuts = layout.cuts().empty() ? std::vector<int64_t>() : layout.cuts()[i];
  if (cuts.empty()) gradients.CheckSum(i);
  else gradients.CheckSum(i, cuts[my_rank], cuts[my_rank + 1]);
}

// An inline update; of some gradients, each rank needs only the sums of its piece.
void RunInPieces(Random& random) {
  const World& world = TheWorld();
  const std::vector<Entry> entries = DrawEntries(random);
  const Layout layout(entries, world.chunk_bytes, world.fuse_bytes, world.compression, false, false,
                      DrawCuts(entries, random));
  Gradients gradients(layout.entries(), DrawWeights(random), Draw(random, 2) == 0);
  const auto scatter = layout.cuts().empty() ? nullptr : std::make_unique<Scatter>(layout, ranks);
  Check(ReduceInline(layout, gradients.from.data(), gradients.to.data(), gradients.weights[my_rank], step,
                     [] { return std::string("an update in pieces"); }, scatter.get()));
  for (size_t i = 0; i < entries.size(); ++i) CheckOwn(layout, gradients, i);
}

// Publishes variables in pieces several times. On some ranks, some variables are not in their homes.
void RunPublishing(Random& random, Random& own) {
  const Type type = static_cast<Type>(Draw(random, 4));
  std::vector<std::vector<char>> elsewhere;
  std::vector<Entry> entries;
  Cuts cuts;
  for (int64_t n = 1 + Draw(random, 4); n > 0; --n) {
    entries.push_back({"variable", type, {DrawCount(random)}});
    elsewhere.emplace_back(entries.back().bytes());
    cuts.push_back(DrawCuts(entries.back().count(), random));
  }
  const World& world = TheWorld();
  const auto layout =
      std::make_shared<Layout>(entries, world.chunk_bytes, world.fuse_bytes, Compression(), false, false, cuts);
  const auto messages = std::make_shared<std::vector<Transfer>>(layout->TransfersInOrder());
  DividedVariables variables{layout, messages, {}, "variables", 0, Draw(random, 4) ? step : -1};
  variables.wholes.resize(entries.size());
  for (int update = 0; update < 3; ++update) {
    const std::shared_ptr<Homes> homes = HomesOf(variables);
    for (size_t i = 0; i < elsewhere.size(); ++i) {
      const bool is_home = homes != nullptr && Draw(own, 3) > 0;
      variables.wholes[i] = is_home ? homes->Occupy(static_cast<int>(i)) : elsewhere[i].data();
      if (is_home) homes->Release(static_cast<int>(i));
    }
    variables.Visit(my_rank, [&](int i, int64_t first, int64_t count) {
      for (int64_t k = first; k < first + count; ++k)
        Put(type, static_cast<char*>(variables.wholes[i]), k, Value(my_rank, i + update, k));
    });
    const auto check = [&](int of) {
      for (int rank = 0; rank < ranks; ++rank) {
        variables.Visit(rank, [&](int i, int64_t first, int64_t count) {
          for (int64_t k = first; k < first + count && i == of; ++k) {
            Check(Get(type, static_cast<char*>(variables.wholes[i]), k) == Value(rank, i + update, k),
                  "a variable in pieces");
          }
        });
      }
    };
    Check(Publish(variables, homes.get()));
    for (size_t i = 0; i < entries.size(); ++i) check(static_cast<int>(i));
  }
  DropHomes(step);
}

// Publishes several groups of variables by the pull thread, with different urgencies.
void RunPublishingLater(Random& random, Random& own) {
  struct Group {
    std::vector<std::vector<char>> values;
    DividedVariables variables;
    bool has_begun = false;
    size_t came = 0;
  };
  const World& world = TheWorld();
  std::vector<Group> groups(1 + Draw(random, 3));
  for (Group& group : groups) {
    std::vector<Entry> entries;
    Cuts cuts;
    const Type type = static_cast<Type>(Draw(random, 4));
    for (int64_t n = 1 + Draw(random, 4); n > 0; --n) {
      entries.push_back({"variable", type, {DrawCount(random)}});
      group.values.emplace_back(entries.back().bytes());
      cuts.push_back(DrawCuts(entries.back().count(), random));
    }
    const auto layout =
        std::make_shared<Layout>(entries, world.chunk_bytes, world.fuse_bytes, Compression(), false, false, cuts);
    group.variables = {
        layout, std::make_shared<std::vector<Transfer>>(layout->TransfersInOrder()), {}, "variables", Draw(random, 3)};
    for (std::vector<char>& value : group.values) group.variables.wholes.push_back(value.data());
    group.variables.Visit(my_rank, [&](int i, int64_t first, int64_t count) {
      for (int64_t k = first; k < first + count; ++k) Put(type, group.values[i].data(), k, Value(my_rank, i, k));
    });
    const auto came = [&group, type](int i, const Error& error) {
      Check(error);
      Check(group.has_begun, "a variable came before `begin` was called");
      ++group.came;
      for (int rank = 0; rank < ranks; ++rank) {
        group.variables.Visit(rank, [&](int other, int64_t first, int64_t count) {
          for (int64_t k = first; k < first + count && other == i; ++k) {
            Check(Get(type, group.values[i].data(), k) == Value(rank, i, k), "a variable that came later");
          }
        });
      }
    };
    Check(PublishLater(group.variables, {[&group] { group.has_begun = true; return group.variables.wholes; }, came}));
    if (Draw(own, 2)) usleep(static_cast<int>(Draw(own, 2000)));
  }
  FinishPulls();
  for (const Group& group : groups) Check(group.came == group.values.size(), "not all variables came");
}

void RunInline(Random& random) {
  const World& world = TheWorld();
  const Layout layout(DrawEntries(random), world.chunk_bytes, world.fuse_bytes, world.compression);
  Gradients gradients(layout.entries(), DrawWeights(random), Draw(random, 2) == 0);
  Check(ReduceInline(layout, gradients.from.data(), gradients.to.data(), gradients.weights[my_rank], step,
                     [] { return std::string("an inline update"); }));
  for (size_t i = 0; i < gradients.entries.size(); ++i) gradients.CheckSum(i);
}

// A collective on one tensor.
void RunCollective(Random& random) {
  const Type type = static_cast<Type>(Draw(random, kTypes - 1));  // bools do not add up
  const int64_t count = DrawCount(random);
  const std::vector<double> ones(ranks, 1.0);
  const Entry tensor{"tensor", type, {count}};
  std::vector<char> data = Filled(type, count, 1);
  switch (Draw(random, 4)) {
    case 0: {
      std::vector<char> result(data.size());
      Check(Allreduce(tensor, Reduction::kSum, data.data(), result.data()));
      for (int64_t i = 0; i < count; ++i) Check(Get(type, result.data(), i) == Summed(1, i, ones), "an allreduce");
      return;
    }
    case 1: {
      Check(Allreduce(tensor, Reduction::kMax, data.data(), data.data()));
      for (int64_t i = 0; i < count; ++i) {
        double maximum = 0;
        for (int rank = 0; rank < ranks; ++rank) maximum = std::max(maximum, Value(rank, 1, i));
        Check(Get(type, data.data(), i) == maximum, "a maximum");
      }
      return;
    }
    case 2: {
      const int root = static_cast<int>(Draw(random, ranks));
      Check(Broadcast(tensor, root, data.data()));
      for (int64_t i = 0; i < count; ++i) Check(Get(type, data.data(), i) == Value(root, 1, i), "a broadcast");
      return;
    }
    default: {
      const int64_t mine = my_rank == 0 ? 0 : count / my_rank;
      std::vector<char> all;
      const auto allocate = [&](const std::vector<int64_t>& rows) -> void* {
        all.resize(std::accumulate(rows.begin(), rows.end(), int64_t{1}) * SizeOf(type));
        return all.data();
      };
      Check(Allgather({"rows", type, {mine}}, data.data(), allocate));
      for (int64_t rank = 1, at = 0; rank < ranks; ++rank) {
        for (int64_t i = 0; i < count / rank; ++i, ++at) {
          Check(Get(type, all.data(), at) == Value(static_cast<int>(rank), 1, i), "an allgather");
        }
      }
    }
  }
}

// The collectives of a v1 run: each enters from its own thread, in another order on each rank.
void RunInTurns(Random& random, Random& own) {
  std::vector<int64_t> turns(1 + Draw(random, 4));
  std::iota(turns.begin(), turns.end(), 100 * step);
  TheTurnstile().Expect(turns);
  std::shuffle(turns.begin(), turns.end(), own);
  std::mutex mutex;
  std::condition_variable changed;
  size_t done_count = 0;
  std::vector<std::thread> threads;
  for (const int64_t turn : turns) {
    threads.emplace_back([&, turn] {
      const auto run = [turn] {
        int64_t value = turn + my_rank;
        Check(Allreduce({std::to_string(turn), Type::kInt64, {}}, Reduction::kSum, &value, &value));
        Check(value == turn * ranks + ranks * (ranks - 1) / 2, "a collective that has turns");
      };
      const auto done = [&] {
        std::lock_guard<std::mutex> lock(mutex);
        ++done_count;
        changed.notify_all();
      };
      Turnstile& turnstile = TheTurnstile();
      turnstile.Enter(turnstile.Reserve(), turn, {run, done, [](const Error& error) { Check(error); }});
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return done_count == turns.size(); });
}

// An overlapped update. It may fail: gradient `lost_` never comes on rank `loser_`, which gives the update up.
class OverlappedUpdate {
 public:
  OverlappedUpdate(std::shared_ptr<const Layout> layout, Random& random, Random& own, bool may_fail)
      : layout_(std::move(layout)), gradients_(layout_->entries(), DrawWeights(random), Draw(random, 2) == 0) {
    const auto count = static_cast<int64_t>(gradients_.entries.size());
    if (may_fail && Draw(random, 8) == 0) {
      loser_ = static_cast<int>(Draw(random, ranks));
      lost_ = static_cast<int>(Draw(random, count));
    }
    errors_.resize(count);
    order_.resize(count);
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), own);
    pause_ = Draw(own, 4) ? 0 : static_cast<int>(Draw(own, 300));
    Check(Announce({layout_, "an overlapped update", "", Draw(random, 3) == 0}, gradients_.weights[my_rank], step,
                   &ticket_));
    thread_ = std::thread([this] { HandThemOver(); });
  }

  void Finish() {
    thread_.join();
    const bool gives_up = loser_ == my_rank;
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return over_ == errors_.size() - (gives_up ? 1 : 0); });
    for (size_t i = 0; i < errors_.size(); ++i) {
      const bool is_lost = static_cast<int>(i) == lost_;
      if (loser_ < 0) Check(errors_[i]);
      if (is_lost && !gives_up) Check(static_cast<bool>(errors_[i]), "a lost gradient was added up");
      if (!errors_[i] && !is_lost) CheckOwn(*layout_, gradients_, i);
    }
  }

 private:
  void HandThemOver() {
    for (const int entry : order_) {
      if (pause_ > 0) usleep(pause_);
      if (my_rank == loser_ && entry == lost_) {
        GiveUp(ticket_, "it is lost.");
        continue;
      }
      const auto done = [this, entry](const Error& error) {
        std::lock_guard<std::mutex> lock(mutex_);
        errors_[entry] = error;
        ++over_;
        changed_.notify_all();
      };
      HandOver(ticket_, entry, {gradients_.from[entry], gradients_.to[entry], done});
    }
  }

  const std::shared_ptr<const Layout> layout_;
  Gradients gradients_;
  int loser_ = -1, lost_ = -1, pause_ = 0;
  int64_t ticket_ = 0;
  std::vector<int> order_;
  std::vector<Error> errors_;
  size_t over_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
};

std::shared_ptr<const Layout> DrawLayout(Random& random) {
  const World& world = TheWorld();
  std::vector<Entry> entries = DrawEntries(random);
  Cuts cuts = DrawCuts(entries, random);
  return std::make_shared<const Layout>(std::move(entries), world.chunk_bytes, world.fuse_bytes, world.compression,
                                        false, false, std::move(cuts));
}

// Up to three updates at the same time, as of three optimizers, with other collectives between their announcements.
void RunOverlapped(Random& random, Random& own, std::vector<std::shared_ptr<const Layout>>* layouts) {
  std::shared_ptr<const Layout>& replaced = (*layouts)[Draw(random, static_cast<int64_t>(layouts->size()))];
  if (Draw(random, 20) == 0) replaced = DrawLayout(random);
  std::vector<std::unique_ptr<OverlappedUpdate>> updates;
  for (int64_t n = 1 + Draw(random, 3); n > 0; --n) {
    std::shared_ptr<const Layout>& layout = (*layouts)[Draw(random, static_cast<int64_t>(layouts->size()))];
    // This rank alone has traced its function again.
    if (Draw(own, 4) == 0) layout = std::make_shared<const Layout>(*layout);
    updates.push_back(std::make_unique<OverlappedUpdate>(layout, random, own, /*may_fail=*/true));
    if (Draw(random, 3) == 0) RunCollective(random);
  }
  for (auto& update : updates) update->Finish();
}

// A rank that still computes gradients is not blocked, although its communication thread waits: BlockedSeconds does not
// grow in that time.
void CheckBlockedSeconds(Random& random) {
  const World& world = TheWorld();
  const std::vector<Entry> entries(2, Entry{"a gradient", Type::kFloat32, {8192}, 0});  // too large for one step
  const auto layout = std::make_shared<const Layout>(entries, world.chunk_bytes, world.fuse_bytes, world.compression);
  const Gradients gradients(entries, DrawWeights(random), false);
  std::atomic<int> over{0};
  int64_t ticket = 0;
  Check(Announce({layout, "an update in which rank 0 computes"}, gradients.weights[my_rank], step, &ticket));
  const double before = BlockedSeconds();
  const auto hand_over = [&](int entry) {
    const auto done = [&](const Error& error) { Check(error), ++over; };
    HandOver(ticket, entry, {gradients.from[entry], gradients.to[entry], done});
  };
  double start = 0;
  if (my_rank == 0) {
    hand_over(0);
    Waiting waiting;
    while (!LongestWait(&waiting)) usleep(1000);  // for the others' first gradient
    usleep(50'000);
    start = MPI_Wtime();
    hand_over(1);
    for (int rank = 1; rank < ranks; ++rank) MPI_Send(nullptr, 0, MPI_BYTE, rank, 0, MPI_COMM_WORLD);
  } else {
    MPI_Recv(nullptr, 0, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (const int entry : {0, 1}) hand_over(entry);
  }
  while (over < 2) usleep(1000);
  const double waited = BlockedSeconds() - before, could = MPI_Wtime() - start;
  Check(my_rank > 0 || waited <= could, "seconds in which it computed are among those in which it waited");
  for (size_t i = 0; i < entries.size(); ++i) CheckOwn(*layout, gradients, i);
}

// The queries that other threads make while the engine works.
void WatchProgress(const std::atomic<bool>& ended) {
  double seconds = 0;
  int64_t number = 0;
  char text[512];
  for (int turn = 0; !ended; ++turn) {
    matex_waiting(&seconds, &number, text, sizeof text);
    if (turn % 64 == 0) {
      int64_t dropped = 0;
      const std::vector<Event> events = Events(&dropped);
      const auto labels = static_cast<int64_t>(Labels().size());
      for (const Event& event : events) Check(event.duration >= 0 && event.label < labels, "an event");
      Places();
      BetweenSteps();
    }
    for (int kind = 1; kind < kKinds; ++kind) SecondsOf(static_cast<Kind>(kind));
    usleep(200);
  }
}

// An update whose gradients rank 0 never hands over: the end of the script gives it up.
class ForgottenUpdate {
 public:
  ForgottenUpdate(std::shared_ptr<const Layout> layout, Random& random)
      : gradients_(layout->entries(), DrawWeights(random), false) {
    int64_t ticket = 0;
    Check(Announce({layout, "a forgotten update"}, 1.0, step, &ticket));
    for (size_t i = 0; my_rank > 0 && i < gradients_.entries.size(); ++i) {
      const auto done = [this](const Error& error) { failed_ += error ? 1 : 0; };
      HandOver(ticket, static_cast<int>(i), {gradients_.from[i], gradients_.to[i], done});
    }
  }

  void CheckItFailed() const {
    Check(my_rank == 0 || failed_ == gradients_.entries.size(), "a forgotten update has not failed");
  }

 private:
  Gradients gradients_;
  std::atomic<size_t> failed_{0};
};

// The script ends while the communication threads choose buckets: the end must wait for them.
void RunEnd(Random& random, Random& own) {
  const auto layout = DrawLayout(random);
  for (int n = 1; n <= kUpdatesToBuckets; ++n) {
    if (n == kUpdatesToBuckets) {
      matex_rendezvous(1, 1, "before the last update", 0, 0, 0);  // so that no other layout chooses its buckets now
      barriers = 0;
      barriers_are_slow = true;
    }
    OverlappedUpdate(layout, random, own, /*may_fail=*/false).Finish();
  }
  ForgottenUpdate forgotten(layout, random);
  Check(matex_rendezvous(kExit, 0, "the end", 0, 0, 0) == 0, "the end");
  forgotten.CheckItFailed();
  // There may be more barriers: those of a trial of sum algorithms.
  Check(barriers >= kBarriersOfBuckets && barriers_under_way == 0, "MPI would end while a thread uses it");
  barriers_are_slow = false;
}

int Choice(const std::string& word, const std::vector<std::string>& words) {
  const auto found = std::find(words.begin(), words.end(), word);
  Check(found != words.end(), "there is no choice " + word);
  return static_cast<int>(found - words.begin());
}

// Gradients larger than the memory that ranks share, on ranks that arrive at different times. Of some, each rank needs
// only the sums of its piece, which may be much longer than those of others.
void RunLarge(Random& random, Random& own) {
  const World& world = TheWorld();
  for (int update = 0; update < 4; ++update) {
    const std::vector<Entry> entries{{"large", static_cast<Type>(Draw(random, 2)), {700'000}}};
    const Layout layout(entries, 1 << 30, world.fuse_bytes, world.compression, false, false,
                        update % 2 ? Cuts{DrawCuts(700'000, random)} : Cuts());
    const auto scatter = layout.cuts().empty() ? nullptr : std::make_unique<Scatter>(layout, ranks);
    Gradients gradients(layout.entries(), DrawWeights(random), Draw(random, 2) == 0);
    if (Draw(own, 2)) usleep(20'000);
    Check(ReduceInline(layout, gradients.from.data(), gradients.to.data(), gradients.weights[my_rank], step,
                       [] { return std::string("a large update"); }, scatter.get()));
    CheckOwn(layout, gradients, 0);
  }
}

// One rank has no memory for a result: this call and all later calls fail on all ranks.
void RunWithoutMemory() {
  std::vector<char> all(ranks);
  const auto allocate = [&](const std::vector<int64_t>&) -> void* {
    return my_rank == ranks - 1 ? nullptr : all.data();
  };
  const char one = 1;
  const Error error = Allgather({"rows", Type::kUint8, {1}}, &one, allocate);
  const std::string expected = "rank " + std::to_string(ranks - 1) + " cannot allocate the result";
  Check(error.message.find(expected) == 0, "without memory: '" + error.message + "'");
  Check(Barrier("after it").message == error.message, "after an error: '" + Barrier("after it").message + "'");
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 100;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const int algorithm = Choice(argc > 3 ? argv[3] : "mpi", {"auto", "mpi", "ring", "two_level"});
  const int compression = Choice(argc > 4 ? argv[4] : "none", {"none", "bf16", "fp16", "topk"});
  const bool between_nodes = Choice(argc > 5 ? argv[5] : "all", {"all", "hosts"}) == 1;
  const int ranks_per_node = argc > 6 ? std::atoi(argv[6]) : 1 << 20;
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  Check(provided == MPI_THREAD_MULTIPLE && ranks > 1, "expected MPI_THREAD_MULTIPLE and two ranks or more");
  MPI_Comm communicators[3];
  for (MPI_Comm& communicator : communicators) MPI_Comm_dup(MPI_COMM_WORLD, &communicator);
  Check(Start({MPI_Comm_c2f(communicators[0]), MPI_Comm_c2f(communicators[1]), MPI_Comm_c2f(communicators[2]), my_rank,
               ranks, "host", my_rank / ranks_per_node, 96 << 10, 4 << 10, static_cast<Algorithm>(algorithm),
               {static_cast<Compression::Kind>(compression), 1.0, between_nodes}}));
  std::atomic<bool> ended{false};
  std::thread watcher([&] { WatchProgress(ended); });
  Random random(seed), own(seed * 1000 + static_cast<uint64_t>(my_rank));
  std::vector<std::shared_ptr<const Layout>> layouts;
  for (int i = 0; i < 4; ++i) layouts.push_back(DrawLayout(random));
  for (step = 1; step <= steps; ++step) {
    if (step == steps / 4) Record(Recording::kTotals, 0);
    if (step == steps / 2) Record(Recording::kEvents, 1000);
    switch (Draw(random, 7)) {
      case 0:
        RunInline(random);
        break;
      case 1:
        RunInTurns(random, own);
        break;
      case 2:
        RunInPieces(random);
        break;
      case 3:
        RunPublishing(random, own);
        break;
      case 4:
        RunPublishingLater(random, own);
        break;
      default:
        RunOverlapped(random, own, &layouts);
    }
  }
  CheckBlockedSeconds(random);
  RunLarge(random, own);
  RunEnd(random, own);
  RunWithoutMemory();
  ended = true;
  watcher.join();
  if (my_rank == 0)
    std::printf("stress: ok, %d steps, %ld collectives\n", steps, static_cast<long>(NumberInSequence()));
  MPI_Finalize();
  return 0;
}
