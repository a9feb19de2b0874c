// The thread that communicates while others compute. It does one job after the other, in the order in which they were
// added: that of the meetings, the same on all ranks.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/base/error.h"

namespace matex {

// Gives the number of the job, which counts from 1 and is handed to it. Jobs whose ranks meet first are added under the
// mutex of the world.
int64_t AddJob(std::function<void(int64_t number)> job);

// Returns when all jobs that were added by now are done.
void FinishJobs();

// What MPI said of a job that failed: nobody knows then where the others are, and no later job begins to communicate.
// The first counts; it is returned.
Error BreakJobs(const Error& error);
Error BrokenJobs();

}  // namespace matex
