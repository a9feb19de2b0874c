// Where this process waits for other ranks now, for whoever watches it from another thread.
#pragma once

#include <functional>
#include <string>

#include "engine/layout/layout.h"

namespace matex {

// The threads that wait for other ranks: the one that is in the sequence of collectives, that of sums, that of new
// weights, and the one that exchanges objects of Python.
enum class Waiter : int { kSequence = 0, kOverlapped = 1, kObjects = 2, kPulls = 3 };
constexpr int kWaiters = 4;

// `waiter` is from now on at the place that `what` tells, with the gradients of `layout`, if it is of gradients. Both must
// live until `GoOn`.
void Wait(Waiter waiter, const std::function<std::string()>* what, const Layout* layout = nullptr);
void GoOn(Waiter waiter);

// The same for as long as it lives.
class Waits {
 public:
  Waits(Waiter waiter, const std::function<std::string()>* what) : waiter_(waiter) { Wait(waiter, what); }
  ~Waits() { GoOn(waiter_); }
  Waits(const Waits&) = delete;

 private:
  const Waiter waiter_;
};

struct Waiting {
  double seconds = 0;
  std::string what;
};

// A gradient of this process came: until now it has computed, whoever waited meanwhile.
void NoteGradient();

// How long this process waited for other ranks and for sums, in the sequence or the overlapped way, while nothing else of
// a step was seen to go on. Where both ways wait, the time counts once.
double BlockedSeconds();

// The longest wait of now; false if nobody waits.
bool LongestWait(Waiting* waiting);

}  // namespace matex
