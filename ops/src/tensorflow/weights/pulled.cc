// Locks and unlocks the mutexes of variables.
#include "pulled.h"

#include "tensorflow/core/framework/tensor_util.h"

#include <algorithm>
#include <utility>

namespace matex {

using tensorflow::Var;

Pulled::Pulled(std::vector<tensorflow::core::RefCountPtr<Var>> variables) : variables_(std::move(variables)) {}

std::vector<void*> Pulled::Lock() {
  std::vector<Var*> variables;
  for (const auto& variable : variables_) variables.push_back(variable.get());
  // In the order of TensorFlow's own ops that lock several variables, so that no deadlock is possible.
  std::sort(variables.begin(), variables.end(), [](Var* one, Var* other) { return one->mu() < other->mu(); });
  for (Var* const variable : variables) variable->mu()->lock();
  std::vector<void*> values;
  for (const auto& variable : variables_) {
    // A thread of the script may have read or assigned it since it was published: then another tensor has this memory.
    tensorflow::Tensor* const value = variable->tensor();
    if (!value->RefCountIsOne()) *value = tensorflow::tensor::DeepCopy(*value);
    values.push_back(const_cast<char*>(value->tensor_data().data()));
  }
  return values;
}

void Pulled::Unlock(int i) { variables_[i]->mu()->unlock(); }

}  // namespace matex
