// Waiting for MPI by MPI_Test, with sleeps between the calls (sleeping_wait.h).
#include "engine/mpi/sleeping_wait.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>

namespace matex {

void Pause::Take() {
  constexpr Nanoseconds kUsualMax{100'000};
  // By default Linux ends a sleep up to 50 us late, to end several sleeps at once. In this thread: at most 1 us.
  static thread_local const int is_set = prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  (void)is_set;
  const timespec pause{0, length_.count()};
  nanosleep(&pause, nullptr);
  const Nanoseconds hundredth = (std::chrono::steady_clock::now() - start_) / 100;
  length_ = std::max(std::min(length_ * 3 / 2, kUsualMax), std::min(hundredth, max_length_));
}

int Await(MPI_Request* request) { return AwaitFor(std::chrono::hours(1 << 20), request); }

int AwaitFor(std::chrono::steady_clock::duration longest, MPI_Request* request) {
  const auto start = std::chrono::steady_clock::now();
  Pause pause;
  for (;;) {
    int completed = 0;
    const int code = MPI_Test(request, &completed, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS || completed || std::chrono::steady_clock::now() - start > longest) return code;
    pause.Take();
  }
}

}  // namespace matex
