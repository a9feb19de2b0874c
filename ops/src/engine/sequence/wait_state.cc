// The waits of this process, one for each waiter, under one mutex.
#include "engine/sequence/wait_state.h"

#include <chrono>
#include <mutex>

namespace matex {
namespace {

using Clock = std::chrono::steady_clock;

struct Waiters {
  struct One {
    const std::function<std::string()>* what = nullptr;
    const Layout* layout = nullptr;
    Clock::time_point since;
  };
  std::mutex mutex;
  One all[kWaiters];
  Clock::time_point blocked_since;
  Clock::duration blocked{0};

  // Exchanges of objects happen between steps, and a step continues while new weights travel: neither blocks a step.
  bool IsBlocked() const {
    return all[static_cast<int>(Waiter::kSequence)].what != nullptr ||
           all[static_cast<int>(Waiter::kOverlapped)].what != nullptr;
  }
};

Waiters& TheWaiters() {
  static Waiters* const waiters = new Waiters;
  return *waiters;
}

}  // namespace

void Wait(Waiter waiter, const std::function<std::string()>* what, const Layout* layout) {
  Waiters& waiters = TheWaiters();
  std::lock_guard<std::mutex> lock(waiters.mutex);
  const Clock::time_point now = Clock::now();
  if (!waiters.IsBlocked()) waiters.blocked_since = now;
  waiters.all[static_cast<int>(waiter)] = {what, layout, now};
}

void GoOn(Waiter waiter) {
  Waiters& waiters = TheWaiters();
  std::lock_guard<std::mutex> lock(waiters.mutex);
  const bool was_blocked = waiters.IsBlocked();
  waiters.all[static_cast<int>(waiter)].what = nullptr;
  if (was_blocked && !waiters.IsBlocked()) waiters.blocked += Clock::now() - waiters.blocked_since;
}

void NoteGradient() {
  Waiters& waiters = TheWaiters();
  std::lock_guard<std::mutex> lock(waiters.mutex);
  waiters.blocked_since = Clock::now();
}

double BlockedSeconds() {
  Waiters& waiters = TheWaiters();
  std::lock_guard<std::mutex> lock(waiters.mutex);
  return std::chrono::duration<double>(waiters.blocked).count();
}

bool LongestWait(Waiting* waiting) {
  Waiters& waiters = TheWaiters();
  std::lock_guard<std::mutex> lock(waiters.mutex);
  const auto now = Clock::now();
  bool found = false;
  for (const Waiters::One& one : waiters.all) {
    if (one.what == nullptr) continue;
    const double seconds = std::chrono::duration<double>(now - one.since).count();
    if (found && seconds <= waiting->seconds) continue;
    found = true;
    *waiting = {seconds, (*one.what)()};
    if (one.layout != nullptr) {
      const std::vector<Entry>& entries = one.layout->entries();
      waiting->what += ", with the gradients of " + NameOf(entries, 0, entries.size());
    }
  }
  return found;
}

}  // namespace matex
