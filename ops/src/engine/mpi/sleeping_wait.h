// Waiting for MPI without occupying a core, because the awaited rank usually still computes. Communication threads
// poll a request and sleep between polls.
#pragma once

#include <mpi.h>

#include <chrono>

namespace matex {

// Sleeps of growing length: first up to 0.1 ms, for messages that are on their way. In a long wait up to 1 % of the
// wait so far, but at most `max_length`.
class Pause {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  explicit Pause(Nanoseconds max_length = Nanoseconds(0)) : max_length_(max_length) {}
  void Take();

 private:
  const Nanoseconds max_length_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Nanoseconds length_{5'000};
};

// Returns the request's error code when it has completed; sleeps between polls.
int Await(MPI_Request* request);

// The same for at most about `longest`; after that the request may be unfinished, and is not null.
int AwaitFor(std::chrono::steady_clock::duration longest, MPI_Request* request);

}  // namespace matex
