// The common error of the communication threads: after an MPI failure in one of them, no thread begins another
// exchange, because the positions of the other ranks are unknown.
#pragma once

#include "engine/base/error.h"

namespace matex {

// Records the MPI error of a failed exchange and returns the first error recorded; `BrokenJobs` returns it, or none.
Error BreakJobs(const Error& error);
Error BrokenJobs();

}  // namespace matex
