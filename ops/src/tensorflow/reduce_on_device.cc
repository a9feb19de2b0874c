// MatexReduceOnDevice: reduced[i] = the sum over ranks of gradients[i], by an MPI that accepts device addresses.
//
// Small gradients are fused in buffers in device memory. The copies run in the device's stream; MPI is called after
// they have ended. A rank on a CPU makes the same MPI calls, so ranks with and without a GPU can be in one run.
#include <cstring>
#include <future>
#include <memory>

#include "engine/sums/world.h"
#include "engine/update/inline.h"
#include "kernel.h"
#include "tensorflow/core/common_runtime/device.h"

namespace matex {
namespace {

using namespace tensorflow;

constexpr int64_t kChunkBytes = 64 << 20;  // large: in device memory, chunks that fit into a cache gain nothing

Tensor Flatten(const Tensor& tensor) {
  Tensor flat(tensor.dtype());
  (void)flat.CopyFrom(tensor, TensorShape({tensor.NumElements()}));  // cannot fail: the number of elements is equal
  return flat;
}

// Copies within the memory of the kernel's device, one after another.
class Copies {
 public:
  explicit Copies(OpKernelContext* context)
      : stream_(context->op_device_context()), device_(static_cast<Device*>(context->device())) {}

  // No effect if both tensors have the same memory.
  TfStatus Add(const Tensor& from, Tensor to) const {
    if (DataOf(from) == DataOf(to)) return TfStatus();
    if (stream_ == nullptr) {
      std::memcpy(DataOf(to), DataOf(from), from.TotalBytes());
      return TfStatus();
    }
    const auto begun = std::make_shared<std::promise<TfStatus>>();
    stream_->CopyTensorInSameDevice(&from, device_, &to, [begun](const TfStatus& status) { begun->set_value(status); });
    return begun->get_future().get();
  }

  // Returns when the copies are done, and all earlier work of the device's stream.
  TfStatus Wait() const {
    if (stream_ == nullptr) return TfStatus();
    const auto done = std::make_shared<std::promise<void>>();
    TfStatus status = stream_->ThenExecute(device_, stream_->stream(), [done] { done->set_value(); });
    if (status.ok()) done->get_future().wait();
    return status;
  }

 private:
  DeviceContext* const stream_;  // null on a CPU
  Device* const device_;
};

class ReduceOnDeviceKernel : public Collective {
 public:
  explicit ReduceOnDeviceKernel(OpKernelConstruction* construction) : Collective(construction) {
    OP_REQUIRES_OK(construction, kept_.Read(construction));
    OP_REQUIRES_OK(construction, construction->GetAttr("place", &place_));
  }

 protected:
  void Run(OpKernelContext* context) override {
    Weight weight;
    OP_REQUIRES_OK(context, WeightOf("MatexReduceOnDevice", context->input(context->num_outputs()), &weight));
    std::vector<Tensor> inputs, outputs;
    for (int i = 0; i < context->num_outputs(); ++i) {
      const Tensor& x = context->input(i);
      Tensor* y = nullptr;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({i}, i, x.shape(), &y));
      inputs.push_back(Flatten(x));
      outputs.push_back(Flatten(*y));
    }
    const auto made = kept_.Of(context, [](std::vector<Entry> entries) {
      Layout layout(std::move(entries), kChunkBytes, TheWorld().fuse_bytes);
      return std::make_shared<const KeptLayout::Made>(KeptLayout::Made{std::move(layout), nullptr});
    });
    const Copies copies(context);
    std::vector<Tensor> buffers;  // the buffer of each transfer
    std::vector<void*> addresses;
    for (const Transfer& transfer : made->layout.transfers()) {
      OP_REQUIRES_OK(context, FillBuffer(context, copies, transfer, inputs, outputs, &buffers));
      addresses.push_back(DataOf(buffers.back()));
    }
    OP_REQUIRES_OK(context, copies.Wait());
    MATEX_RETURN_IF_ERROR(context, SumInPlace(made->layout, addresses, weight.batch, [this] { return place_; }));
    for (size_t i = 0; i < buffers.size(); ++i) {
      int64_t at = 0;
      for (const Fragment& fragment : made->layout.transfers()[i].fragments) {
        OP_REQUIRES_OK(context, copies.Add(buffers[i].Slice(at, at + fragment.count), SliceOf(outputs, fragment)));
        at += fragment.count;
      }
    }
  }

 private:
  static Tensor SliceOf(const std::vector<Tensor>& flat, const Fragment& fragment) {
    return flat[fragment.entry].Slice(fragment.offset, fragment.offset + fragment.count);
  }

  // A transfer of one fragment is summed in its output, several fragments in a buffer.
  static TfStatus FillBuffer(OpKernelContext* context, const Copies& copies, const Transfer& transfer,
                                const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                                std::vector<Tensor>* buffers) {
    const Fragment& first = transfer.fragments.front();
    Tensor buffer;
    if (transfer.fragments.size() == 1) {
      buffer = SliceOf(outputs, first);
    } else {
      TfStatus status = context->allocate_temp(inputs[first.entry].dtype(), TensorShape({transfer.count}), &buffer);
      if (!status.ok()) return status;
    }
    int64_t at = 0;
    for (const Fragment& fragment : transfer.fragments) {
      TfStatus status = copies.Add(SliceOf(inputs, fragment), buffer.Slice(at, at + fragment.count));
      if (!status.ok()) return status;
      at += fragment.count;
    }
    buffers->push_back(std::move(buffer));
    return TfStatus();
  }

  KeptLayout kept_;
  std::string place_;
};

REGISTER_OP("MatexReduceOnDevice")
    .Attr("T: list({float, double}) >= 0")
    .Attr("names: list(string)")
    .Attr("place: string = ''")
    .Attr("turn: int = -1")
    .Input("gradients: T")
    .Input("weight: double")
    .Output("reduced: T")
    .SetIsStateful()
    .SetShapeFn(InferReduced);

REGISTER_KERNEL_BUILDER(Name("MatexReduceOnDevice").Device(DEVICE_CPU), ReduceOnDeviceKernel);
REGISTER_KERNEL_BUILDER(Name("MatexReduceOnDevice").Device(DEVICE_GPU).HostMemory("weight"), ReduceOnDeviceKernel);

}  // namespace
}  // namespace matex
