// What ranks that have met at different collectives tell each other, by a tree: the reports of a few, whatever their number.
#pragma once

#include "engine/base/error.h"
#include "engine/sequence/mismatch.h"

namespace matex {

// The error of a meeting at which ranks were at different places, the same on all ranks, of what each reports.
// `is_failed_step`: whether a step has failed on some ranks, and all others are within a step. All ranks call it together.
Error ExplainMismatch(const Report& mine, bool* is_failed_step);

}  // namespace matex
