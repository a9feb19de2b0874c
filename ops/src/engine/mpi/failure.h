// The causes of errors in this process. An error whose cause matters is noted, so that Python learns the cause by the
// text of the error: TensorFlow and XLA pass only the text on. `BreakJobs` keeps the common error of the communication
// threads: after an MPI failure in one of them, no thread begins another exchange, because the positions of the other
// ranks are unknown.
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
  kMpi = 1,        // an MPI call has failed, usually because another rank was lost
  kElsewhere = 2,  // another rank has raised the error that is the cause
  kEnded = 3,      // a rank has ended its script with an exit code other than 0 while others go on
};

// Notes the cause of the error `message`. `CauseOf` is the lowest cause of the noted messages that `text` contains.
// Any thread.
void NoteCause(Cause cause, const std::string& message);
Cause CauseOf(const std::string& text);

}  // namespace matex
