// Common code of the kernels: conversion of TensorFlow's types, shapes and errors to the types of the engine, layouts
// kept between runs, and the base class of the kernels of collectives.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/types.h"
#include "engine/layout/layout.h"
#include "engine/sequence/mismatch.h"
#include "engine/update/transfer.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace matex {

// absl::Status or tsl::Status, whichever this TensorFlow has.
using TfStatus = std::decay_t<decltype(std::declval<tensorflow::OpKernelContext>().status())>;

// The element types of ops that move values or compute with them.
#define MATEX_TYPES "{float, double, half, bfloat16, int32, int64, uint8, bool}"

// The input that orders the collectives of a function. TensorFlow runs the ops that write to one resource in program
// order, also in nested functions. So each collective op has the handle of one variable as an input, as if it wrote to
// this variable. The kernels ignore the handle.
#define MATEX_ORDER Attr("order_count: int >= 0 = 0").Input("order: order_count * resource")

Type TypeOf(tensorflow::DataType type);
std::vector<int64_t> ShapeOf(const tensorflow::Tensor& tensor);
void* DataOf(const tensorflow::Tensor& tensor);

// Reads the attribute `cuts` of an op, for up to `count` entries: for each entry ranks + 1 numbers, the bounds of the
// ranks' pieces, or zeros if the entry is not divided.
TfStatus CutsOf(tensorflow::OpKernelConstruction* construction, size_t count, Cuts* cuts);

// The layout (layout.h) of a kernel that reduces gradients, kept from run to run. It depends on the shapes of the
// inputs, which are known only when the kernel runs, but hardly ever change between runs.
class KeptLayout {
 public:
  struct Made {
    Layout layout;
    std::unique_ptr<const Scatter> scatter;  // the shares of ranks (transfer.h); null if all ranks need all sums
  };
  // Reads the attribute `names` and, if the op has it, `variables`. Called once, by the kernel's constructor.
  TfStatus Read(tensorflow::OpKernelConstruction* construction);
  // The layout of the gradients, which are the first inputs, one for each output; calls `make` if shapes have changed.
  std::shared_ptr<const Made> Of(tensorflow::OpKernelContext* context,
                                 const std::function<std::shared_ptr<const Made>(std::vector<Entry>)>& make);

 private:
  // Whether `made_` fits the shapes of the inputs.
  bool HasShapesOf(tensorflow::OpKernelContext* context) const;

  std::vector<std::string> names_;
  std::vector<tensorflow::int64> variables_;
  std::mutex mutex_;
  std::shared_ptr<const Made> made_;
};

// The input `weight` of an op that reduces gradients: this rank's weight and, optionally, the number of rows of the
// global batch, which must be equal on all ranks (`Batch`, mismatch.h).
struct Weight {
  double weight = 1;
  Batch batch;
};
TfStatus WeightOf(const char* op, const tensorflow::Tensor& input, Weight* weight);

// The shape function of an op that reduces gradients: each output has the shape of its gradient. Input `weight` follows
// the gradients and has at most one dimension.
TfStatus InferReduced(tensorflow::shape_inference::InferenceContext* context);

// A tensor whose values are in `memory`, which lives as long as `owner`. Without `others_read`, an op with the last
// reference to the tensor may write its result there.
tensorflow::Tensor TensorAt(void* memory, std::shared_ptr<const void> owner, tensorflow::DataType type,
                            const tensorflow::TensorShape& shape, bool others_read = false);

// The status FailedPrecondition with the message of `error`. Not Aborted: v1's MonitoredSession takes it for a lost
// worker and creates new sessions for ever.
TfStatus StatusOf(const Error& error);

// A kernel that runs one collective in the thread that reaches it. In a v1 graph each collective has a turn
// (engine/sequence/v1_order.h), and the kernel is asynchronous, so that it waits for its turn without occupying a
// thread. Elsewhere attribute `turn` is -1 and the kernel is synchronous: after an asynchronous kernel TensorFlow
// continues in another thread, which costs more than a small collective.
class Collective : public tensorflow::AsyncOpKernel {
 public:
  explicit Collective(tensorflow::OpKernelConstruction* construction);
  void Compute(tensorflow::OpKernelContext* context) final;
  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) final;
  tensorflow::AsyncOpKernel* AsAsync() final { return turn_ < 0 ? nullptr : this; }

 protected:
  // Runs the collective; puts errors into the context.
  virtual void Run(tensorflow::OpKernelContext* context) = 0;

  std::string place_;  // the attribute `place`, for messages; "" if the op has none

 private:
  tensorflow::int64 turn_ = -1;  // -1: no turn
};

}  // namespace matex

// Registers a kernel for CPUs, and for GPUs with the tensors that `in_host_memory` names, such as HostMemory("x").
#define MATEX_REGISTER(op, kernel, in_host_memory)                      \
  REGISTER_KERNEL_BUILDER(Name(op).Device(DEVICE_CPU), kernel);         \
  REGISTER_KERNEL_BUILDER(Name(op).Device(DEVICE_GPU).in_host_memory, kernel)

#define MATEX_RETURN_IF_ERROR(context, expression) \
  do {                                             \
    if (::matex::Error error = (expression)) {     \
      (context)->CtxFailure(StatusOf(error));      \
      return;                                      \
    }                                              \
  } while (false)
