// The engine's C interface, for Python's ctypes (ops/library.py). Functions that can fail return 0 or 1; the message
// of the calling thread's last failure is then in matex_last_error.
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "buckets.h"
#include "hash.h"
#include "inline.h"
#include "layout.h"
#include "overlapped.h"
#include "rendezvous.h"
#include "turnstile.h"
#include "waits.h"
#include "world.h"

namespace matex {
namespace {

std::string& LastError() {
  static thread_local std::string message;
  return message;
}

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
                             int several_hosts, int64_t chunk_bytes, int64_t fuse_bytes, int algorithm) {
  return matex::Result(matex::Start({sequence, gradients, overlapped, rank, size, host, several_hosts != 0, chunk_bytes,
                                     fuse_bytes, static_cast<matex::Algorithm>(algorithm)}));
}

MATEX_EXPORT int matex_rendezvous(int kind, uint64_t key, const char* what) {
  if (kind <= 0 || kind >= matex::kKinds) {
    return matex::Result(matex::Error("there is no kind " + std::to_string(kind) + " of collective."));
  }
  const std::function<std::string()> text = [what] { return std::string(what); };
  const matex::Call call{static_cast<matex::Kind>(kind), key, text};
  const bool is_end = call.kind == matex::Kind::kExit;
  if (is_end) {
    // What the script has announced and not handed over will not come; other ranks may wait for it before they end.
    if (matex::Error error = matex::GiveUpAll("its script has ended.")) return matex::Result(error);
  }
  std::lock_guard<std::mutex> lock(matex::TheWorld().mutex);
  if (matex::Error error = matex::Meet(call)) return matex::Result(error);
  if (is_end) matex::Settle();
  return matex::Result(matex::Finish(call, matex::Error()));
}

MATEX_EXPORT int64_t matex_count(int kind) {
  return kind > 0 && kind < matex::kKinds ? matex::CountOf(static_cast<matex::Kind>(kind)) : 0;
}

MATEX_EXPORT double matex_seconds(int kind) {
  return kind > 0 && kind < matex::kKinds ? matex::SecondsOf(static_cast<matex::Kind>(kind)) : 0;
}

// Where this process waits for others: 1, with since how many seconds, the number of the collective and, in `text`, its
// place; 0 if it does not. `number` is in any case that of the collective which this process comes to next.
MATEX_EXPORT int matex_waiting(double* seconds, int64_t* number, char* text, int size) {
  *number = matex::NumberInSequence();
  matex::Waiting waiting;
  if (!matex::LongestWait(&waiting)) return 0;
  *seconds = waiting.seconds;
  std::snprintf(text, size, "%s", waiting.what.c_str());
  return 1;
}

MATEX_EXPORT uint64_t matex_hash(const void* data, int64_t bytes, uint64_t seed) {
  return matex::Hash(data, static_cast<size_t>(bytes), seed);
}

MATEX_EXPORT void matex_expect(const int64_t* turns, int count) {
  matex::TheTurnstile().Expect(std::vector<int64_t>(turns, turns + count));
}

// Reduces plain buffers through a layout; `dimensions` holds the shapes one after another, `ranks` their lengths.
MATEX_EXPORT int matex_reduce(int count, const char* const* names, const int* types, const int* ranks,
                              const int64_t* dimensions, const void* const* inputs, void* const* outputs, double weight,
                              const char* place) {
  std::vector<matex::Entry> entries;
  for (int i = 0; i < count; ++i) {
    entries.push_back({names[i], static_cast<matex::Type>(types[i]), {dimensions, dimensions + ranks[i]}});
    dimensions += ranks[i];
  }
  const matex::World& world = matex::TheWorld();
  const matex::Layout layout(std::move(entries), world.chunk_bytes, world.fuse_bytes);
  return matex::Result(matex::ReduceInline(layout, inputs, outputs, weight, 0, [place] { return std::string(place); }));
}

// Writes the boundaries of the best buckets (buckets.h) of `count` gradients, and when their transfers are over; returns
// how many boundaries they are, at most count + 1.
MATEX_EXPORT int matex_buckets(int count, const double* ready, const double* bytes, double start_up, double byte,
                               int* boundaries, double* end) {
  const std::vector<double> when(ready, ready + count), size(bytes, bytes + count);
  const matex::Link link{start_up, byte};
  const std::vector<int> found = matex::ChooseBuckets(when, size, link);
  std::copy(found.begin(), found.end(), boundaries);
  *end = matex::EndOf(found, when, size, link);
  return static_cast<int>(found.size());
}

MATEX_EXPORT const char* matex_mpi_version() {
  static char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(version, &length);
  return version;
}

}  // extern "C"
