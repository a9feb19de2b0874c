// Where this process waits for other ranks now, for whoever watches it from another thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "layout.h"

namespace matex {

// The threads that wait for other ranks: the one that is in the sequence of collectives, and that of the overlapped way.
enum class Waiter : int { kSequence = 0, kOverlapped = 1 };

// `waiter` is from now on at collective `number`, at the place that `what` tells, with the gradients of `layout`, if it is
// of gradients. Both must live until `GoOn`.
void Wait(Waiter waiter, int64_t number, const std::function<std::string()>* what, const Layout* layout = nullptr);
void GoOn(Waiter waiter);

struct Waiting {
  double seconds = 0;
  int64_t number = 0;
  std::string what;
};

// The longest wait of now; false if nobody waits.
bool LongestWait(Waiting* waiting);

}  // namespace matex
