// Failures of MPI in this process. MpiError (world.h) notes each one, so that Python learns the cause of an error by
// its text: TensorFlow and XLA pass only the text on. `BreakJobs` keeps the common error of the communication threads:
// after an MPI failure in one of them, none begins another exchange, because the positions of other ranks are unknown.
#pragma once

#include <string>

#include "engine/base/error.h"

namespace matex {

// Records the MPI error of a failed exchange and returns the first error recorded; `BrokenJobs` returns it, or none.
Error BreakJobs(const Error& error);
Error BrokenJobs();

// The cause of an error. The numbers are part of the C interface (abi.cc).
enum class Cause : int {
  kOther = 0,
  kMpi = 1,  // an MPI call has failed, usually because another rank was lost
};

// Notes `message` as the error of an MPI call. `CauseOf` is kMpi if `text` contains a noted message. Any thread.
void NoteMpiError(const std::string& message);
Cause CauseOf(const std::string& text);

}  // namespace matex
