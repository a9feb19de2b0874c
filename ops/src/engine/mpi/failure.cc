#include "engine/mpi/failure.h"

#include <mutex>

namespace matex {
namespace {

struct Failure {
  std::mutex mutex;
  Error error;
};

Failure& TheFailure() {
  // Never destroyed: threads query it until the process ends.
  static Failure* const failure = new Failure;
  return *failure;
}

}  // namespace

Error BreakJobs(const Error& error) {
  std::lock_guard<std::mutex> lock(TheFailure().mutex);
  Error& first = TheFailure().error;
  return first ? first : first = error;
}

Error BrokenJobs() {
  std::lock_guard<std::mutex> lock(TheFailure().mutex);
  return TheFailure().error;
}

}  // namespace matex
