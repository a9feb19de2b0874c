// The pull thread sends new weights while the next step computes, in the order in which the step needs them. All ranks
// add the same jobs in the same order (publish.cc, under the world's mutex). Gradients go first (GradientsTravel).
#pragma once

#include "engine/store/publish.h"

namespace matex {

// Adds a job: a publication.
void AddPull(const Shared& shared, Later later);

// Returns when all jobs added so far have ended, with or without an error.
void FinishPulls();

}  // namespace matex
