// Waiting for MPI without holding a core: what is waited for is most often another rank that still computes.
#pragma once

#include <mpi.h>

#include <chrono>

namespace matex {

// Sleeps, longer and longer, up to a tenth of a millisecond, as data on their way need. Longer, up to `most`, where that is a
// hundredth of the wait so far.
class Pause {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  explicit Pause(Nanoseconds most = Nanoseconds(0)) : most_(most) {}
  void Take();

 private:
  const Nanoseconds most_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Nanoseconds length_{5'000};
};

// Returns when `request` is over, with its error code. It pauses between looks.
int Await(MPI_Request* request);

// The same for about `longest` at most: then the request is not null yet.
int AwaitFor(std::chrono::steady_clock::duration longest, MPI_Request* request);

}  // namespace matex
