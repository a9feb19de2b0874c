// Waiting for MPI without holding a core: what is waited for is most often another rank that still computes.
#pragma once

#include <mpi.h>

#include <chrono>

namespace matex {

// What a wait is for. Data on its way needs each rank every tenth of a millisecond. A rank that is still to come does not:
// the wait for it may be longer by a hundredth, up to 5 ms.
enum class WaitFor { kData, kRank };

// Sleeps, longer and longer.
class Pause {
 public:
  explicit Pause(WaitFor what) : what_(what) {}
  void Take();

 private:
  const WaitFor what_;
  std::chrono::nanoseconds length_{5'000};
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Returns when `request` is over, with its error code. It pauses between looks.
int Await(MPI_Request* request, WaitFor what = WaitFor::kData);

// The same for about `longest` at most: then the request is not null yet.
int AwaitFor(std::chrono::steady_clock::duration longest, MPI_Request* request, WaitFor what = WaitFor::kData);

}  // namespace matex
