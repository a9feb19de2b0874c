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

// Where one rank is. For gradients only: what is of a layout, and the rows of its batch.
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
  int64_t rows = 0;
};

std::string Encode(const Report& report);
Report Decode(const std::string& text);

// Whether a step has failed on some ranks, and all others are within a step.
bool IsFailedStep(const std::vector<Report>& reports);

// The message for all ranks: the first variable that differs, who has failed or ended, or who is where. Reports are by
// rank.
std::string Explain(const std::vector<Report>& reports);

}  // namespace matex
