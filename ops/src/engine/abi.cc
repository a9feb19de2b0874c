// The engine's C interface, which Python calls by ctypes (ops/interface.py). An int that a function returns means:
// - In a function that can fail: 0 for success, 1 for failure. After a 1, matex_last_error returns the message, in the
//   same thread.
// - In a function that asks, such as matex_waiting, matex_last_link or matex_store_lost: 1 for yes, 0 for no.
// - Else what the comment of the function says.
// Communicators, kinds and types are plain numbers, which the headers define.
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/layout/buckets.h"
#include "engine/base/hash.h"
#include "engine/base/immortal.h"
#include "engine/update/inline.h"
#include "engine/layout/layout.h"
#include "engine/update/link_probe.h"
#include "engine/update/async_reduction.h"
#include "engine/mpi/arrivals.h"
#include "engine/mpi/failure.h"
#include "engine/sequence/trace.h"
#include "engine/sequence/rendezvous.h"
#include "engine/layout/error_feedback.h"
#include "engine/sums/allreduce.h"
#include "engine/sequence/v1_order.h"
#include "engine/sequence/wait_state.h"
#include "engine/store/pulls.h"
#include "engine/store/store.h"
#include "engine/sums/world.h"

namespace matex {
namespace {

std::string& LastError() {
  static thread_local std::string message;
  return message;
}

// The layouts of `matex_reduce`, which tests call: one more with each call that `keeps_layout`, until `matex_forget`.
// They keep the residuals of compression, which later layouts of the same variables share (error_feedback.h).
std::vector<std::shared_ptr<const Layout>>& KeptLayouts() {
  return Immortal<std::vector<std::shared_ptr<const Layout>>>();
}

// Stores the message for matex_last_error; returns 1 if there is an error.
int Result(const Error& error) {
  LastError() = error.message;
  return error ? 1 : 0;
}

}  // namespace

extern "C" {

#define MATEX_EXPORT __attribute__((visibility("default")))

MATEX_EXPORT const char* matex_last_error() { return LastError().c_str(); }

// `Start` (world.h). `compression`, `share` and `between_nodes`: the fields of Compression.
MATEX_EXPORT int matex_start(int sequence, int gradients, int overlapped, int rank, int size, const char* host,
                             int node, int64_t chunk_bytes, int64_t fuse_bytes, int algorithm, int compression,
                             double share, int between_nodes) {
  const Compression chosen{static_cast<Compression::Kind>(compression), share, between_nodes != 0};
  return Result(Start({sequence, gradients, overlapped, rank, size, host, node, chunk_bytes, fuse_bytes,
                       static_cast<Algorithm>(algorithm), chosen}));
}

// For `matex plan`, after matex_start with one rank: this process computes as rank 0 of `size` ranks, and the other
// ranks do not exist (`BePhantom` in world.h).
MATEX_EXPORT void matex_phantom(int size) { BePhantom(size); }

// After ranks were lost: the remaining ranks, with their new ranks and communicators, continue the sequence of
// collectives at `number`. counts[kind]: the number of completed collectives of this kind.
MATEX_EXPORT int matex_start_again(int sequence, int gradients, int overlapped, int rank, int size, int node,
                                   int64_t number, const int64_t* counts) {
  GoOnAt(number, counts);
  return Result(StartAgain(sequence, gradients, overlapped, rank, size, node));
}

// Meets the other ranks at a collective without data (rendezvous.h).
MATEX_EXPORT int matex_rendezvous(int kind, uint64_t key, const char* place, int64_t bytes, int64_t rows,
                                  int exit_code) {
  if (kind <= 0 || kind >= kKinds) return Result(Error("there is no kind " + std::to_string(kind) + " of collective."));
  const std::function<std::string()> get_place = [place] { return std::string(place); };
  const Call call{static_cast<Kind>(kind), key, get_place, bytes, /*layout=*/nullptr, rows,
                  /*announced=*/nullptr, exit_code};
  const bool is_end = call.kind == Kind::kExit;
  // A rank that ends, or whose step has failed, hands over no more of its announced gradients. It gives them up
  // (async_reduction.h) before it waits, because the communication threads of other ranks may wait for them.
  if (is_end) GiveUpAll("its script has ended.");
  if (call.kind == Kind::kFailure) GiveUpAll("it failed in " + get_place());
  std::lock_guard<std::mutex> lock(TheWorld().mutex);
  if (Error error = Meet(call)) return Result(error);
  // After the collective of the end Python may finalize MPI. So the threads that use MPI finish their work now, and an
  // MPI error in one of them (`BrokenJobs` in failure.h) is the error of this collective.
  if (is_end) {
    FinishUpdates();
    FinishPulls();
  }
  return Result(Finish(call, is_end ? BrokenJobs() : Error()));
}

// The number of completed collectives of a kind; 0 if there is no such kind.
MATEX_EXPORT int64_t matex_count(int kind) {
  return kind > 0 && kind < kKinds ? CountOf(static_cast<Kind>(kind)) : 0;
}

// Whether all later rendezvous fail, with the message that matex_last_error then returns.
MATEX_EXPORT int matex_failure() { return Result(FailureOfSequence()); }

// The cause (failure.h) of the error whose message `text` contains.
MATEX_EXPORT int matex_cause(const char* text) { return static_cast<int>(CauseOf(text)); }

// `RowsOfUpdates` (rendezvous.h), and `BlockedSeconds` (wait_state.h).
MATEX_EXPORT int64_t matex_rows() { return RowsOfUpdates(); }
MATEX_EXPORT double matex_blocked_seconds() { return BlockedSeconds(); }
// `Arrivals::WaitedSoFar` (arrivals.h).
MATEX_EXPORT void matex_waited(double* seconds, double* core_seconds) {
  const Arrivals::Waited waited = Arrivals::WaitedSoFar();
  *seconds = waited.seconds;
  *core_seconds = waited.core_seconds;
}
// `SecondsOf` (rendezvous.h); 0 if there is no such kind.
MATEX_EXPORT double matex_seconds(int kind) {
  return kind > 0 && kind < kKinds ? SecondsOf(static_cast<Kind>(kind)) : 0;
}

// Whether this process waits for other ranks. 1: it has waited for `seconds` at the place `text`. 0: it does not wait.
// `number` is set in both cases (NumberInSequence).
MATEX_EXPORT int matex_waiting(double* seconds, int64_t* number, char* text, int size) {
  *number = NumberInSequence();
  Waiting waiting;
  if (!LongestWait(&waiting)) return 0;
  *seconds = waiting.seconds;
  std::snprintf(text, size, "%s", waiting.place.c_str());
  return 1;
}

// Notes, until `matex_go_on`, that this process exchanges Python objects with other ranks at `place`, and may have to
// wait for them. One exchange at a time.
MATEX_EXPORT void matex_wait(const char* place) {
  NoteWait(Waiter::kObjects, [text = std::string(place)] { return text; });
}

MATEX_EXPORT void matex_go_on() { NoteWaitEnd(Waiter::kObjects); }

// XXH64 (hash.h).
MATEX_EXPORT uint64_t matex_hash(const void* data, int64_t bytes, uint64_t seed) {
  return Hash(data, static_cast<size_t>(bytes), seed);
}

// Sets the turns of the next v1 run (v1_order.h).
MATEX_EXPORT void matex_expect(const int64_t* turns, int count) {
  TheTurnstile().Expect(std::vector<int64_t>(turns, turns + count));
}

// Sums `count` tensors over ranks by `ReduceInline` (inline.h), without TensorFlow. `dimensions` holds the shapes of
// all tensors one after another, `dimension_counts` the number of dimensions of each, `variables` the numbers of the
// variables (0: no variable). `keeps_layout`: see `KeptLayouts`.
MATEX_EXPORT int matex_reduce(int count, const char* const* names, const int* types, const int* dimension_counts,
                              const int64_t* dimensions, const int64_t* variables, const void* const* inputs,
                              void* const* outputs, double weight, int keeps_layout, const char* place) {
  std::vector<Entry> entries;
  for (int i = 0; i < count; ++i) {
    const std::vector<int64_t> shape(dimensions, dimensions + dimension_counts[i]);
    entries.push_back({names[i], static_cast<Type>(types[i]), shape, variables[i]});
    dimensions += dimension_counts[i];
  }
  const World& world = TheWorld();
  const auto layout =
      std::make_shared<Layout>(std::move(entries), world.chunk_bytes, world.fuse_bytes, world.compression);
  if (keeps_layout) KeptLayouts().push_back(layout);
  const std::function<std::string()> get_place = [place] { return std::string(place); };
  return Result(ReduceInline(*layout, inputs, outputs, weight, Batch(/*rows=*/0), get_place));
}

MATEX_EXPORT void matex_forget() { KeptLayouts().clear(); }

// The number of variables with compression residuals.
MATEX_EXPORT int64_t matex_residuals() { return CountResiduals(); }

// Writes the boundaries of the best buckets (buckets.h) of `count` gradients, and to `end` when the last transfer ends.
// Returns the number of boundaries, at most count + 1. ready_at[i]: when gradient i is ready; sizes[i]: its bytes.
// Times are seconds from the start of the step.
MATEX_EXPORT int matex_buckets(int count, const double* ready_at, const double* sizes, double start_up_seconds,
                               double seconds_per_byte, int* boundaries, double* end) {
  const std::vector<double> ready(ready_at, ready_at + count), bytes(sizes, sizes + count);
  const Link link{start_up_seconds, seconds_per_byte};
  const std::vector<int> best = ChooseBuckets(ready, bytes, link);
  std::copy(best.begin(), best.end(), boundaries);
  *end = EndOf(best, ready, bytes, link);
  return static_cast<int>(best.size());
}

// Starts recording (trace.h): 1 totals, 2 also the last `capacity` events, 3 also events of single gradients.
MATEX_EXPORT void matex_record(int how, int64_t capacity) { Record(static_cast<Recording>(how), capacity); }

// `BetweenSteps` (trace.h).
MATEX_EXPORT void matex_between_steps() { BetweenSteps(); }

// The clock of events: nanoseconds.
MATEX_EXPORT int64_t matex_now() { return Now(); }

// Copies at most `size` events and returns their number; `dropped`: the number of older events that were not kept.
MATEX_EXPORT int64_t matex_events(Event* events, int64_t size, int64_t* dropped) {
  const std::vector<Event> all = Events(dropped);
  const int64_t count = std::min<int64_t>(size, all.size());
  std::copy(all.begin(), all.begin() + count, events);
  return count;
}

// Copies the labels of events, each with a terminating 0, up to `size` bytes; returns their total size in bytes.
MATEX_EXPORT int64_t matex_labels(char* text, int64_t size) {
  std::string all;
  for (const std::string& label : Labels()) all.append(label.c_str(), label.size() + 1);
  std::copy_n(all.data(), std::min<int64_t>(size, all.size()), text);
  return static_cast<int64_t>(all.size());
}

// Copies the totals and the name of place `index`; 0 if there is none.
MATEX_EXPORT int matex_totals(int index, Totals* totals, char* name, int size) {
  const std::vector<PlaceTotals> places = Places();
  if (index < 0 || index >= static_cast<int>(places.size())) return 0;
  *totals = places[index].totals;
  std::snprintf(name, size, "%s", places[index].name.c_str());
  return 1;
}

// Measures the cost of a transfer: start-up seconds, and seconds per byte. Collective, before any update.
MATEX_EXPORT int matex_link(int overlapped, double* start_up, double* byte) {
  World& world = TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  Adder& adder = overlapped ? OverlappedAdder() : InlineAdder();
  const MPI_Comm communicator = overlapped ? world.overlapped : world.gradients;
  // The time of the first probe includes waking up sleeping threads. So there are always kTrials probes, and the
  // shortest times count. The result is disturbed only if all probes were. (ProbeLink by itself would end with the
  // first undisturbed probe.)
  constexpr int kTrials = 4;
  Link best;
  best.start_up = best.byte = std::numeric_limits<double>::infinity();
  best.disturbed = true;
  for (int trial = 0; trial < kTrials; ++trial) {
    Link link;
    if (Error error = ProbeLink(adder, communicator, /*trials=*/1, &link)) return Result(error);
    best.start_up = std::min(best.start_up, link.start_up);
    if (link.byte > 0) best.byte = std::min(best.byte, link.byte);
    best.disturbed = best.disturbed && link.disturbed;
  }
  if (std::isinf(best.byte)) best.byte = 0;
  NoteLink(best);
  *start_up = best.start_up;
  *byte = best.byte;
  return Result(Error());
}

// `TimeSums` (link_probe.h). Collective.
MATEX_EXPORT int matex_time_sums(int overlapped, int64_t bytes, int probes, double* seconds, double* cpu) {
  World& world = TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  return Result(TimeSums(overlapped ? OverlappedAdder() : InlineAdder(),
                         overlapped ? world.overlapped : world.gradients, bytes, probes, seconds, cpu));
}

// The result of the last probe, and whether it was disturbed; 0 if there was none.
MATEX_EXPORT int matex_last_link(double* start_up, double* byte, int* disturbed) {
  Link link;
  if (!LastLink(&link)) return 0;
  *start_up = link.start_up;
  *byte = link.byte;
  *disturbed = link.disturbed;
  return 1;
}

// The store (store.h) is the shared memory of asynchronous training on one node. It has the variables that all ranks
// train, and hands out the batches of an epoch. Without a store, matex_store_begin returns -1, matex_store_leave and
// matex_store_drop do nothing, and no other matex_store function may be called but matex_store_make.

// Makes a new store. Collective. `made`: 0 if the ranks cannot share memory; then there is no store.
MATEX_EXPORT int matex_store_make(int64_t bytes, int64_t batches, int64_t parts, int* made) {
  std::shared_ptr<SharedStore> store;
  Error error = SharedStore::Make({bytes, batches, parts}, &store);
  *made = store != nullptr;
  SetTheStore(std::move(store));
  return Result(error);
}

MATEX_EXPORT void matex_store_drop() { SetTheStore(nullptr); }

// `DropHomes` (publish.h). Homes are shared memory for variables (homes.h); `holding` is the number of a group of them.
MATEX_EXPORT void matex_drop_homes(int64_t holding) { DropHomes(holding); }

// `SharedStore::Deal` (store.h).
MATEX_EXPORT void matex_store_deal(int64_t first, int64_t count) { TheStore()->Deal(first, count); }

// `SharedStore::Begin`: the number of its result (`Begun`); -1 if there is no store.
MATEX_EXPORT int matex_store_begin(int64_t bound, double seconds, int64_t* batch, int* behind) {
  const std::shared_ptr<SharedStore> store = TheStore();
  return store == nullptr ? -1 : store->Begin(bound, seconds, batch, behind);
}

// The functions of SharedStore, with its parameters and results (store.h): `End`, `Stop`, `CountTrained`, `Lose`,
// `IsLost`, `VersionOf`, `data` and `Leave`.
MATEX_EXPORT int64_t matex_store_end(int version) { return TheStore()->End(version); }
MATEX_EXPORT void matex_store_stop() { TheStore()->Stop(); }
MATEX_EXPORT int64_t matex_store_trained() { return TheStore()->CountTrained(); }
MATEX_EXPORT int matex_store_lose(int rank, int64_t* batch) { return TheStore()->Lose(rank, batch); }
MATEX_EXPORT int matex_store_lost(int rank) { return TheStore()->IsLost(rank); }
MATEX_EXPORT int matex_store_version(int rank) { return TheStore()->VersionOf(rank); }
MATEX_EXPORT void* matex_store_data() { return TheStore()->data(); }

MATEX_EXPORT void matex_store_leave() {
  if (const std::shared_ptr<SharedStore> store = TheStore()) store->Leave();
}

MATEX_EXPORT const char* matex_mpi_version() {
  static char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(version, &length);
  return version;
}

}  // extern "C"

}  // namespace matex
