// Polls MPI_Test, with sleeps between the polls.
#include "engine/mpi/sleeping_wait.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>

namespace matex {

void Pause::Take() {
  constexpr Nanoseconds kUsualMax{100'000};
  // Linux delays timers by up to 50 us by default, to coalesce them; these must be on time.
  static thread_local const int sharp = prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  (void)sharp;
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
