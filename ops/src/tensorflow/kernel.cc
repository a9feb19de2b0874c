// Common code of the kernels (kernel.h): conversions, kept layouts, and the base class of collectives.
#include "kernel.h"

#include <memory>
#include <utility>

#include "engine/sequence/v1_order.h"
#include "engine/sums/world.h"
#include "tensorflow/core/framework/cancellation.h"

namespace matex {

using namespace tensorflow;

namespace {

// Memory of `owner` as the buffer of a tensor. If `others_read`, TensorFlow must not reuse the memory for the output of
// an op, because other ranks read it; so the buffer says that it does not own the memory.
class OwnedBuffer : public TensorBuffer {
 public:
  OwnedBuffer(void* memory, std::shared_ptr<const void> owner, size_t bytes, bool others_read)
      : TensorBuffer(memory), owner_(std::move(owner)), bytes_(bytes), others_read_(others_read) {}
  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(AllocationDescription* description) const override {
    description->set_requested_bytes(static_cast<int64_t>(bytes_));
    description->set_allocator_name("matex");
  }
  bool OwnsMemory() const override { return !others_read_; }

 private:
  const std::shared_ptr<const void> owner_;
  const size_t bytes_;
  const bool others_read_;
};

}  // namespace

Type TypeOf(DataType type) {
  switch (type) {
    case DT_DOUBLE:
      return Type::kFloat64;
    case DT_HALF:
      return Type::kFloat16;
    case DT_BFLOAT16:
      return Type::kBfloat16;
    case DT_INT32:
      return Type::kInt32;
    case DT_INT64:
      return Type::kInt64;
    case DT_UINT8:
      return Type::kUint8;
    case DT_BOOL:
      return Type::kBool;
    default:
      return Type::kFloat32;  // the ops' type constraints allow no other type
  }
}

std::vector<int64_t> ShapeOf(const Tensor& tensor) {
  std::vector<int64_t> shape(tensor.dims());
  for (int i = 0; i < tensor.dims(); ++i) shape[i] = tensor.dim_size(i);
  return shape;
}

void* DataOf(const Tensor& tensor) { return const_cast<char*>(tensor.tensor_data().data()); }

TfStatus CutsOf(OpKernelConstruction* construction, size_t count, Cuts* cuts) {
  std::vector<tensorflow::int64> numbers;
  TfStatus status = construction->GetAttr("cuts", &numbers);
  if (!status.ok()) return status;
  const size_t cuts_per_entry = TheWorld().size + 1;
  if (numbers.size() % cuts_per_entry != 0 || numbers.size() / cuts_per_entry > count) {
    return errors::InvalidArgument(construction->def().op(), ": expected ", cuts_per_entry, " cuts for each of ", count,
                                   " entries, not ", numbers.size());
  }
  for (size_t i = 0; i < numbers.size(); i += cuts_per_entry) {
    const auto first = numbers.begin() + i, end = first + cuts_per_entry;
    const bool is_divided = end[-1] != 0;  // the last cut is the number of elements
    cuts->emplace_back(first, is_divided ? end : first);
  }
  return TfStatus();
}

TfStatus KeptLayout::Read(OpKernelConstruction* construction) {
  TfStatus status = construction->GetAttr("names", &names_);
  if (status.ok() && construction->HasAttr("variables")) status = construction->GetAttr("variables", &variables_);
  if (!status.ok()) return status;
  variables_.resize(names_.size());
  if (static_cast<int>(names_.size()) == construction->num_outputs()) return TfStatus();
  return errors::InvalidArgument(construction->def().op(), ": expected one name for each gradient, ",
                                 construction->num_outputs(), " of them, not ", names_.size());
}

std::shared_ptr<const KeptLayout::Made> KeptLayout::Of(
    OpKernelContext* context, const std::function<std::shared_ptr<const Made>(std::vector<Entry>)>& make) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (made_ != nullptr && HasShapesOf(context)) return made_;
  std::vector<Entry> entries;
  for (int i = 0; i < context->num_outputs(); ++i) {
    const Tensor& x = context->input(i);
    entries.push_back({names_[i], TypeOf(x.dtype()), ShapeOf(x), variables_[i]});
  }
  return made_ = make(std::move(entries));
}

bool KeptLayout::HasShapesOf(OpKernelContext* context) const {
  for (int i = 0; i < context->num_outputs(); ++i) {
    if (ShapeOf(context->input(i)) != made_->layout.entries()[i].shape) return false;
  }
  return true;
}

TfStatus WeightOf(const char* op, const Tensor& input, Weight* weight) {
  const int64_t count = input.NumElements();
  if (input.dims() > 1 || count < 1 || count > 2) {
    return errors::InvalidArgument(op, ": expected a scalar weight, or weight and rows, not shape ",
                                   input.shape().DebugString());
  }
  const double* const numbers = static_cast<const double*>(DataOf(input));
  weight->weight = numbers[0];
  weight->batch = count > 1 ? static_cast<int64_t>(numbers[1]) : 0;
  return TfStatus();
}

TfStatus InferReduced(shape_inference::InferenceContext* context) {
  for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
  shape_inference::ShapeHandle weight;
  return context->WithRankAtMost(context->input(context->num_outputs()), 1, &weight);
}

Tensor TensorAt(void* memory, std::shared_ptr<const void> owner, DataType type, const TensorShape& shape,
                bool others_read) {
  const size_t bytes = shape.num_elements() * DataTypeSize(type);
  const core::RefCountPtr<TensorBuffer> buffer(new OwnedBuffer(memory, std::move(owner), bytes, others_read));
  return Tensor(type, shape, buffer.get());
}

TfStatus StatusOf(const Error& error) { return errors::FailedPrecondition(RankAndHost(), ": ", error.message); }

Collective::Collective(OpKernelConstruction* construction) : AsyncOpKernel(construction) {
  OP_REQUIRES_OK(construction, construction->GetAttr("turn", &turn_));
  if (construction->HasAttr("place")) OP_REQUIRES_OK(construction, construction->GetAttr("place", &place_));
}

void Collective::Compute(OpKernelContext* context) {
  if (turn_ < 0) return Run(context);  // not in a v1 graph: it runs at once, in this thread
  AsyncOpKernel::Compute(context);
}

void Collective::ComputeAsync(OpKernelContext* context, DoneCallback done) {
  CancellationManager* const cancellation = context->cancellation_manager();
  const CancellationToken token =
      cancellation == nullptr ? CancellationManager::kInvalidToken : cancellation->get_cancellation_token();
  const auto finish = [cancellation, token, done] {
    if (cancellation != nullptr) cancellation->TryDeregisterCallback(token);
    done();
  };
  // The Turnstile (v1_order.h) runs the job when its turn has come, or drops it.
  Job job;
  job.run = [this, context] { Run(context); };
  job.done = finish;
  job.drop = [context, finish](const Error& error) {
    context->SetStatus(errors::Cancelled(error.message));
    finish();
  };
  // The id is reserved, and the cancellation registered, before `Enter`. As soon as the job has entered, another thread
  // may end it, and the whole run with it, so `context` may no longer be used.
  const int64_t id = TheTurnstile().Reserve();
  const auto cancel = [id] {
    TheTurnstile().Cancel(id, Error("the run was cancelled while a collective waited for its turn."));
  };
  if (cancellation != nullptr && !cancellation->RegisterCallback(token, cancel)) cancel();
  TheTurnstile().Enter(id, turn_, std::move(job));
}

}  // namespace matex
