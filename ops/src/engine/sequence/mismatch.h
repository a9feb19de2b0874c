// What ranks tell each other when they have met at different collectives, and the sentence made of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/layout/layout.h"

namespace matex {

// The numbers are part of the C interface (abi.cc).
enum class Kind : int {
  kGradients = 1,
  kAllreduce = 2,
  kBroadcast = 3,
  kAllgather = 4,
  kBarrier = 5,
  kControl = 6,
  kExit = 7,
  kFailure = 8,  // a step has raised an error on this rank, which others may be within
};

constexpr int kKinds = 9;

// What ranks must agree on of a reduction besides its tensors. rows: of the global batch, 0 if not said, and -1 where none
// of the tensors is a gradient: it is no update then. Other collectives only tell the rows of the batch that they are for.
struct Batch {
  Batch(int64_t rows = 0) : rows(rows) {}
  bool is_update() const { return rows >= 0; }

  int64_t rows;
};

// Where one rank is. For reductions only: what is of a layout.
struct Report {
  Kind kind = Kind::kControl;
  int64_t number = 0;
  std::string host;
  std::string what;
  int64_t chunk_bytes = 0;
  int64_t fuse_bytes = 0;
  std::string compression;
  bool compiled = false;
  bool checked = false;
  std::vector<Entry> entries;
  std::string way;  // what this rank does with these gradients, for people
  Batch batch{};
};

std::string Encode(const Report& report);
Report Decode(const std::string& text);

// Ranks that are at one place: the report of the lowest of them, how many they are, and the first ones.
struct Standing {
  Report report;
  int64_t ranks = 1;
  struct Named {
    int rank = 0;
    std::string host;
  };
  std::vector<Named> named;  // in their order; the report is of the first
};

// Where the ranks of a meeting are.
struct Standings {
  std::vector<Standing> places;  // some of them, in the order of their lowest ranks; first that of rank 0
  int64_t others = 0;            // ranks at further places
  bool all_reduce = true;        // whether all ranks reduce gradients
  bool all_have_batches = true;  // and have told the rows of a batch
};

// The message for all ranks: the first variable that differs, who has failed or ended, or who is where.
std::string Explain(const Standings& standings);

}  // namespace matex
