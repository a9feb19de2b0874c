// The noted waits of this process for other ranks (wait_state.h), at most one of each waiter, under one mutex. Messages
// describe the longest current wait. The time in waits that block the step is added up.
#include "engine/sequence/wait_state.h"

#include <chrono>
#include <mutex>

namespace matex {
namespace {

using Clock = std::chrono::steady_clock;

struct Waiters {
  struct OneWait {
    const std::function<std::string()>* place = nullptr;  // null: this waiter does not wait
    const Layout* layout = nullptr;
    Clock::time_point since;
  };
  std::mutex mutex;
  OneWait all[kWaiters];
  Clock::time_point blocked_since;  // if IsBlocked: the begin of the wait, or the last gradient computed during it
  Clock::duration blocked{0};       // in all waits that have ended

  // Whether a current wait blocks the step. kObjects does not, because exchanges of objects happen between steps.
  // kPulls does not, because a step continues while new weights travel.
  bool IsBlocked() const {
    return all[static_cast<int>(Waiter::kSequence)].place != nullptr ||
           all[static_cast<int>(Waiter::kOverlapped)].place != nullptr;
  }
};

Waiters& TheWaiters() {
  static Waiters* const waiters = new Waiters;
  return *waiters;
}

}  // namespace

void NoteWait(Waiter waiter, const std::function<std::string()>* place, const Layout* layout) {
  Waiters& waiters = TheWaiters();
  std::lock_guard<std::mutex> lock(waiters.mutex);
  const Clock::time_point now = Clock::now();
  if (!waiters.IsBlocked()) waiters.blocked_since = now;
  waiters.all[static_cast<int>(waiter)] = {place, layout, now};
}

void NoteWaitEnd(Waiter waiter) {
  Waiters& waiters = TheWaiters();
  std::lock_guard<std::mutex> lock(waiters.mutex);
  const bool was_blocked = waiters.IsBlocked();
  waiters.all[static_cast<int>(waiter)].place = nullptr;
  if (was_blocked && !waiters.IsBlocked()) waiters.blocked += Clock::now() - waiters.blocked_since;
}

// A gradient shows that the step was not blocked until now, so the time before it does not count.
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
  for (const Waiters::OneWait& one : waiters.all) {
    if (one.place == nullptr) continue;
    const double seconds = std::chrono::duration<double>(now - one.since).count();
    if (found && seconds <= waiting->seconds) continue;
    found = true;
    *waiting = {seconds, (*one.place)()};
    if (one.layout != nullptr) {
      const std::vector<Entry>& entries = one.layout->entries();
      waiting->place += ", with the gradients of " + NameOf(entries, 0, entries.size());
    }
  }
  return found;
}

}  // namespace matex
