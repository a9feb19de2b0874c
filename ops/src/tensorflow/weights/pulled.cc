#include "pulled.h"

#include "tensorflow/core/framework/tensor_util.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace matex {
namespace {

using tensorflow::Var;

using Done = std::function<void(const Error&)>;

// Who waits for each variable that is on its way; and why no variable is whole any more.
struct Awaited {
  std::mutex mutex;
  std::map<const Var*, std::vector<Done>> by_variable;
  Error failed;
};

Awaited& TheAwaited() {
  static Awaited* const awaited = new Awaited;
  return *awaited;
}

}  // namespace

Pulled::Pulled(std::vector<tensorflow::core::RefCountPtr<Var>> variables) : variables_(std::move(variables)) {}

std::vector<void*> Pulled::Lock() {
  std::vector<Var*> variables;
  for (const auto& variable : variables_) variables.push_back(variable.get());
  // In the order of TensorFlow's own ops that take several variables.
  std::sort(variables.begin(), variables.end(), [](Var* one, Var* other) { return one->mu() < other->mu(); });
  for (Var* const variable : variables) variable->mu()->lock();
  std::lock_guard<std::mutex> lock(TheAwaited().mutex);
  std::vector<void*> values;
  for (const auto& variable : variables_) {
    TheAwaited().by_variable.emplace(variable.get(), std::vector<Done>());
    // A thread of the script may have read or set it since it was published.
    tensorflow::Tensor* const value = variable->tensor();
    if (!value->RefCountIsOne()) *value = tensorflow::tensor::DeepCopy(*value);
    values.push_back(const_cast<char*>(value->tensor_data().data()));
  }
  return values;
}

void Pulled::Came(int i, const Error& error) {
  variables_[i]->mu()->unlock();
  std::vector<Done> waiting;
  {
    std::lock_guard<std::mutex> lock(TheAwaited().mutex);
    if (error) TheAwaited().failed = error;
    const auto found = TheAwaited().by_variable.find(variables_[i].get());
    waiting.swap(found->second);
    TheAwaited().by_variable.erase(found);
  }
  for (const auto& done : waiting) done(error);
}

void AwaitPull(const Var* variable, Done done) {
  Error failed;
  {
    std::lock_guard<std::mutex> lock(TheAwaited().mutex);
    const auto found = TheAwaited().by_variable.find(variable);
    if (found != TheAwaited().by_variable.end()) {
      found->second.push_back(std::move(done));
      return;
    }
    failed = TheAwaited().failed;
  }
  done(failed);
}

}  // namespace matex
