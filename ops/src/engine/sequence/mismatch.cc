#include "engine/sequence/mismatch.h"

#include <algorithm>
#include <utility>

#include "engine/layout/text_fields.h"

namespace matex {
namespace {

std::string Named(size_t rank, const std::vector<Report>& reports) {
  return "rank " + std::to_string(rank) + " (" + reports[rank].host + ")";
}

bool SamePlace(const Report& a, const Report& b) {
  return a.kind == b.kind && a.what == b.what && a.number == b.number && a.entries == b.entries &&
         a.chunk_bytes == b.chunk_bytes && a.fuse_bytes == b.fuse_bytes && a.compression == b.compression &&
         a.compiled == b.compiled && a.checked == b.checked && a.way == b.way &&
         a.batch.rows == b.batch.rows;
}

std::string Settings(const Report& report) {
  return "MATEX_CHUNK_BYTES=" + std::to_string(report.chunk_bytes) +
         " and MATEX_FUSE_BYTES=" + std::to_string(report.fuse_bytes);
}

// How the layout of rank `b` differs from that of rank `a`; empty if it does not.
std::string Difference(size_t a, size_t b, const std::vector<Report>& reports) {
  const std::vector<Entry>& mine = reports[a].entries;
  const std::vector<Entry>& theirs = reports[b].entries;
  const std::string first = Named(a, reports), second = Named(b, reports);
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
  if (reports[a].chunk_bytes != reports[b].chunk_bytes || reports[a].fuse_bytes != reports[b].fuse_bytes) {
    return first + " has " + Settings(reports[a]) + ", " + second + " has " + Settings(reports[b]);
  }
  if (reports[a].compression != reports[b].compression) {
    return first + " has " + reports[a].compression + ", " + second + " has " + reports[b].compression;
  }
  if (reports[a].compiled != reports[b].compiled) {
    return "XLA has compiled the step on " + (reports[a].compiled ? first : second) + " but not on " +
           (reports[a].compiled ? second : first) + ", where it may not be available; MATEX_XLA=off turns it off";
  }
  if (reports[a].checked != reports[b].checked) {
    return "MATEX_CHECK_NUMERICS looks at this update on " + (reports[a].checked ? first : second) + " but not on " +
           (reports[a].checked ? second : first) + ", where a LossScaleOptimizer is in use";
  }
  if (reports[a].way != reports[b].way) return first + " " + reports[a].way + ", " + second + " " + reports[b].way;
  return "";
}

std::string ExplainBatches(const std::vector<Report>& reports) {
  for (size_t rank = 1; rank < reports.size(); ++rank) {
    const int64_t first = reports[0].batch.rows, other = reports[rank].batch.rows;
    if (first != other) {
      return "the ranks' batches have different numbers of rows at " + reports[0].what + ": " + std::to_string(first) +
             " on " + Named(0, reports) + ", " + std::to_string(other) + " on " + Named(rank, reports) +
             ". Every rank must read the same data in the same order.";
    }
  }
  return "";
}

std::string ExplainLayouts(const std::vector<Report>& reports) {
  for (size_t rank = 1; rank < reports.size(); ++rank) {
    const std::string difference = Difference(0, rank, reports);
    if (difference.empty()) continue;
    return "ranks compute different gradients for " + reports[0].what + ": " + difference +
           ". All ranks must build the same model and run with the same settings: look for what depends on the rank, "
           "the host, the time or an unseeded choice.";
  }
  return ExplainBatches(reports);
}

// "rank 0 (a), rank 2 (a) are at X; rank 1 (b) is at Y": ranks at the same place are named together.
std::string Places(const std::vector<Report>& reports) {
  constexpr size_t kNamed = 4;  // of hundreds of ranks, a few tell enough
  std::vector<bool> told(reports.size(), false);
  std::string text;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (told[rank]) continue;
    size_t alike = 0;
    std::string names;
    for (size_t other = rank; other < reports.size(); ++other) {
      if (told[other] || !SamePlace(reports[rank], reports[other])) continue;
      told[other] = true;
      if (alike++ < kNamed) names += (names.empty() ? "" : ", ") + Named(other, reports);
    }
    if (alike > kNamed) names += " and " + std::to_string(alike - kNamed) + " more";
    text += (text.empty() ? "" : "; ") + names + (alike > 1 ? " are " : " is ");
    text += reports[rank].kind == Kind::kExit ? "at the end of the script" : "at " + reports[rank].what;
  }
  return text;
}

}  // namespace

std::string Encode(const Report& report) {
  std::string text;
  Put(text, static_cast<int64_t>(report.kind));
  Put(text, report.number);
  Put(text, report.host);
  Put(text, report.what);
  Put(text, report.chunk_bytes);
  Put(text, report.fuse_bytes);
  Put(text, report.compression);
  Put(text, static_cast<int64_t>(report.compiled));
  Put(text, static_cast<int64_t>(report.checked));
  Put(text, report.entries);
  Put(text, report.way);
  Put(text, report.batch.rows);
  return text;
}

Report Decode(const std::string& text) {
  Fields fields(text);
  Report report;
  report.kind = static_cast<Kind>(fields.Number());
  report.number = fields.Number();
  report.host = fields.Text();
  report.what = fields.Text();
  report.chunk_bytes = fields.Number();
  report.fuse_bytes = fields.Number();
  report.compression = fields.Text();
  report.compiled = fields.Number() != 0;
  report.checked = fields.Number() != 0;
  report.entries = fields.Entries();
  report.way = fields.Text();
  report.batch.rows = fields.Number();
  return report;
}

bool IsFailedStep(const std::vector<Report>& reports) {
  bool failed = false, others_compute = true;
  for (const Report& report : reports) {
    const bool mine = report.kind == Kind::kFailure;
    failed = failed || mine;
    others_compute = others_compute && (mine || report.kind <= Kind::kAllgather);
  }
  return failed && others_compute;
}

std::string Explain(const std::vector<Report>& reports) {
  bool all_reduce = true;
  for (const Report& report : reports) all_reduce = all_reduce && !report.way.empty();
  if (all_reduce) {
    const std::string text = ExplainLayouts(reports);
    if (!text.empty()) return text;
  }
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].kind == Kind::kFailure) return Named(rank, reports) + " failed in " + reports[rank].what;
  }
  const std::string advice =
      "All ranks must go through the same steps: look for a loop, a break or an exit that depends on the rank, on "
      "local data or on the time.";
  const std::string number = "; it is collective number " + std::to_string(reports[0].number) + ". ";
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].kind != Kind::kExit) continue;
    return Named(rank, reports) + " has ended its script (" + reports[rank].what +
           ") while others go on: " + Places(reports) + number + advice;
  }
  bool all_have_batches = true;
  for (const Report& report : reports) all_have_batches = all_have_batches && report.batch.rows > 0;
  const std::string batches = all_have_batches ? ExplainBatches(reports) : "";
  if (!batches.empty()) return batches;
  return "ranks are at different places in the program: " + Places(reports) + number + advice;
}

}  // namespace matex
