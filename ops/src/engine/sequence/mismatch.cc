// The comparison of reports, and the sentences that describe their first difference.
#include "engine/sequence/mismatch.h"

#include <algorithm>
#include <utility>

#include "engine/layout/text_fields.h"

namespace matex {
namespace {

std::string Name(const Standing::Named& rank) { return "rank " + std::to_string(rank.rank) + " (" + rank.host + ")"; }

std::string NameFirst(const Standing& standing) { return Name(standing.named.front()); }

std::string Settings(const Report& report) {
  return "MATEX_CHUNK_BYTES=" + std::to_string(report.chunk_bytes) +
         " and MATEX_FUSE_BYTES=" + std::to_string(report.fuse_bytes);
}

// How the layout of `other` differs from the layout of `one`; empty if they are equal.
std::string Difference(const Standing& one, const Standing& other) {
  const Report &a = one.report, &b = other.report;
  const std::vector<Entry>& mine = a.entries;
  const std::vector<Entry>& theirs = b.entries;
  const std::string first = NameFirst(one), second = NameFirst(other);
  const size_t common = std::min(mine.size(), theirs.size());
  for (size_t i = 0; i < common; ++i) {
    if (mine[i] == theirs[i]) continue;
    const std::string which = "gradient " + std::to_string(i + 1) + " of the update";
    if (mine[i].name == theirs[i].name) {
      return which + ", of variable '" + mine[i].name + "', is " + NameOf(mine[i].type) + " " +
             ShapeText(mine[i].shape) + " on " + first + " and " + NameOf(theirs[i].type) + " " +
             ShapeText(theirs[i].shape) + " on " + second;
    }
    return which + " is of variable " + mine[i].ToString() + ", on " + first + " and of variable " +
           theirs[i].ToString() + ", on " + second;
  }
  if (mine.size() != theirs.size()) {
    const bool longer = mine.size() > theirs.size();
    const Entry& extra = longer ? mine[common] : theirs[common];
    return (longer ? first : second) + " has a gradient of variable " + extra.ToString() + ", which " +
           (longer ? second : first) + " has not (" + std::to_string(mine.size()) + " and " +
           std::to_string(theirs.size()) + " gradients)";
  }
  if (a.chunk_bytes != b.chunk_bytes || a.fuse_bytes != b.fuse_bytes) {
    return first + " has " + Settings(a) + ", " + second + " has " + Settings(b);
  }
  if (a.compression != b.compression) return first + " has " + a.compression + ", " + second + " has " + b.compression;
  if (a.compiled != b.compiled) {
    return "XLA has compiled the step on " + (a.compiled ? first : second) + " but not on " +
           (a.compiled ? second : first) + ", where it may not be available; set MATEX_XLA=off";
  }
  if (a.checked != b.checked) {
    return "MATEX_CHECK_NUMERICS checks this update on " + (a.checked ? first : second) + " but not on " +
           (a.checked ? second : first) + ", where a LossScaleOptimizer is in use";
  }
  if (a.mode != b.mode) return first + " " + a.mode + ", " + second + " " + b.mode;
  return "";
}

// How the rows of the batches differ; empty if they are equal.
std::string ExplainBatches(const std::vector<Standing>& places) {
  for (const Standing& other : places) {
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
std::string ExplainLayouts(const std::vector<Standing>& places) {
  for (const Standing& other : places) {
    const std::string difference = Difference(places[0], other);
    if (difference.empty()) continue;
    return "ranks compute different gradients for " + places[0].report.place + ": " + difference +
           ". All ranks must build the same model and run with the same settings: look for code that depends on the "
           "rank, the host, the time or an unseeded choice.";
  }
  return ExplainBatches(places);
}

// "rank 0 (a), rank 2 (a) are at X; rank 1 (b) is at Y": ranks at the same place are listed together.
std::string Places(const Standings& standings) {
  std::string text;
  for (const Standing& one : standings.places) {
    std::string names;
    for (const Standing::Named& named : one.named) names += (names.empty() ? "" : ", ") + Name(named);
    const int64_t more = one.ranks - static_cast<int64_t>(one.named.size());
    if (more > 0) names += " and " + std::to_string(more) + " more";
    text += (text.empty() ? "" : "; ") + names + (one.ranks > 1 ? " are " : " is ");
    text += one.report.kind == Kind::kExit ? "at the end of the script" : "at " + one.report.place;
  }
  if (standings.others > 0) text += "; " + std::to_string(standings.others) + " more ranks are at other places";
  return text;
}

}  // namespace

std::string Encode(const Report& report) {
  std::string text;
  PutAll(text, static_cast<int64_t>(report.kind), report.number, report.host, report.place, report.chunk_bytes,
         report.fuse_bytes, report.compression, int64_t{report.compiled}, int64_t{report.checked}, report.entries,
         report.mode, report.batch.rows, report.exit_code);
  return text;
}

Report Decode(const std::string& text) {
  Fields fields(text);
  Report report;
  report.kind = static_cast<Kind>(fields.Number());
  report.number = fields.Number();
  report.host = fields.Text();
  report.place = fields.Text();
  report.chunk_bytes = fields.Number();
  report.fuse_bytes = fields.Number();
  report.compression = fields.Text();
  report.compiled = fields.Number() != 0;
  report.checked = fields.Number() != 0;
  report.entries = fields.Entries();
  report.mode = fields.Text();
  report.batch.rows = fields.Number();
  report.exit_code = fields.Number();
  return report;
}

std::string Explain(const Standings& standings) {
  const std::vector<Standing>& places = standings.places;
  if (standings.all_reduce) {
    const std::string text = ExplainLayouts(places);
    if (!text.empty()) return text;
  }
  for (const Standing& one : places) {
    if (one.report.kind == Kind::kFailure) return NameFirst(one) + " failed in " + one.report.place;
  }
  const std::string advice =
      "All ranks must call the same collectives: look for a loop, a break or an exit that depends on the rank, on "
      "local data or on the time.";
  const std::string number = "; it is collective number " + std::to_string(places[0].report.number) + ". ";
  for (const Standing& one : places) {
    if (one.report.kind != Kind::kExit) continue;
    return NameFirst(one) + " has ended its script (" + one.report.place +
           ") while others go on: " + Places(standings) + number + advice;
  }
  const std::string batches = standings.all_have_batches ? ExplainBatches(places) : "";
  if (!batches.empty()) return batches;
  return "ranks are at different places in the program: " + Places(standings) + number + advice;
}

}  // namespace matex
