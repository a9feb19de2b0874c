#include "waits.h"

#include <chrono>
#include <mutex>

namespace matex {
namespace {

struct Waits {
  struct One {
    const std::function<std::string()>* what = nullptr;
    const Layout* layout = nullptr;
    int64_t number = 0;
    std::chrono::steady_clock::time_point since;
  };
  std::mutex mutex;
  One all[2];
};

Waits& TheWaits() {
  static Waits* const waits = new Waits;
  return *waits;
}

}  // namespace

void Wait(Waiter waiter, int64_t number, const std::function<std::string()>* what, const Layout* layout) {
  Waits& waits = TheWaits();
  std::lock_guard<std::mutex> lock(waits.mutex);
  waits.all[static_cast<int>(waiter)] = {what, layout, number, std::chrono::steady_clock::now()};
}

void GoOn(Waiter waiter) {
  Waits& waits = TheWaits();
  std::lock_guard<std::mutex> lock(waits.mutex);
  waits.all[static_cast<int>(waiter)].what = nullptr;
}

bool LongestWait(Waiting* waiting) {
  Waits& waits = TheWaits();
  std::lock_guard<std::mutex> lock(waits.mutex);
  const auto now = std::chrono::steady_clock::now();
  bool found = false;
  for (const Waits::One& one : waits.all) {
    if (one.what == nullptr) continue;
    const double seconds = std::chrono::duration<double>(now - one.since).count();
    if (found && seconds <= waiting->seconds) continue;
    found = true;
    *waiting = {seconds, one.number, (*one.what)()};
    if (one.layout != nullptr) {
      const std::vector<Entry>& entries = one.layout->entries();
      waiting->what += ", with the gradients of " + NameOf(entries, 0, entries.size());
    }
  }
  return found;
}

}  // namespace matex
