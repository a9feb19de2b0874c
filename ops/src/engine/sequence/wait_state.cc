#include "engine/sequence/wait_state.h"

#include <chrono>
#include <mutex>

namespace matex {
namespace {

struct Waiters {
  struct One {
    const std::function<std::string()>* what = nullptr;
    const Layout* layout = nullptr;
    std::chrono::steady_clock::time_point since;
  };
  std::mutex mutex;
  One all[kWaiters];
};

Waiters& TheWaiters() {
  static Waiters* const waiters = new Waiters;
  return *waiters;
}

}  // namespace

void Wait(Waiter waiter, const std::function<std::string()>* what, const Layout* layout) {
  Waiters& waiters = TheWaiters();
  std::lock_guard<std::mutex> lock(waiters.mutex);
  waiters.all[static_cast<int>(waiter)] = {what, layout, std::chrono::steady_clock::now()};
}

void GoOn(Waiter waiter) {
  Waiters& waiters = TheWaiters();
  std::lock_guard<std::mutex> lock(waiters.mutex);
  waiters.all[static_cast<int>(waiter)].what = nullptr;
}

bool LongestWait(Waiting* waiting) {
  Waiters& waiters = TheWaiters();
  std::lock_guard<std::mutex> lock(waiters.mutex);
  const auto now = std::chrono::steady_clock::now();
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
