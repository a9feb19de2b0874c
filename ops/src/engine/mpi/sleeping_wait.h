// Waiting for MPI without occupying a core: communication threads poll a request and sleep between polls. The other
// threads of this process, and the awaited rank, usually still compute.
#pragma once

#include <mpi.h>

#include <chrono>

namespace matex {

// Sleeps of growing length. The first takes 5 us, and each is 1.5 times as long as the one before, up to 0.1 ms: short
// for messages that are on their way. After 10 ms of waiting, a sleep takes 1 % of the wait so far, but at most
// `max_length`. With `max_length` 0 it stays at 0.1 ms.
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

// Returns the request's error code when it has completed; sleeps between polls.
int Await(MPI_Request* request);

// The same for at most about `longest`; after that the request may be unfinished, and is not null.
int AwaitFor(std::chrono::steady_clock::duration longest, MPI_Request* request);

}  // namespace matex
