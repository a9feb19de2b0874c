// The current store of this process. Python sets it through abi.cc; kernels keep it alive by their shared pointer.
#include <memory>
#include <mutex>

#include "engine/store/store.h"

namespace matex {
namespace {

std::shared_ptr<SharedStore>& StorePointer() {
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
  return StorePointer();
}

void SetTheStore(std::shared_ptr<SharedStore> store) {
  std::lock_guard<std::mutex> lock(StoreMutex());
  StorePointer().swap(store);
}

}  // namespace matex
