// The thread by which new weights travel while others compute: those that the next step needs first, first.
#pragma once

#include "engine/store/publish.h"

namespace matex {

// All ranks add the same ones in the same order, under the mutex of the world (publish.h).
void AddPull(const Shared& shared, Later later);

// Returns when all that were added by now have come, or will not.
void FinishPulls();

}  // namespace matex
