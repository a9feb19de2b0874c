// The text form of reports, their comparison, and the sentences that describe their first difference. A report says
// which collective a rank has reached; ranks make reports if they meet at different collectives (mismatch.h).
#include "engine/sequence/mismatch.h"

#include <algorithm>
#include <utility>

#include "engine/layout/text_fields.h"

namespace matex {
namespace {

template <typename Visitor, typename AnyReport>
void VisitReport(Visitor& visit, AnyReport& report) {
  VisitAll(visit, report.kind, report.number, report.host, report.place, report.chunk_bytes, report.fuse_bytes,
           report.compression, report.compiled, report.checked, report.entries, report.mode, report.batch.rows,
           report.exit_code);
}

std::string Name(const RanksAtPlace::Named& one) { return "rank " + std::to_string(one.rank) + " (" + one.host + ")"; }

std::string NameFirst(const RanksAtPlace& ranks) { return Name(ranks.named.front()); }

std::string Settings(const Report& report) {
  return "MATEX_CHUNK_BYTES=" + std::to_string(report.chunk_bytes) +
         " and MATEX_FUSE_BYTES=" + std::to_string(report.fuse_bytes);
}

// How the layout of `other` differs from the layout of `one`; empty if they are equal.
std::string Difference(const RanksAtPlace& one, const RanksAtPlace& other) {
  const Report &a = one.report, &b = other.report;
  const std::vector<Entry>& entries_a = a.entries;
  const std::vector<Entry>& entries_b = b.entries;
  const std::string rank_a = NameFirst(one), rank_b = NameFirst(other);
  const size_t common = std::min(entries_a.size(), entries_b.size());
  for (size_t i = 0; i < common; ++i) {
    if (entries_a[i] == entries_b[i]) continue;
    const std::string which = "gradient " + std::to_string(i + 1) + " of the update";
    if (entries_a[i].name == entries_b[i].name) {
      return which + ", of variable '" + entries_a[i].name + "', is " + NameOf(entries_a[i].type) + " " +
             ShapeText(entries_a[i].shape) + " on " + rank_a + " and " + NameOf(entries_b[i].type) + " " +
             ShapeText(entries_b[i].shape) + " on " + rank_b;
    }
    return which + " is of variable " + entries_a[i].ToString() + ", on " + rank_a + " and of variable " +
           entries_b[i].ToString() + ", on " + rank_b;
  }
  if (entries_a.size() != entries_b.size()) {
    const bool longer = entries_a.size() > entries_b.size();
    const Entry& extra = longer ? entries_a[common] : entries_b[common];
    return (longer ? rank_a : rank_b) + " has a gradient of variable " + extra.ToString() + ", which " +
           (longer ? rank_b : rank_a) + " has not (" + std::to_string(entries_a.size()) + " and " +
           std::to_string(entries_b.size()) + " gradients)";
  }
  if (a.chunk_bytes != b.chunk_bytes || a.fuse_bytes != b.fuse_bytes) {
    return rank_a + " has " + Settings(a) + ", " + rank_b + " has " + Settings(b);
  }
  if (a.compression != b.compression) return rank_a + " has " + a.compression + ", " + rank_b + " has " + b.compression;
  if (a.compiled != b.compiled) {
    return "XLA has compiled the step on " + (a.compiled ? rank_a : rank_b) + " but not on " +
           (a.compiled ? rank_b : rank_a) + ", where it may not be available; set MATEX_XLA=off";
  }
  if (a.checked != b.checked) {
    return "MATEX_CHECK_NUMERICS checks this update on " + (a.checked ? rank_a : rank_b) + " but not on " +
           (a.checked ? rank_b : rank_a) + ", where a LossScaleOptimizer is in use";
  }
  // For example: rank 0 (a) reduces them at once, rank 1 (b) computes no more (`mode` in rendezvous.cc).
  if (a.mode != b.mode) return rank_a + " " + a.mode + ", " + rank_b + " " + b.mode;
  return "";
}

// How the numbers of rows of the global batches differ; empty if they are equal.
std::string ExplainBatches(const std::vector<RanksAtPlace>& places) {
  for (const RanksAtPlace& other : places) {
    const int64_t first = places[0].report.batch.rows, rows = other.report.batch.rows;
    if (first != rows) {
      return "the ranks' batches have different numbers of rows at " + places[0].report.place + ": " +
             std::to_string(first) + " on " + NameFirst(places[0]) + ", " + std::to_string(rows) + " on " +
             NameFirst(other) + ". Every rank must read the same data in the same order.";
    }
  }
  return "";
}

// How the layouts, or else the batches, differ; empty if they are equal.
std::string ExplainLayouts(const std::vector<RanksAtPlace>& places) {
  for (const RanksAtPlace& other : places) {
    const std::string difference = Difference(places[0], other);
    if (difference.empty()) continue;
    return "ranks compute different gradients for " + places[0].report.place + ": " + difference +
           ". All ranks must build the same model and run with the same settings: look for code that depends on the "
           "rank, the host, the time or an unseeded choice.";
  }
  return ExplainBatches(places);
}

// "rank 0 (a), rank 2 (a) are at X; rank 1 (b) is at Y": ranks at the same place are listed together.
std::string Places(const AllPlaces& all) {
  std::string text;
  for (const RanksAtPlace& one : all.places) {
    std::string names;
    for (const RanksAtPlace::Named& named : one.named) names += (names.empty() ? "" : ", ") + Name(named);
    const int64_t more = one.ranks - static_cast<int64_t>(one.named.size());
    if (more > 0) names += " and " + std::to_string(more) + " more";
    text += (text.empty() ? "" : "; ") + names + (one.ranks > 1 ? " are " : " is ");
    text += one.report.kind == Kind::kExit ? "at the end of the script" : "at " + one.report.place;
  }
  if (all.others > 0) text += "; " + std::to_string(all.others) + " more ranks are at other places";
  return text;
}

}  // namespace

std::string Encode(const Report& report) {
  FieldWriter writer;
  VisitReport(writer, report);
  return writer.text;
}

Report Decode(const std::string& text) {
  FieldReader reader(text);
  Report report;
  VisitReport(reader, report);
  return report;
}

// The first of these that holds: all ranks are at a reduction, and layouts or batches differ; a rank has failed; a rank
// has ended its script; the batches of other collectives differ; ranks are at different places.
std::string Explain(const AllPlaces& all) {
  const std::vector<RanksAtPlace>& places = all.places;
  if (all.all_reduce) {
    const std::string text = ExplainLayouts(places);
    if (!text.empty()) return text;
  }
  for (const RanksAtPlace& one : places) {
    if (one.report.kind == Kind::kFailure) return NameFirst(one) + " failed in " + one.report.place;
  }
  const std::string advice =
      "All ranks must call the same collectives: look for a loop, a break or an exit that depends on the rank, on "
      "local data or on the time.";
  const std::string number = "; it is collective number " + std::to_string(places[0].report.number) + ". ";
  for (const RanksAtPlace& one : places) {
    if (one.report.kind != Kind::kExit) continue;
    return NameFirst(one) + " has ended its script (" + one.report.place +
           ") while others go on: " + Places(all) + number + advice;
  }
  const std::string batches = all.all_have_batches ? ExplainBatches(places) : "";
  if (!batches.empty()) return batches;
  return "ranks are at different places in the program: " + Places(all) + number + advice;
}

}  // namespace matex
