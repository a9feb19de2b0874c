// Waiting for MPI without occupying a core: a thread polls and sleeps between polls. Communication threads wait so,
// because the other threads of the process, and the awaited rank, usually still compute.
#pragma once

#include <mpi.h>

#include <chrono>

namespace matex {

// Sleeps of growing length. The first takes 5 us, and each is 1.5 times as long as the one before, up to 0.1 ms: short
// for messages that are on their way. A wait in shared memory (arrivals.cc), which may be for a slow rank, passes a
// `max_length` above 0.1 ms: after 10 ms of waiting a sleep takes 1 % of the wait so far, up to `max_length`. The
// default 0 keeps the limit of 0.1 ms.
class Pause {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  explicit Pause(Nanoseconds max_length = Nanoseconds(0)) : max_length_(max_length) {}
  void Take();  // sleeps once

 private:
  const Nanoseconds max_length_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Nanoseconds length_{5'000};  // of the next sleep
};

// Waits until the request has completed, and returns its error code; sleeps between polls.
int Await(MPI_Request* request);

// The same, but returns MPI_SUCCESS after about `longest` if the request is still unfinished. The request tells: MPI
// sets it to MPI_REQUEST_NULL when it has completed.
int AwaitFor(std::chrono::steady_clock::duration longest, MPI_Request* request);

}  // namespace matex
