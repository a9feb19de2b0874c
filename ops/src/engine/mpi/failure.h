// The failures of this process. They are of two kinds:
//
// - The common error of the communication threads (`BreakJobs`). After an MPI failure in one of them, no thread begins
//   another exchange, because nobody knows how far the other ranks have come.
// - The causes of errors (`NoteCause`). TensorFlow and XLA pass only the text of an error to Python. So the cause is
//   noted here with the text, and Python asks for the cause by the text.
#pragma once

#include <string>

#include "engine/base/error.h"

namespace matex {

// Records the MPI error of a failed exchange. Returns the first error that was recorded, as does `BrokenJobs`; if there
// is none, `BrokenJobs` returns no error.
Error BreakJobs(const Error& error);
Error BrokenJobs();

// The cause of an error. The numbers are part of the C interface (abi.cc).
enum class Cause : int {
  kOther = 0,
  kMpi = 1,        // an MPI call has failed, usually because another rank was lost
  kElsewhere = 2,  // another rank has raised the error that is the cause
  kEnded = 3,      // a rank has ended its script with an exit code other than 0 while others go on
};

// Notes the cause of the error `message`. `CauseOf` returns the cause of the noted message that `text` contains; of
// several such messages, the cause with the lowest number above. Any thread.
void NoteCause(Cause cause, const std::string& message);
Cause CauseOf(const std::string& text);

}  // namespace matex
