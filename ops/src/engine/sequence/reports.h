// The error of a rendezvous (rendezvous.h) at which ranks have met with different collectives. rendezvous.cc calls it
// on all ranks. Reports are merged along a tree and only a few are kept, so memory and time stay small.
#pragma once

#include "engine/base/error.h"
#include "engine/sequence/mismatch.h"

namespace matex {

// Collective. Returns the same error on all ranks, made from the report `mine` of each rank. `is_failed_step`:
// whether a step has failed on some ranks while all others are within a step.
Error ExplainMismatch(const Report& mine, bool* is_failed_step);

}  // namespace matex
