// Makes the error of ranks at different collectives. All ranks merge their reports into one Summary, which has only a
// hash of each report. Then the lowest rank of each place that the Summary lists broadcasts its complete report.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "engine/base/hash.h"
#include "engine/mpi/combine.h"
#include "engine/mpi/failure.h"
#include "engine/sequence/mismatch.h"
#include "engine/sums/world.h"

namespace matex {
namespace {

constexpr int kPlaces = 6;  // the places that a message lists
constexpr int kNamed = 4;   // the ranks that a message lists for each place

// Ranks with equal reports, which are at the same place; RanksAtPlace (mismatch.h) without the report.
struct RankGroup {
  uint64_t key = 0;   // a hash of the report without its host
  int64_t ranks = 0;  // 0: this slot is empty
  struct Member {
    int32_t rank;
    char host[72];
  } named[kNamed] = {};  // the lowest ranks

  // The number of valid elements of `named`.
  int CountNamed() const { return static_cast<int>(std::min<int64_t>(ranks, kNamed)); }
  int32_t lowest() const { return named[0].rank; }

  // Adds other ranks with the same report; keeps the lowest names.
  void Add(const RankGroup& other) {
    KeepLowest(named, ranks, other.named, other.ranks);
    ranks += other.ranks;
  }
};

// The places of a set of ranks. `Add` merges two disjoint sets and keeps the kPlaces places with the lowest ranks.
// These places do not depend on the order of merges. But if there are more places, a merge may drop ranks of a place
// that another merge keeps. Then the number of ranks of this place is too small, and names may be missing. All ranks
// still get the same result, because rank 0 broadcasts it. MPI sends a Summary as bytes, so it has no pointers.
struct Summary {
  RankGroup places[kPlaces] = {};  // the first places, ordered by lowest rank
  // The place of the lowest rank whose step failed, and of the lowest rank whose script ended.
  RankGroup failed = {}, ended = {};
  // Flags, 1 or 0. all_compute: each rank is within a step or has failed in one. all_reduce: all ranks are at a
  // reduction, so their layouts can be compared. all_have_batches: all ranks know the rows of their batch.
  // any_exit_code: a rank has ended its script with an exit code other than 0.
  int32_t all_compute = 1;
  int32_t all_reduce = 1, all_have_batches = 1;
  int32_t any_exit_code = 0;

  void Add(const Summary& other) {
    // The places of both, each place once, ordered by lowest rank.
    RankGroup both[2 * kPlaces];
    RankGroup* end = std::copy_if(places, places + kPlaces, both, [](const RankGroup& one) { return one.ranks > 0; });
    for (const RankGroup& more : other.places) {
      if (more.ranks == 0) continue;
      RankGroup* const same = std::find_if(both, end, [&](const RankGroup& one) { return one.key == more.key; });
      if (same == end) *end++ = more;
      else same->Add(more);
    }
    std::sort(both, end, [](const RankGroup& a, const RankGroup& b) { return a.lowest() < b.lowest(); });
    std::copy_n(both, kPlaces, places);
    const auto take_lower = [](const RankGroup& theirs, RankGroup* ours) {
      if (theirs.ranks > 0 && (ours->ranks == 0 || theirs.lowest() < ours->lowest())) *ours = theirs;
    };
    take_lower(other.failed, &failed);
    take_lower(other.ended, &ended);
    all_compute &= other.all_compute;
    all_reduce &= other.all_reduce;
    all_have_batches &= other.all_have_batches;
    any_exit_code |= other.any_exit_code;
  }
};

Summary MakeSummary(const Report& mine, int rank) {
  Report without_host = mine;  // equal on ranks of different hosts that are at the same place
  without_host.host.clear();
  const std::string text = Encode(without_host);
  Summary summary;
  RankGroup& own = summary.places[0];
  own.key = Hash(text.data(), text.size(), 0);
  own.ranks = 1;
  own.named[0].rank = rank;
  std::snprintf(own.named[0].host, sizeof own.named[0].host, "%s", mine.host.c_str());
  if (mine.kind == Kind::kFailure) summary.failed = own;
  if (mine.kind == Kind::kExit) summary.ended = own;
  // Steps use the kinds up to kAllgather.
  summary.all_compute = mine.kind == Kind::kFailure || mine.kind <= Kind::kAllgather;
  summary.all_reduce = !mine.mode.empty();  // only reductions have a mode
  summary.all_have_batches = mine.batch.rows > 0;
  summary.any_exit_code = mine.exit_code != 0;
  return summary;
}

// `report` = the report of rank `root`. Collective.
Error BroadcastReport(const World& world, int root, const Report& mine, Report* report) {
  std::string text = world.rank == root ? Encode(mine) : "";
  int length = static_cast<int>(text.size());
  int code = MPI_Bcast(&length, 1, MPI_INT, root, world.sequence);
  text.resize(length);
  if (code == MPI_SUCCESS) code = MPI_Bcast(&text[0], length, MPI_CHAR, root, world.sequence);
  if (code == MPI_SUCCESS) *report = Decode(text);
  return MpiError(code, "MPI_Bcast", mine.place);
}

}  // namespace

Error ExplainMismatch(const Report& mine, bool* is_failed_step) {
  const World& world = TheWorld();
  Summary summary = MakeSummary(mine, world.rank);
  if (Error error = MpiError(CombineOverRanks(world.sequence, &summary), "MPI_Reduce", mine.place)) return error;
  // From here on `summary` is equal on all ranks, so all make the same broadcasts.
  AllPlaces all;
  all.all_reduce = summary.all_reduce;
  all.all_have_batches = summary.all_have_batches;
  all.others = world.size;  // less the ranks of each place that `add` lists
  const auto add = [&](const RankGroup& one) {
    all.places.emplace_back();
    RanksAtPlace& ranks = all.places.back();
    ranks.ranks = one.ranks;
    all.others -= one.ranks;
    for (int i = 0; i < one.CountNamed(); ++i) ranks.named.push_back({one.named[i].rank, one.named[i].host});
    return BroadcastReport(world, one.lowest(), mine, &ranks.report);
  };
  // Whether a group need not be added: it is empty, or its place is listed already.
  const auto is_listed = [&](const RankGroup& one) {
    return one.ranks == 0 || std::any_of(summary.places, summary.places + kPlaces, [&](const RankGroup& other) {
             return other.ranks > 0 && other.key == one.key;
           });
  };
  for (const RankGroup& one : summary.places) {
    if (one.ranks == 0) continue;
    if (Error error = add(one)) return error;
  }
  // A failed or ended rank is the cause, so its place is always listed.
  for (const RankGroup* one : {&summary.failed, &summary.ended}) {
    if (is_listed(*one)) continue;
    if (Error error = add(*one)) return error;
  }
  *is_failed_step = summary.failed.ranks > 0 && summary.all_compute;
  const Error error(Explain(all));
  if (summary.any_exit_code && summary.failed.ranks == 0) NoteCause(Cause::kEnded, error.message);
  return error;
}

}  // namespace matex
