// The failures of this process, under one mutex.
#include "engine/mpi/failure.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace matex {
namespace {

struct Failure {
  std::mutex mutex;
  Error jobs_error;  // of the communication threads
  std::vector<std::string> mpi_messages;
};

Failure& TheFailure() {
  // Never destroyed: threads query it until the process ends.
  static Failure* const failure = new Failure;
  return *failure;
}

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

void NoteMpiError(const std::string& message) {
  std::lock_guard<std::mutex> lock(TheFailure().mutex);
  std::vector<std::string>& messages = TheFailure().mpi_messages;
  if (std::find(messages.begin(), messages.end(), message) == messages.end()) messages.push_back(message);
}

Cause CauseOf(const std::string& text) {
  std::lock_guard<std::mutex> lock(TheFailure().mutex);
  for (const std::string& message : TheFailure().mpi_messages) {
    if (text.find(message) != std::string::npos) return Cause::kMpi;
  }
  return Cause::kOther;
}

}  // namespace matex
