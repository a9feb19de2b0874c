#include "engine/mpi/sleeping_wait.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>

namespace matex {

void Pause::Take() {
  using Nanoseconds = std::chrono::nanoseconds;
  constexpr Nanoseconds kMostForData{100'000}, kMostForRank{5'000'000};
  // Linux puts timers of a thread off by up to 50 us, so that they go off together; ours are to be on time.
  static thread_local const int sharp = prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  (void)sharp;
  const timespec pause{0, length_.count()};
  nanosleep(&pause, nullptr);
  length_ = std::min(length_ * 3 / 2, kMostForData);
  if (what_ == WaitFor::kData) return;
  const Nanoseconds hundredth = (std::chrono::steady_clock::now() - start_) / 100;
  length_ = std::min(std::max(length_, hundredth), kMostForRank);
}

int Await(MPI_Request* request, WaitFor what) { return AwaitFor(std::chrono::hours(1 << 20), request, what); }

int AwaitFor(std::chrono::steady_clock::duration longest, MPI_Request* request, WaitFor what) {
  const auto start = std::chrono::steady_clock::now();
  Pause pause(what);
  for (;;) {
    int over = 0;
    const int code = MPI_Test(request, &over, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS || over || std::chrono::steady_clock::now() - start > longest) return code;
    pause.Take();
  }
}

}  // namespace matex
