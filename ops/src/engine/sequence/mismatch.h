// The report that each rank makes if ranks meet at different collectives, and the message made from the reports of all
// ranks. reports.cc collects the reports. `Explain` is a pure function, so all ranks raise the same message.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/layout/layout.h"

namespace matex {

// The kind of a collective. The numbers are part of the C interface (abi.cc).
enum class Kind : int {
  kGradients = 1,
  kAllreduce = 2,
  kBroadcast = 3,
  kAllgather = 4,
  kBarrier = 5,
  kControl = 6,  // an exchange of Python objects
  kExit = 7,     // the end of the script
  kFailure = 8,  // a step has raised an error on this rank; other ranks may still be within the step
};

constexpr int kKinds = 9;  // kinds are 1 to kKinds - 1

// The batch that a reduction belongs to. rows: the number of rows of the global batch; 0: unknown; -1: the reduction is
// no update. Ranks must agree on the rows of a reduction; other collectives only report them.
struct Batch {
  Batch(int64_t rows = 0) : rows(rows) {}
  bool is_update() const { return rows >= 0; }

  int64_t rows;
};

// The collective that a rank has reached. Fields `chunk_bytes` to `entries`: the layout (layout.h) of a reduction.
struct Report {
  Kind kind = Kind::kControl;
  int64_t number = 0;  // in the sequence
  std::string host;
  std::string place;  // the place in the program
  int64_t chunk_bytes = 0;  // MATEX_CHUNK_BYTES
  int64_t fuse_bytes = 0;   // MATEX_FUSE_BYTES
  std::string compression;  // of the gradients, as text
  bool compiled = false;    // whether XLA has compiled the step
  bool checked = false;     // whether MATEX_CHECK_NUMERICS checks this update
  std::vector<Entry> entries;
  // How this rank reduces the gradients, such as "reduces them at once"; empty: it is at no reduction.
  std::string mode;
  Batch batch{};
  int64_t exit_code = 0;  // of the script, at its end
};

std::string Encode(const Report& report);
Report Decode(const std::string& text);

// Ranks with equal reports, at the same place: the lowest rank's report, the number of ranks, the first ranks' names.
struct RanksAtPlace {
  Report report;
  int64_t ranks = 1;
  struct Named {
    int rank = 0;
    std::string host;
  };
  std::vector<Named> named;  // in rank order; named[0] made the report
};

// The places of all ranks at a rendezvous, where ranks compare their next collectives (rendezvous.h).
struct AllPlaces {
  std::vector<RanksAtPlace> places;  // at most a few, ordered by lowest rank; rank 0's place is the first
  int64_t others = 0;            // the number of ranks at places that are not listed
  bool all_reduce = true;        // whether all ranks are at a reduction
  bool all_have_batches = true;  // whether all ranks have reported the rows of a batch
};

// The error of a rendezvous (rendezvous.h) at which ranks have met with different collectives. Collective; returns the
// same error on all ranks, made from the report `mine` of each rank. `is_failed_step`: whether a step has failed on
// some ranks while all others are within a step. Reports are merged along a tree and only a few are kept, so memory and
// time stay small (reports.cc).
Error ExplainMismatch(const Report& mine, bool* is_failed_step);

// The message for all ranks: the first gradient that differs, the rank that failed or ended, or the place of each rank.
std::string Explain(const AllPlaces& all);

}  // namespace matex
