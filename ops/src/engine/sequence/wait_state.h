// The current waits of this process for other ranks. Each thread that waits calls `Wait` and `GoOn`; a watchdog
// thread reads the longest wait through abi.cc.
#pragma once

#include <functional>
#include <string>

#include "engine/layout/layout.h"

namespace matex {

// The threads that wait for other ranks: a thread in the sequence of collectives, the overlapped thread, a thread
// that exchanges Python objects, and the pull thread.
enum class Waiter : int { kSequence = 0, kOverlapped = 1, kObjects = 2, kPulls = 3 };
constexpr int kWaiters = 4;

// From now on `waiter` waits at `place`, for the gradients of `layout` if it is not null. Both live until `GoOn`.
void Wait(Waiter waiter, const std::function<std::string()>* place, const Layout* layout = nullptr);
void GoOn(Waiter waiter);  // ends the wait

// A wait from construction to destruction.
class Waits {
 public:
  Waits(Waiter waiter, const std::function<std::string()>* place) : waiter_(waiter) { Wait(waiter, place); }
  ~Waits() { GoOn(waiter_); }
  Waits(const Waits&) = delete;

 private:
  const Waiter waiter_;
};

struct Waiting {
  double seconds = 0;
  std::string place;
};

// Records that this process has computed a gradient: until now it was not blocked, even if another thread waited.
void NoteGradient();

// The seconds that this process waited for ranks or sums and computed no gradient. Simultaneous waits count once.
double BlockedSeconds();

// The longest current wait; false if no thread waits.
bool LongestWait(Waiting* waiting);

}  // namespace matex
