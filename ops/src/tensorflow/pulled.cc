#include "pulled.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace matex {
namespace {

using tensorflow::Var;

// Who waits for each variable that is on its way.
struct Awaited {
  std::mutex mutex;
  std::map<const Var*, std::vector<std::function<void(const Error&)>>> by_variable;
};

Awaited& TheAwaited() {
  static Awaited* const awaited = new Awaited;
  return *awaited;
}

}  // namespace

Pulled::Pulled(std::vector<tensorflow::core::RefCountPtr<Var>> variables) : variables_(std::move(variables)) {}

void Pulled::Lock() {
  std::vector<Var*> variables;
  for (const auto& variable : variables_) variables.push_back(variable.get());
  // In the order of TensorFlow's own ops that take several variables.
  std::sort(variables.begin(), variables.end(), [](Var* one, Var* other) { return one->mu() < other->mu(); });
  for (Var* const variable : variables) variable->mu()->lock();
  std::lock_guard<std::mutex> lock(TheAwaited().mutex);
  for (Var* const variable : variables) TheAwaited().by_variable.emplace(variable, std::vector<std::function<void(const Error&)>>());
}

void Pulled::Came(int i, const Error& error) {
  variables_[i]->mu()->unlock();
  std::vector<std::function<void(const Error&)>> waiting;
  {
    std::lock_guard<std::mutex> lock(TheAwaited().mutex);
    const auto found = TheAwaited().by_variable.find(variables_[i].get());
    waiting.swap(found->second);
    TheAwaited().by_variable.erase(found);
  }
  for (const auto& done : waiting) done(error);
}

void AwaitPull(const Var* variable, std::function<void(const Error&)> done) {
  {
    std::lock_guard<std::mutex> lock(TheAwaited().mutex);
    const auto found = TheAwaited().by_variable.find(variable);
    if (found != TheAwaited().by_variable.end()) {
      found->second.push_back(std::move(done));
      return;
    }
  }
  done(Error());
}

}  // namespace matex
