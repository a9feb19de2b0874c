// What all kernels share: the engine's types and errors in TensorFlow's terms, and a base class that takes turns.
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

// The types of an op that moves values, and of one that computes with them.
#define MATEX_TYPES "{float, double, half, bfloat16, int32, int64, uint8, bool}"

// Of the ops of a function TensorFlow orders those that write to one resource, through nested functions too. So in a
// function each of ours takes the handle of the same variable, as if it wrote to it; the kernels do not look at it.
#define MATEX_ORDER Attr("order_count: int >= 0 = 0").Input("order: order_count * resource")

Type TypeOf(tensorflow::DataType type);
std::vector<int64_t> ShapeOf(const tensorflow::Tensor& tensor);
void* DataOf(const tensorflow::Tensor& tensor);

// The attribute `cuts` of an op, of up to `count` entries: for each where the ranks' parts begin and end, or zeros where it
// is in no parts.
TfStatus CutsOf(tensorflow::OpKernelConstruction* construction, size_t count, Cuts* cuts);

// What a kernel has made for gradients of these shapes, kept from run to run: they are known when it runs, and as good as
// always those of the last time.
class KeptLayout {
 public:
  struct Made {
    Layout layout;
    std::unique_ptr<const Scatter> scatter;  // where ranks need parts of what is reduced
  };
  // Reads the attributes `names` and, where the op has it, `variables`.
  TfStatus Read(tensorflow::OpKernelConstruction* construction);
  // Of the first inputs, as many as there are outputs.
  std::shared_ptr<const Made> Of(tensorflow::OpKernelContext* context,
                                 const std::function<std::shared_ptr<const Made>(std::vector<Entry>)>& make);

 private:
  bool IsOf(tensorflow::OpKernelContext* context) const;

  std::vector<std::string> names_;
  std::vector<tensorflow::int64> variables_;
  std::mutex mutex_;
  std::shared_ptr<const Made> made_;
};

// The input `weight` of an op that reduces gradients: this rank's weight and, where it says so, the rows of the `Batch`.
struct Weight {
  double weight = 1;
  Batch batch;
};
TfStatus WeightOf(const char* op, const tensorflow::Tensor& given, Weight* weight);

// The shapes of what such an op gives: those of the gradients, which come before `weight`.
TfStatus InferReduced(tensorflow::shape_inference::InferenceContext* context);

// A tensor whose values lie in `memory`, which is there while `owner` is. The op that holds the last reference to it may
// write its result there, unless others read what lies there, too.
tensorflow::Tensor TensorAt(void* memory, std::shared_ptr<const void> owner, tensorflow::DataType type,
                            const tensorflow::TensorShape& shape, bool others_read = false);

// Not Aborted: v1's MonitoredSession takes that for a lost worker, makes a new session and tries for ever.
TfStatus StatusOf(const Error& error);

// A kernel that does one collective in the thread that reaches it. In a v1 graph, where attribute `turn` is not -1, it
// is asynchronous, so that it can wait for its turn without holding a thread (engine/sequence/v1_order.h). Elsewhere it is not:
// what follows an asynchronous kernel is handed to another thread, which costs more than a small collective.
class Collective : public tensorflow::AsyncOpKernel {
 public:
  explicit Collective(tensorflow::OpKernelConstruction* construction);
  void Compute(tensorflow::OpKernelContext* context) final;
  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) final;
  tensorflow::AsyncOpKernel* AsAsync() final { return turn_ < 0 ? nullptr : this; }

 protected:
  // Does the collective, or puts what went wrong into the context.
  virtual void Run(tensorflow::OpKernelContext* context) = 0;

 private:
  tensorflow::int64 turn_ = -1;
};

}  // namespace matex

#define MATEX_RETURN_IF_ERROR(context, expression) \
  do {                                             \
    if (::matex::Error error = (expression)) {     \
      (context)->CtxFailure(StatusOf(error));      \
      return;                                      \
    }                                              \
  } while (false)
