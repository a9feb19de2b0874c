// Waiting for MPI without holding a core: what is waited for is most often another rank that still computes.
#pragma once

#include <mpi.h>

#include <chrono>

namespace matex {

// Sleeps, longer and longer, up to a tenth of a millisecond.
class Pause {
 public:
  void Take();

 private:
  long length_ = 5'000;  // nanoseconds
};

// Returns when `request` is over, with its error code. It pauses between looks.
int Await(MPI_Request* request);

// The same for about `longest` at most: then the request is not null yet.
int AwaitFor(std::chrono::steady_clock::duration longest, MPI_Request* request);

}  // namespace matex
