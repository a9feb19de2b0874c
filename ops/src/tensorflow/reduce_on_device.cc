// MatexReduceOnDevice: reduced[i] = the sum over ranks of gradients[i], by an MPI that accepts addresses in device
// memory. The caller has multiplied the gradients by the weight. Input `weight` is read only for the rows of the batch,
// on which ranks must agree.
//
// For each transfer of the layout the kernel prepares a buffer in device memory. A transfer of one fragment is summed
// directly in its output. The fragments of small gradients are fused in one temporary buffer. The copies run in the
// device's stream, at a later time. So the kernel waits for the end of the copies before it calls MPI on the buffers.
// Then it copies the sums to the outputs.
//
// A rank on a CPU makes the same MPI calls, so ranks with and without a GPU can be in one run.
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

constexpr int64_t kChunkBytes = 64 << 20;  // large, because in device memory chunks that fit into a cache gain nothing

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

  // Starts a copy of `from` to `to`, which have equal sizes. No effect if both have the same memory. Returns the error
  // of the start; the copy itself may still run when the function returns.
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

// The kernel for all devices. On a CPU `Copies` is synchronous.
class ReduceOnDeviceKernel : public Collective {
 public:
  explicit ReduceOnDeviceKernel(OpKernelConstruction* construction) : Collective(construction) {
    OP_REQUIRES_OK(construction, kept_.Read(construction));
  }

 protected:
  void Run(OpKernelContext* context) override {
    Weight weight;
    OP_REQUIRES_OK(context, WeightOf("MatexReduceOnDevice", context->input(context->num_outputs()), &weight));
    std::vector<Tensor> inputs, outputs;  // flat
    for (int i = 0; i < context->num_outputs(); ++i) {
      const Tensor& x = context->input(i);
      Tensor* y = nullptr;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({i}, i, x.shape(), &y));
      inputs.push_back(Flatten(x));
      outputs.push_back(Flatten(*y));
    }
    const auto made = kept_.Of(context, [](std::vector<Entry> entries) {
      Layout layout(std::move(entries), kChunkBytes, TheWorld().fuse_bytes);
      return std::make_shared<const KeptLayout::Made>(KeptLayout::Made{std::move(layout), /*scatter=*/nullptr});
    });
    const std::vector<Transfer>& transfers = made->layout.transfers();
    const Copies copies(context);
    std::vector<Tensor> buffers(transfers.size());
    std::vector<void*> addresses;
    for (size_t i = 0; i < transfers.size(); ++i) {
      OP_REQUIRES_OK(context, MakeBuffer(context, transfers[i], outputs, &buffers[i]));
      const auto copy_in = [&](const Tensor& part, const Fragment& fragment) {
        return copies.Add(SliceOf(inputs, fragment), part);
      };
      OP_REQUIRES_OK(context, ForFragments(transfers[i], buffers[i], copy_in));
      addresses.push_back(DataOf(buffers[i]));
    }
    OP_REQUIRES_OK(context, copies.Wait());
    MATEX_RETURN_IF_ERROR(context, SumInPlace(made->layout, addresses, weight.batch, [this] { return place_; }));
    for (size_t i = 0; i < transfers.size(); ++i) {
      const auto copy_out = [&](const Tensor& part, const Fragment& fragment) {
        return copies.Add(part, SliceOf(outputs, fragment));
      };
      OP_REQUIRES_OK(context, ForFragments(transfers[i], buffers[i], copy_out));
    }
    // No `Wait`: later work of the device's stream, such as ops that take the outputs, runs after these copies.
  }

 private:
  static Tensor SliceOf(const std::vector<Tensor>& flat, const Fragment& fragment) {
    return flat[fragment.entry].Slice(fragment.offset, fragment.offset + fragment.count);
  }

  // The memory in which MPI sums a transfer: its output if it has one fragment, else a temporary tensor.
  static TfStatus MakeBuffer(OpKernelContext* context, const Transfer& transfer, const std::vector<Tensor>& outputs,
                             Tensor* buffer) {
    const Fragment& first = transfer.fragments.front();
    if (transfer.fragments.size() > 1) {
      return context->allocate_temp(outputs[first.entry].dtype(), TensorShape({transfer.count}), buffer);
    }
    *buffer = SliceOf(outputs, first);
    return TfStatus();
  }

  // Calls `copy(part, fragment)` for each fragment of a transfer; `part` of the buffer has its elements.
  template <typename Copy>
  static TfStatus ForFragments(const Transfer& transfer, const Tensor& buffer, Copy copy) {
    int64_t offset = 0;
    for (const Fragment& fragment : transfer.fragments) {
      TfStatus status = copy(buffer.Slice(offset, offset + fragment.count), fragment);
      if (!status.ok()) return status;
      offset += fragment.count;
    }
    return TfStatus();
  }

  KeptLayout kept_;  // the layout, made again only if the shapes of the gradients change
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

MATEX_REGISTER("MatexReduceOnDevice", ReduceOnDeviceKernel, HostMemory("weight"));

}  // namespace
}  // namespace matex
