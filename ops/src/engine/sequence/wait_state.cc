// Keeps, for each kind of waiting thread, the wait in which it is now (wait_state.h). The watchdog's message describes
// the longest one. Also adds up the time in which waits block the step. One mutex guards everything.
#include "engine/sequence/wait_state.h"

#include <chrono>
#include <mutex>

#include "engine/base/immortal.h"

namespace matex {
namespace {

using Clock = std::chrono::steady_clock;

struct Waiters {
  struct OneWait {
    std::function<std::string()> place;  // makes the text for a message; null: it does not wait now
    const Layout* layout = nullptr;
    Clock::time_point since;
  };
  std::mutex mutex;
  OneWait all[kWaiters];
  Clock::time_point blocked_since;  // while MayBlock: the begin of the wait, or the last gradient computed during it
  Clock::duration blocked{0};       // in all waits that have ended

  // Whether a thread is in a wait that can block the step. It does not block while the step computes further gradients
  // (NoteGradient). kObjects never blocks, because exchanges of objects happen between steps. kPulls never blocks,
  // because a step continues while new weights travel.
  bool MayBlock() const {
    return all[static_cast<int>(Waiter::kSequence)].place != nullptr ||
           all[static_cast<int>(Waiter::kOverlapped)].place != nullptr;
  }
};

Waiters& TheWaiters() { return Immortal<Waiters>(); }

}  // namespace

void NoteWait(Waiter waiter, std::function<std::string()> place, const Layout* layout) {
  Waiters& waiters = TheWaiters();
  std::lock_guard<std::mutex> lock(waiters.mutex);
  const Clock::time_point now = Clock::now();
  if (!waiters.MayBlock()) waiters.blocked_since = now;
  waiters.all[static_cast<int>(waiter)] = {std::move(place), layout, now};
}

void NoteWaitEnd(Waiter waiter) {
  Waiters& waiters = TheWaiters();
  std::lock_guard<std::mutex> lock(waiters.mutex);
  const bool could_block = waiters.MayBlock();
  waiters.all[static_cast<int>(waiter)].place = nullptr;
  if (could_block && !waiters.MayBlock()) waiters.blocked += Clock::now() - waiters.blocked_since;
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
  for (const Waiters::OneWait& one : waiters.all) {
    if (one.place == nullptr) continue;
    const double seconds = std::chrono::duration<double>(now - one.since).count();
    if (found && seconds <= waiting->seconds) continue;
    found = true;
    *waiting = {seconds, one.place()};
    if (one.layout != nullptr) waiting->place += ", with the gradients of " + NameOf(one.layout->entries());
  }
  return found;
}

}  // namespace matex
