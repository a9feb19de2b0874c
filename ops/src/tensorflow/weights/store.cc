// Variables in the memory of the store (engine/store/store.h), which asynchronous ranks train together. MatexView moves
// a variable there. The other ops update it in place:
//
//   MatexAdd      variable += sign * values, where sign is 1 or -1
//   MatexAddRows  variable[indices[i]] += sign * values[i] for each i
//   MatexMove     variable = keep * variable + more
//
// Each update is an addition to a variable. The additions of a step are numbered (attribute `part`). An addition is
// made in blocks, and the progress is recorded in the store: if this rank is lost, another rank continues.
//
// TensorFlow's own ops must not update such a variable: they may write a copy that no other rank sees.
#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>

#include "engine/store/store.h"
#include "../kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace matex {
namespace {

using namespace tensorflow;

const char kNoStore[] = "asynchronous training has no shared memory";

// The variable behind input 0.
TfStatus FindVariable(OpKernelContext* context, core::RefCountPtr<Var>* variable) {
  return LookupResource(context, HandleFromInput(context, 0), variable);
}

// MatexView: the value of the variable becomes a view of the store's memory at `offset`. With `writes`, the current
// value is first copied there; otherwise another rank has written it.
class ViewKernel : public OpKernel {
 public:
  explicit ViewKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("offset", &offset_));
    OP_REQUIRES_OK(construction, construction->GetAttr("writes", &writes_));
  }
  void Compute(OpKernelContext* context) override {
    core::RefCountPtr<Var> variable;
    OP_REQUIRES_OK(context, FindVariable(context, &variable));
    const std::shared_ptr<SharedStore> store = TheStore();
    OP_REQUIRES(context, store != nullptr, errors::FailedPrecondition(kNoStore));
    mutex_lock lock(*variable->mu());
    Tensor* const value = variable->tensor();
    const size_t bytes = value->TotalBytes();
    char* const memory = store->data() + offset_;
    const bool has_room = bytes == 0 || (store->Has(memory) && store->Has(memory + bytes - 1));
    OP_REQUIRES(context, has_room, errors::OutOfRange("a variable is larger than its place in shared memory"));
    if (writes_) std::memcpy(memory, DataOf(*value), bytes);
    // `others_read`: no op may take this memory for its result.
    *value = TensorAt(memory, store, value->dtype(), value->shape(), /*others_read=*/true);
  }

 private:
  tensorflow::int64 offset_ = 0;
  bool writes_ = false;
};

// The base of the kernels that add to the variable behind input 0.
template <typename T>
class AdditionKernel : public OpKernel {
 public:
  explicit AdditionKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("part", &part_));
    if (construction->HasAttr("sign")) OP_REQUIRES_OK(construction, construction->GetAttr("sign", &sign_));
  }

 protected:
  // Begins this op's addition, of `count` numbers or rows. Sets `to` to the variable's value in the store. An error if
  // the value is not in the store, or if this rank trains no batch.
  TfStatus Begin(OpKernelContext* context, int64_t count, core::RefCountPtr<Var>* variable, T** to,
                 SharedStore::Addition* addition) const {
    TfStatus status = FindVariable(context, variable);
    if (!status.ok()) return status;
    const Tensor& value = *(*variable)->tensor();
    *to = static_cast<T*>(DataOf(value));
    const std::shared_ptr<SharedStore> store = TheStore();
    const bool is_shared = value.dtype() == DataTypeToEnum<T>::value && store != nullptr && store->Has(*to);
    if (!is_shared) {
      return errors::FailedPrecondition(
          "'", HandleFromInput(context, 0).name(),
          "', which asynchronous ranks train together, was given a value of this rank's own. "
          "Set weights between epochs, or set MATEX_STRATEGY=allreduce.");
    }
    if (!store->BeginAddition(part_, count, addition)) {
      return errors::FailedPrecondition("addition ", part_,
                                        " of the step does not belong to a batch that this rank trains");
    }
    return TfStatus();
  }

  // The same for an addition of input `index`, which must have the variable's shape. Sets `values` to its numbers.
  TfStatus BeginWhole(OpKernelContext* context, int index, core::RefCountPtr<Var>* variable, T** to, const T** values,
                      SharedStore::Addition* addition) const {
    const Tensor& update = context->input(index);
    TfStatus status = Begin(context, update.NumElements(), variable, to, addition);
    if (!status.ok()) return status;
    const TensorShape& shape = (*variable)->tensor()->shape();
    if (update.shape() != shape) {
      return errors::InvalidArgument("a variable of shape ", shape.DebugString(), " is given an update of shape ",
                                     update.shape().DebugString());
    }
    *values = static_cast<const T*>(DataOf(update));
    return TfStatus();
  }

  int sign_ = 1;  // -1: the values are subtracted

 private:
  tensorflow::int64 part_ = 0;  // the number of this op's addition among the additions of a step
};

// Calls `work(first, last)` for the blocks of an addition that no lost rank has made, and records each block.
template <typename Work>
void MakeAddition(const SharedStore::Addition& addition, int64_t count, int64_t block, Work work) {
  for (int64_t first = addition.first; first < count; first += block) {
    const int64_t last = std::min(first + block, count);
    work(first, last);
    addition.RecordProgress(last);
  }
}

constexpr int64_t kBlock = 1024;  // the numbers that are added between two records of the progress

