// What the threads that communicate while others compute have in common: they stop where MPI fails.
#pragma once

#include "engine/base/error.h"

namespace matex {

// What MPI said of an exchange that failed: nobody knows then where the others are, and no later one begins. The first
// counts; it is returned.
Error BreakJobs(const Error& error);
Error BrokenJobs();

}  // namespace matex
