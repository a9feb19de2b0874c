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

// Whether a step has failed on some ranks, and all others are within a step.
bool IsFailedStep(const std::vector<Report>& reports);

// The message for all ranks: the first variable that differs, who has failed or ended, or who is where. Reports are by
// rank.
std::string Explain(const std::vector<Report>& reports);

}  // namespace matex
