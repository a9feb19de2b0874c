// The failures of this process, under one mutex: the common error of its communication threads, which sum gradients and
// send new weights while the step computes; and the noted causes of errors (failure.h).
#include "engine/mpi/failure.h"

#include <mutex>
#include <set>
#include <utility>

#include "engine/base/immortal.h"

namespace matex {
namespace {

struct Failure {
  std::mutex mutex;
  Error jobs_error;  // the first error of the jobs, which are the exchanges of the communication threads
  std::set<std::pair<Cause, std::string>> noted;  // causes and messages, ordered by cause for `CauseOf`
};

Failure& TheFailure() { return Immortal<Failure>(); }

}  // namespace

Error BreakJobs(const Error& error) {
  std::lock_guard<std::mutex> lock(TheFailure().mutex);
  Error& first = TheFailure().jobs_error;
  return first ? first : first = error;
}

Error BrokenJobs() {
  std::lock_guard<std::mutex> lock(TheFailure().mutex);
  return TheFailure().jobs_error;
}

void NoteCause(Cause cause, const std::string& message) {
  std::lock_guard<std::mutex> lock(TheFailure().mutex);
  TheFailure().noted.emplace(cause, message);
}

Cause CauseOf(const std::string& text) {
  std::lock_guard<std::mutex> lock(TheFailure().mutex);
  for (const auto& one : TheFailure().noted) {
    if (text.find(one.second) != std::string::npos) return one.first;
  }
  return Cause::kOther;
}

}  // namespace matex
