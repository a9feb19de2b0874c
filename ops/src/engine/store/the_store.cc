// The one store of this process, and which batch its pipeline is to give.
#include <atomic>
#include <memory>
#include <mutex>

#include "engine/store/store.h"

namespace matex {
namespace {

std::shared_ptr<SharedStore>& KeptStore() {
  static auto* const store = new std::shared_ptr<SharedStore>;
  return *store;
}

std::mutex& StoreMutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

}  // namespace

std::shared_ptr<SharedStore> TheStore() {
  std::lock_guard<std::mutex> lock(StoreMutex());
  return KeptStore();
}

void SetTheStore(std::shared_ptr<SharedStore> store) {
  std::lock_guard<std::mutex> lock(StoreMutex());
  KeptStore().swap(store);
}

std::atomic<int64_t>& WantedPlace() {
  static std::atomic<int64_t> place{-1};
  return place;
}

}  // namespace matex
