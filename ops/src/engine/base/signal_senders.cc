// Records whether a signal to this process came from its launchers (mpirun, srun) or from another sender, because
// Python's signal handlers do not learn the sender. Python calls the functions at the end by ctypes (interface.py).
#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace matex {
namespace {

constexpr int kSignals = 65;              // Linux's signals are 1 to 64
constexpr int kLauncher = 1, kOther = 2;  // bits

// A watched signal. The signal handler reads it, so it is never freed, and complete before NoteSender is installed.
struct Watch {
  std::atomic<const std::vector<pid_t>*> launchers;
  struct sigaction previous;  // the handler that was installed earlier
  std::atomic<int> senders;   // since the last query: kLauncher, kOther or both
};

Watch watches[kSignals];

// The signal handler: records the sender, and calls the handler that was installed earlier.
void NoteSender(int number, siginfo_t* info, void* context) {
  Watch& watch = watches[number];
  const std::vector<pid_t>& launchers = *watch.launchers;
  const bool is_from_process = info->si_code <= 0;  // else from the kernel, and there is no si_pid
  const bool is_from_launcher =
      is_from_process && std::find(launchers.begin(), launchers.end(), info->si_pid) != launchers.end();
  watch.senders |= is_from_launcher ? kLauncher : kOther;
  if (watch.previous.sa_flags & SA_SIGINFO) {
    watch.previous.sa_sigaction(number, info, context);
  } else if (watch.previous.sa_handler != SIG_DFL && watch.previous.sa_handler != SIG_IGN) {
    watch.previous.sa_handler(number);
  }
}

}  // namespace

extern "C" {

// Records from now on whether `launchers` or others send the signal `number`, and then calls the handler that is
// installed now. The recording ends when another handler is installed. A further call only replaces `launchers`.
// Returns 0, or 1 if there is no such signal.
__attribute__((visibility("default"))) int matex_watch_sender(int number, const int* launchers, int count) {
  if (number <= 0 || number >= kSignals) return 1;
  struct sigaction now;
  if (sigaction(number, nullptr, &now) != 0) return 1;
  Watch& watch = watches[number];
  watch.launchers = new std::vector<pid_t>(launchers, launchers + count);
  watch.senders = 0;
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == NoteSender) return 0;
  watch.previous = now;
  now.sa_flags |= SA_SIGINFO;
  now.sa_sigaction = NoteSender;
  return sigaction(number, &now, nullptr) == 0 ? 0 : 1;
}

// 1 if the signal has come since the last call, and each time from one of the `launchers`; else 0.
__attribute__((visibility("default"))) int matex_came_from_launchers(int number) {
  return number > 0 && number < kSignals && watches[number].senders.exchange(0) == kLauncher;
}

}  // extern "C"

}  // namespace matex