// Adds sign * values to `to`. If two ranks add to the same float at the same time, one addition may be lost; but
// no rank reads a half-written float. Integers are counters, so their additions are atomic.
template <typename T>
void AddTo(T* to, const T* values, int64_t count, int sign) {
  if constexpr (std::is_integral_v<T>) {
    for (int64_t i = 0; i < count; ++i) __atomic_fetch_add(to + i, sign < 0 ? -values[i] : values[i], __ATOMIC_SEQ_CST);
  } else if (sign < 0) {
    for (int64_t i = 0; i < count; ++i) to[i] -= values[i];
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] += values[i];
  }
}

template <typename T>
class AddKernel : public AdditionKernel<T> {
 public:
  using AdditionKernel<T>::AdditionKernel;
  void Compute(OpKernelContext* context) override {
    core::RefCountPtr<Var> variable;
    T* to = nullptr;
    const T* values = nullptr;
    SharedStore::Addition addition;
    OP_REQUIRES_OK(context, this->BeginWhole(context, 1, &variable, &to, &values, &addition));
    MakeAddition(addition, context->input(1).NumElements(), kBlock,
                 [&](int64_t first, int64_t last) { AddTo(to + first, values + first, last - first, this->sign_); });
  }
};

// Reads and writes in place: moves of several ranks at the same time leave a value between the old one and their
// targets. If `keep` is 0, the old value is not read, so an old NaN does not survive.
template <typename T>
class MoveKernel : public AdditionKernel<T> {
 public:
  using AdditionKernel<T>::AdditionKernel;
  void Compute(OpKernelContext* context) override {
    core::RefCountPtr<Var> variable;
    T* to = nullptr;
    const T* more = nullptr;
    SharedStore::Addition addition;
    OP_REQUIRES_OK(context, this->BeginWhole(context, 2, &variable, &to, &more, &addition));
    const T keep = context->input(1).scalar<T>()();
    MakeAddition(addition, context->input(2).NumElements(), kBlock, [&](int64_t first, int64_t last) {
      if (keep == 0) {
        for (int64_t i = first; i < last; ++i) to[i] = more[i];
      } else {
        for (int64_t i = first; i < last; ++i) to[i] = keep * to[i] + more[i];
      }
    });
  }
};

template <typename T, typename Index>
class AddRowsKernel : public AdditionKernel<T> {
 public:
  using AdditionKernel<T>::AdditionKernel;
  void Compute(OpKernelContext* context) override {
    core::RefCountPtr<Var> variable;
    T* to = nullptr;
    SharedStore::Addition addition;
    const Tensor &indices = context->input(1), &values = context->input(2);
    const int64_t count = indices.NumElements();
    OP_REQUIRES_OK(context, this->Begin(context, count, &variable, &to, &addition));
    const TensorShape& shape = variable->tensor()->shape();
    const int64_t rows = shape.dims() > 0 ? shape.dim_size(0) : 0;
    const int64_t width = rows > 0 ? shape.num_elements() / rows : 0;
    OP_REQUIRES(context, values.NumElements() == count * width,
                errors::InvalidArgument("rows of a variable of shape ", shape.DebugString(),
                                        " are given an update of shape ", values.shape().DebugString()));
    const auto* const row = static_cast<const Index*>(DataOf(indices));
    const auto* const from = static_cast<const T*>(DataOf(values));
    for (int64_t i = 0; i < count; ++i) {
      OP_REQUIRES(context, row[i] >= 0 && row[i] < rows,
                  errors::InvalidArgument("row ", row[i], " of a variable of ", rows, " rows is given an update"));
    }
    MakeAddition(addition, count, /*block=*/1, [&](int64_t i, int64_t) {
      AddTo(to + row[i] * width, from + i * width, width, this->sign_);
    });
  }
};

REGISTER_OP("MatexView")
    .Attr("offset: int")
    .Attr("writes: bool")
    .Input("variable: resource")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs);
REGISTER_KERNEL_BUILDER(Name("MatexView").Device(DEVICE_CPU), ViewKernel);

REGISTER_OP("MatexAdd")
    .Attr("T: {float, double, int32, int64}")
    .Attr("sign: int = 1")
    .Attr("part: int")
    .Input("variable: resource")
    .Input("values: T")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs);

REGISTER_OP("MatexMove")
    .Attr("T: {float, double}")
    .Attr("part: int")
    .Input("variable: resource")
    .Input("keep: T")
    .Input("more: T")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs);

REGISTER_OP("MatexAddRows")
    .Attr("T: {float, double}")
    .Attr("Index: {int32, int64}")
    .Attr("sign: int = 1")
    .Attr("part: int")
    .Input("variable: resource")
    .Input("indices: Index")
    .Input("values: T")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs);

#define MATEX_ADD(T) REGISTER_KERNEL_BUILDER(Name("MatexAdd").Device(DEVICE_CPU).TypeConstraint<T>("T"), AddKernel<T>)
MATEX_ADD(float);
MATEX_ADD(double);
MATEX_ADD(int32);
MATEX_ADD(tensorflow::int64);

#define MATEX_MOVE(T) \
  REGISTER_KERNEL_BUILDER(Name("MatexMove").Device(DEVICE_CPU).TypeConstraint<T>("T"), MoveKernel<T>)
MATEX_MOVE(float);
MATEX_MOVE(double);

#define MATEX_ADD_ROWS(T, Index)                                                                          \
  REGISTER_KERNEL_BUILDER(                                                                                \
      Name("MatexAddRows").Device(DEVICE_CPU).TypeConstraint<T>("T").TypeConstraint<Index>("Index"), \
      AddRowsKernel<T, Index>)
MATEX_ADD_ROWS(float, int32);
MATEX_ADD_ROWS(float, tensorflow::int64);
MATEX_ADD_ROWS(double, int32);
MATEX_ADD_ROWS(double, tensorflow::int64);

}  // namespace
}  // namespace matex
