// The table of all residuals of this process, by variable and number of elements. A residual is what compression has
// not sent yet of the gradients of a variable. Layouts own the residuals, so the table has weak pointers to them.
#include "engine/layout/error_feedback.h"

#include <map>
#include <mutex>
#include <utility>

#include "engine/base/immortal.h"

namespace matex {
namespace {

using Key = std::pair<int64_t, int64_t>;  // the number of the variable, and of its elements

struct AllResiduals {
  std::mutex mutex;
  std::map<Key, std::weak_ptr<std::vector<float>>> residuals;

  void DropUnused() {
    for (auto found = residuals.begin(); found != residuals.end();) {
      found = found->second.expired() ? residuals.erase(found) : std::next(found);
    }
  }
};

AllResiduals& TheResiduals() { return Immortal<AllResiduals>(); }

}  // namespace

Residual ResidualOf(int64_t number, int64_t count) {
  AllResiduals& all = TheResiduals();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto& found = all.residuals[{number, count}];
  Residual residual = found.lock();
  if (residual == nullptr) {
    residual = std::make_shared<std::vector<float>>();
    found = residual;
    all.DropUnused();
  }
  return residual;
}

int64_t CountResiduals() {
  AllResiduals& all = TheResiduals();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.DropUnused();
  return static_cast<int64_t>(all.residuals.size());
}

}  // namespace matex
