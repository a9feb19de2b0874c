// Notes of the current waits of this process for other ranks. No function here blocks: a thread calls `NoteWait` before
// it waits and `NoteWaitEnd` after it, and a watchdog thread reads the longest wait through abi.cc.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "engine/layout/layout.h"

namespace matex {

// The threads that wait for other ranks: a thread in a collective of the sequence (rendezvous.h), the thread of
// overlapped updates (async_reduction.h), a thread that exchanges Python objects, and the pull thread (pulls.h).
enum class Waiter : int { kSequence = 0, kOverlapped = 1, kObjects = 2, kPulls = 3 };
constexpr int kWaiters = 4;

// From now on `waiter` waits at `place`, for the gradients of `layout` if not null. The layout lives until
// `NoteWaitEnd`, as does all that `place` refers to. For example, at "allreduce of float32 [10]" for 5 seconds.
void NoteWait(Waiter waiter, std::function<std::string()> place, const Layout* layout = nullptr);
void NoteWaitEnd(Waiter waiter);

// Notes a wait from construction to destruction.
class NotedWait {
 public:
  NotedWait(Waiter waiter, std::function<std::string()> place) : waiter_(waiter) { NoteWait(waiter, std::move(place)); }
  ~NotedWait() { NoteWaitEnd(waiter_); }
  NotedWait(const NotedWait&) = delete;

 private:
  const Waiter waiter_;
};

// Notes that this process has computed a gradient: until now it was not blocked, even if another thread waited.
void NoteGradient();

// The seconds that this process waited for ranks or sums and computed no gradient. Simultaneous waits count once.
double BlockedSeconds();

struct Waiting {
  double seconds = 0;  // so far
  std::string place;   // in the program
};

// The longest current wait; false if no thread waits.
bool LongestWait(Waiting* waiting);

}  // namespace matex
