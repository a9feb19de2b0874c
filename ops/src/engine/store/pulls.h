// The pull thread: sends new weights while the next step computes, in the order in which the step needs them.
// publish.cc adds jobs under the world's mutex, so all ranks add the same jobs in the same order. Weights yield to
// gradients (GradientsTravel).
#pragma once

#include "engine/store/publish.h"

namespace matex {

// Adds a job: a publication.
void AddPull(const Shared& shared, Later later);

// Returns when all jobs added so far have ended, with or without an error.
void FinishPulls();

}  // namespace matex
