#include "engine/sequence/reports.h"

#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>

#include "engine/base/hash.h"
#include "engine/mpi/combine.h"
#include "engine/sums/world.h"

namespace matex {
namespace {

constexpr int kPlaces = 6;  // the places that a message lists
constexpr int kNamed = 4;   // the ranks that a message lists for each place

// Ranks with equal reports, which are at the same place.
struct Alike {
  uint64_t key = 0;
  int64_t ranks = 0;  // 0: this slot is empty
  struct One {
    int32_t rank;
    char host[72];
  } named[kNamed] = {};  // the lowest ranks

  int Named() const { return static_cast<int>(std::min<int64_t>(ranks, kNamed)); }
  int32_t lowest() const { return named[0].rank; }

  void Add(const Alike& other) {
    One both[2 * kNamed];
    One* const middle = std::copy_n(named, Named(), both);
    One* const end = std::copy_n(other.named, other.Named(), middle);
    std::sort(both, end, [](const One& a, const One& b) { return a.rank < b.rank; });
    ranks += other.ranks;
    std::copy_n(both, Named(), named);
  }
};

// The places of a set of ranks. `Add` merges two disjoint sets; the result does not depend on the order of merges.
struct Found {
  Alike places[kPlaces] = {};  // ordered by lowest rank
  Alike failed = {}, ended = {};  // the place of the lowest rank whose step failed, and of the lowest whose script ended
  int32_t all_compute = 1;  // whether each rank is within a step or has failed in one
  int32_t all_reduce = 1, all_have_batches = 1;

  void Add(const Found& other) {
    Alike both[2 * kPlaces];
    Alike* end = std::copy_if(places, places + kPlaces, both, [](const Alike& one) { return one.ranks > 0; });
    for (const Alike& more : other.places) {
      if (more.ranks == 0) continue;
      Alike* const same = std::find_if(both, end, [&](const Alike& one) { return one.key == more.key; });
      if (same == end) *end++ = more;
      else same->Add(more);
    }
    std::sort(both, end, [](const Alike& a, const Alike& b) { return a.lowest() < b.lowest(); });
    std::copy_n(both, kPlaces, places);
    for (Alike Found::*one : {&Found::failed, &Found::ended}) {
      const Alike& theirs = other.*one;
      if (theirs.ranks > 0 && ((this->*one).ranks == 0 || theirs.lowest() < (this->*one).lowest())) this->*one = theirs;
    }
    all_compute &= other.all_compute;
    all_reduce &= other.all_reduce;
    all_have_batches &= other.all_have_batches;
  }
};

Found FindOwn(const Report& mine, int rank) {
  Report anywhere = mine;
  anywhere.host.clear();
  const std::string text = Encode(anywhere);
  Found found;
  Alike& own = found.places[0];
  own.key = Hash(text.data(), text.size(), 0);
  own.ranks = 1;
  own.named[0].rank = rank;
  std::snprintf(own.named[0].host, sizeof own.named[0].host, "%s", mine.host.c_str());
  if (mine.kind == Kind::kFailure) found.failed = own;
  if (mine.kind == Kind::kExit) found.ended = own;
  found.all_compute = mine.kind == Kind::kFailure || mine.kind <= Kind::kAllgather;
  found.all_reduce = !mine.way.empty();
  found.all_have_batches = mine.batch.rows > 0;
  return found;
}

// Broadcasts the report of rank `of`.
Error Tell(const World& world, int of, const Report& mine, Report* report) {
  std::string text = world.rank == of ? Encode(mine) : "";
  if (text.size() > static_cast<size_t>(std::numeric_limits<int>::max())) {
    Report shorter = mine;
    shorter.entries.clear();
    text = Encode(shorter);
  }
  int length = static_cast<int>(text.size());
  int code = MPI_Bcast(&length, 1, MPI_INT, of, world.sequence);
  text.resize(length);
  if (code == MPI_SUCCESS) code = MPI_Bcast(&text[0], length, MPI_CHAR, of, world.sequence);
  if (code == MPI_SUCCESS) *report = Decode(text);
  return MpiError(code, "MPI_Bcast", mine.what);
}

}  // namespace

Error ExplainMismatch(const Report& mine, bool* is_failed_step) {
  const World& world = TheWorld();
  Found found = FindOwn(mine, world.rank);
  if (Error error = MpiError(CombineOverRanks(world.sequence, &found), "MPI_Reduce", mine.what)) return error;
  *is_failed_step = found.failed.ranks > 0 && found.all_compute;
  Standings standings;
  standings.all_reduce = found.all_reduce;
  standings.all_have_batches = found.all_have_batches;
  standings.others = world.size;
  const auto add = [&](const Alike& one) {
    standings.places.emplace_back();
    Standing& standing = standings.places.back();
    standing.ranks = one.ranks;
    standings.others -= one.ranks;
    for (int i = 0; i < one.Named(); ++i) standing.named.push_back({one.named[i].rank, one.named[i].host});
    return Tell(world, one.lowest(), mine, &standing.report);
  };
  const auto is_told = [&](const Alike& one) {
    return one.ranks == 0 || std::any_of(found.places, found.places + kPlaces, [&](const Alike& other) {
             return other.ranks > 0 && other.key == one.key;
           });
  };
  for (const Alike& one : found.places) {
    if (one.ranks == 0) continue;
    if (Error error = add(one)) return error;
  }
  for (const Alike* one : {&found.failed, &found.ended}) {
    if (is_told(*one)) continue;
    if (Error error = add(*one)) return error;
  }
  return Error(Explain(standings));
}

}  // namespace matex
