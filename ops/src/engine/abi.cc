// The engine's C interface for Python's ctypes (ops/interface.py). A function that can fail returns 0 or 1; after a 1,
// matex_last_error returns the message of the calling thread. Communicators, kinds and types are plain numbers, which
// the headers define.
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

// The layouts of `matex_reduce` that live until `matex_forget`.
std::vector<std::shared_ptr<const Layout>>& KeptLayouts() {
  static auto* const layouts = new std::vector<std::shared_ptr<const Layout>>;
  return *layouts;
}

// Stores the message for matex_last_error; returns 1 if there is an error.
int Result(const Error& error) {
  LastError() = error.message;
  return error ? 1 : 0;
}

}  // namespace
}  // namespace matex

extern "C" {

#define MATEX_EXPORT __attribute__((visibility("default")))

MATEX_EXPORT const char* matex_last_error() { return matex::LastError().c_str(); }

MATEX_EXPORT int matex_start(int sequence, int gradients, int overlapped, int rank, int size, const char* host,
                             int node, int64_t chunk_bytes, int64_t fuse_bytes, int algorithm, int compression,
                             double share, int between_nodes) {
  const matex::Compression chosen{static_cast<matex::Compression::Kind>(compression), share, between_nodes != 0};
  return matex::Result(matex::Start({sequence, gradients, overlapped, rank, size, host, node, chunk_bytes, fuse_bytes,
                                     static_cast<matex::Algorithm>(algorithm), chosen}));
}

// `BePhantom` (world.h).
MATEX_EXPORT void matex_phantom(int size) { matex::BePhantom(size); }

// After ranks were lost: continues with the remaining ranks at collective `number`, with `counts` completed of each
// kind.
MATEX_EXPORT int matex_start_again(int sequence, int gradients, int overlapped, int rank, int size, int node,
                                   int64_t number, const int64_t* counts) {
  matex::GoOnAt(number, counts);
  return matex::Result(matex::StartAgain(sequence, gradients, overlapped, rank, size, node));
}

// Meets the other ranks at a collective without data (rendezvous.h).
MATEX_EXPORT int matex_rendezvous(int kind, uint64_t key, const char* place, int64_t bytes, int64_t rows,
                                  int exit_code) {
  if (kind <= 0 || kind >= matex::kKinds) {
    return matex::Result(matex::Error("there is no kind " + std::to_string(kind) + " of collective."));
  }
  const std::function<std::string()> get_place = [place] { return std::string(place); };
  const matex::Call call{static_cast<matex::Kind>(kind), key, get_place, bytes, /*layout=*/nullptr, rows,
                         /*announced=*/nullptr, exit_code};
  const bool is_end = call.kind == matex::Kind::kExit;
  // Announced gradients that were not handed over will not come; other ranks may wait for them before they end.
  if (is_end) matex::GiveUpAll("its script has ended.");
  if (call.kind == matex::Kind::kFailure) matex::GiveUpAll("it failed in " + get_place());
  std::lock_guard<std::mutex> lock(matex::TheWorld().mutex);
  if (matex::Error error = matex::Meet(call)) return matex::Result(error);
  if (is_end) matex::FinishUpdates(), matex::FinishPulls();  // then MPI may be finalized
  return matex::Result(matex::Finish(call, is_end ? matex::BrokenJobs() : matex::Error()));
}

// The number of completed collectives of a kind; 0 if there is no such kind.
MATEX_EXPORT int64_t matex_count(int kind) {
  return kind > 0 && kind < matex::kKinds ? matex::CountOf(static_cast<matex::Kind>(kind)) : 0;
}

// 1: all later rendezvous fail.
MATEX_EXPORT int matex_failure() { return matex::Result(matex::FailureOfSequence()); }

// The cause (failure.h) of the error whose message `text` contains.
MATEX_EXPORT int matex_cause(const char* text) { return static_cast<int>(matex::CauseOf(text)); }

MATEX_EXPORT int64_t matex_rows() { return matex::RowsOfUpdates(); }
MATEX_EXPORT double matex_blocked_seconds() { return matex::BlockedSeconds(); }
// `Arrivals::WaitedSoFar` (arrivals.h).
MATEX_EXPORT void matex_waited(double* seconds, double* core_seconds) {
  const matex::Arrivals::Waited waited = matex::Arrivals::WaitedSoFar();
  *seconds = waited.seconds;
  *core_seconds = waited.core_seconds;
}
MATEX_EXPORT double matex_seconds(int kind) {
  return kind > 0 && kind < matex::kKinds ? matex::SecondsOf(static_cast<matex::Kind>(kind)) : 0;
}

// Whether this process waits for other ranks. 1: it has waited for `seconds` at the place `text`. 0: it does not.
// `number` is always the number of the current collective, or of the next one.
MATEX_EXPORT int matex_waiting(double* seconds, int64_t* number, char* text, int size) {
  *number = matex::NumberInSequence();
  matex::Waiting waiting;
  if (!matex::LongestWait(&waiting)) return 0;
  *seconds = waiting.seconds;
  std::snprintf(text, size, "%s", waiting.place.c_str());
  return 1;
}

// From now on, until `matex_go_on`, this process exchanges Python objects with other ranks at `place`.
MATEX_EXPORT void matex_wait(const char* place) {
  static std::mutex* const mutex = new std::mutex;
  static std::string* const current = new std::string;
  static const auto* const get_current = new std::function<std::string()>([] {
    std::lock_guard<std::mutex> lock(*mutex);
    return *current;
  });
  {
    std::lock_guard<std::mutex> lock(*mutex);
    *current = place;
  }
  matex::Wait(matex::Waiter::kObjects, get_current);
}

MATEX_EXPORT void matex_go_on() { matex::GoOn(matex::Waiter::kObjects); }

// XXH64 (hash.h).
MATEX_EXPORT uint64_t matex_hash(const void* data, int64_t bytes, uint64_t seed) {
  return matex::Hash(data, static_cast<size_t>(bytes), seed);
}

// Sets the turns of the next v1 run (v1_order.h).
MATEX_EXPORT void matex_expect(const int64_t* turns, int count) {
  matex::TheTurnstile().Expect(std::vector<int64_t>(turns, turns + count));
}

// Reduces plain buffers through a layout. `dimensions` holds the shapes one after another, `ranks` their lengths,
// `variables` the numbers of the variables (0: no variable). A layout that is `kept` lives, with its compression
// residuals, until matex_forget.
MATEX_EXPORT int matex_reduce(int count, const char* const* names, const int* types, const int* ranks,
                              const int64_t* dimensions, const int64_t* variables, const void* const* inputs,
                              void* const* outputs, double weight, int kept, const char* place) {
  std::vector<matex::Entry> entries;
  for (int i = 0; i < count; ++i) {
    entries.push_back(
        {names[i], static_cast<matex::Type>(types[i]), {dimensions, dimensions + ranks[i]}, variables[i]});
    dimensions += ranks[i];
  }
  const matex::World& world = matex::TheWorld();
  const auto layout =
      std::make_shared<matex::Layout>(std::move(entries), world.chunk_bytes, world.fuse_bytes, world.compression);
  if (kept) matex::KeptLayouts().push_back(layout);
  const std::function<std::string()> get_place = [place] { return std::string(place); };
  return matex::Result(matex::ReduceInline(*layout, inputs, outputs, weight, 0, get_place));
}

MATEX_EXPORT void matex_forget() { matex::KeptLayouts().clear(); }

// The number of variables with compression residuals.
MATEX_EXPORT int64_t matex_residuals() { return matex::Residuals(); }

// Writes the boundaries of the best buckets (buckets.h) of `count` gradients, and the end of their transfers; returns
// the number of boundaries, at most count + 1.
MATEX_EXPORT int matex_buckets(int count, const double* ready, const double* bytes, double start_up, double byte,
                               int* boundaries, double* end) {
  const std::vector<double> when(ready, ready + count), size(bytes, bytes + count);
  const matex::Link link{start_up, byte};
  const std::vector<int> found = matex::ChooseBuckets(when, size, link);
  std::copy(found.begin(), found.end(), boundaries);
  *end = matex::EndOf(found, when, size, link);
  return static_cast<int>(found.size());
}

// Starts recording (trace.h): 1 totals, 2 also the last `capacity` events, 3 also events of single gradients.
MATEX_EXPORT void matex_record(int how, int64_t capacity) {
  matex::Record(static_cast<matex::Recording>(how), capacity);
}

MATEX_EXPORT void matex_between_steps() { matex::BetweenSteps(); }

// The clock of events: nanoseconds.
MATEX_EXPORT int64_t matex_now() { return matex::Now(); }

// Copies at most `size` events and returns their number; `dropped`: the number of older events that were not kept.
MATEX_EXPORT int64_t matex_events(matex::Event* events, int64_t size, int64_t* dropped) {
  const std::vector<matex::Event> all = matex::Events(dropped);
  const int64_t count = std::min<int64_t>(size, all.size());
  std::copy(all.begin(), all.begin() + count, events);
  return count;
}

// Copies the labels of events, each with a terminating 0, up to `size` bytes; returns their total size in bytes.
MATEX_EXPORT int64_t matex_labels(char* text, int64_t size) {
  std::string all;
  for (const std::string& label : matex::Labels()) all.append(label.c_str(), label.size() + 1);
  std::copy_n(all.data(), std::min<int64_t>(size, all.size()), text);
  return static_cast<int64_t>(all.size());
}

// Copies the totals and the name of place `index`; 0 if there is none.
MATEX_EXPORT int matex_totals(int index, matex::Totals* totals, char* name, int size) {
  const std::vector<matex::PlaceTotals> places = matex::Places();
  if (index < 0 || index >= static_cast<int>(places.size())) return 0;
  *totals = places[index].totals;
  std::snprintf(name, size, "%s", places[index].name.c_str());
  return 1;
}

// Measures the cost of a transfer: start-up seconds, and seconds per byte. Collective, before any update.
MATEX_EXPORT int matex_link(int overlapped, double* start_up, double* byte) {
  matex::World& world = matex::TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  matex::Adder& adder = overlapped ? matex::OverlappedAdder() : matex::InlineAdder();
  const MPI_Comm communicator = overlapped ? world.overlapped : world.gradients;
  constexpr int kTrials = 4;  // the first wakes up sleeping threads; the best shows the link's speed
  matex::Link best;
  best.start_up = best.byte = std::numeric_limits<double>::infinity();
  best.disturbed = true;
  for (int trial = 0; trial < kTrials; ++trial) {
    matex::Link link;
    if (matex::Error error = matex::ProbeLink(adder, communicator, 1, &link)) return matex::Result(error);
    best.start_up = std::min(best.start_up, link.start_up);
    if (link.byte > 0) best.byte = std::min(best.byte, link.byte);
    best.disturbed = best.disturbed && link.disturbed;
  }
  if (std::isinf(best.byte)) best.byte = 0;
  matex::NoteLink(best);
  *start_up = best.start_up;
  *byte = best.byte;
  return matex::Result(matex::Error());
}

// `TimeSums` (link_probe.h). Collective.
MATEX_EXPORT int matex_time_sums(int overlapped, int64_t bytes, int probes, double* seconds, double* cpu) {
  matex::World& world = matex::TheWorld();
  std::lock_guard<std::mutex> lock(world.mutex);
  return matex::Result(matex::TimeSums(overlapped ? matex::OverlappedAdder() : matex::InlineAdder(),
                                       overlapped ? world.overlapped : world.gradients, bytes, probes, seconds, cpu));
}

// The result of the last probe, and whether it was disturbed; 0 if there was none.
MATEX_EXPORT int matex_last_link(double* start_up, double* byte, int* disturbed) {
  matex::Link link;
  if (!matex::LastLink(&link)) return 0;
  *start_up = link.start_up;
  *byte = link.byte;
  *disturbed = link.disturbed;
  return 1;
}

// Makes a new store (store.h). Collective. `made`: whether the ranks have it.
MATEX_EXPORT int matex_store_make(int64_t bytes, int64_t batches, int64_t parts, int* made) {
  std::shared_ptr<matex::SharedStore> store;
  matex::Error error = matex::SharedStore::Make({bytes, batches, parts}, &store);
  *made = store != nullptr;
  matex::SetTheStore(std::move(store));
  return matex::Result(error);
}

MATEX_EXPORT void matex_store_drop() { matex::SetTheStore(nullptr); }

// `DropHomes` (publish.h).
MATEX_EXPORT void matex_drop_homes(int64_t holding) { matex::DropHomes(holding); }

MATEX_EXPORT void matex_store_deal(int64_t first, int64_t count) {
  matex::TheStore()->Deal(first, count);
}

// `SharedStore::Begin`; -1 if there is no store.
MATEX_EXPORT int matex_store_begin(int64_t bound, double seconds, int64_t* ticket, int* behind) {
  const std::shared_ptr<matex::SharedStore> store = matex::TheStore();
  return store == nullptr ? -1 : store->Begin(bound, seconds, ticket, behind);
}

MATEX_EXPORT int64_t matex_store_end(int version) { return matex::TheStore()->End(version); }
MATEX_EXPORT void matex_store_stop() { matex::TheStore()->Stop(); }
MATEX_EXPORT int64_t matex_store_trained() { return matex::TheStore()->CountTrained(); }
MATEX_EXPORT int matex_store_lose(int rank, int64_t* ticket) { return matex::TheStore()->Lose(rank, ticket); }
MATEX_EXPORT int matex_store_lost(int rank) { return matex::TheStore()->IsLost(rank); }
MATEX_EXPORT int matex_store_version(int rank) { return matex::TheStore()->VersionOf(rank); }
MATEX_EXPORT void* matex_store_data() { return matex::TheStore()->data(); }

MATEX_EXPORT void matex_store_leave() {
  if (const std::shared_ptr<matex::SharedStore> store = matex::TheStore()) store->Leave();
}

MATEX_EXPORT const char* matex_mpi_version() {
  static char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(version, &length);
  return version;
}

}  // extern "C"
