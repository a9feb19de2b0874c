// The pull thread sends new weights while the next step computes, in the order in which the step needs them. publish.cc
// gives it jobs. Each job is the publication of some variables. All ranks add the same jobs in the same order, under
// the world's mutex. The thread sends nothing while gradients travel (GradientsTravel in async_reduction.h).
#pragma once

#include "engine/store/publish.h"

namespace matex {

// Adds a job. The thread calls the functions of `later`.
void AddPull(const DividedVariables& variables, Later later);

// Returns when all jobs added so far have ended, with or without an error.
void FinishPulls();

}  // namespace matex
