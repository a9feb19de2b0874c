// MatexAllgather: y = the rows x of all ranks, in rank order; rows = the number of rows of each rank. A scalar is one
// row. The input MATEX_ORDER or, in a v1 graph, the attribute `turn` keeps collectives in order (kernel.h).
#include <algorithm>

#include "engine/collectives.h"
#include "kernel.h"

namespace matex {
namespace {

using namespace tensorflow;

class AllgatherKernel : public Collective {
 public:
  using Collective::Collective;

 protected:
  void Run(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    // Allgather calls it when it knows the numbers of rows of all ranks, and writes the rows to the address that it
    // returns; null: there is no memory.
    const auto allocate = [&](const std::vector<int64_t>& rows) -> void* {
      Tensor* counts = nullptr;
      TfStatus status = context->allocate_output(1, TensorShape({static_cast<int64_t>(rows.size())}), &counts);
      if (!status.ok()) return nullptr;
      std::copy(rows.begin(), rows.end(), static_cast<int64_t*>(DataOf(*counts)));
      TensorShape shape = x.shape();
      int64_t all = 0;
      for (int64_t count : rows) all += count;
      if (shape.dims() == 0) {
        shape.AddDim(all);
      } else {
        shape.set_dim(0, all);
      }
      Tensor* y = nullptr;
      status = context->allocate_output(0, shape, &y);
      // An empty tensor may have the address null, which stands for a failed allocation.
      static char nothing;
      if (!status.ok()) return nullptr;
      return y->NumElements() == 0 ? &nothing : DataOf(*y);
    };
    const Entry tensor{place_, TypeOf(x.dtype()), ShapeOf(x)};
    MATEX_RETURN_IF_ERROR(context, Allgather(tensor, DataOf(x), allocate));
  }
};

REGISTER_OP("MatexAllgather")
    .Attr("T: " MATEX_TYPES)
    .Attr("place: string = ''")
    .Attr("turn: int = -1")
    .Input("x: T")
    .MATEX_ORDER
    .Output("y: T")
    .Output("rows: int64")
    .SetIsStateful()
    .SetShapeFn([](shape_inference::InferenceContext* context) {
      shape_inference::ShapeHandle y = context->input(0);
      if (context->RankKnown(y) && context->Rank(y) == 0) {
        y = context->Vector(context->UnknownDim());
      } else if (context->RankKnown(y)) {
        TfStatus status = context->ReplaceDim(y, 0, context->UnknownDim(), &y);
        if (!status.ok()) return status;
      }
      context->set_output(0, y);
      context->set_output(1, context->Vector(context->UnknownDim()));
      return TfStatus();
    });

REGISTER_KERNEL_BUILDER(Name("MatexAllgather").Device(DEVICE_CPU), AllgatherKernel);
// On a GPU, TensorFlow copies the tensors to and from host memory, where MPI exchanges them.
REGISTER_KERNEL_BUILDER(
    Name("MatexAllgather").Device(DEVICE_GPU).HostMemory("order").HostMemory("x").HostMemory("y").HostMemory("rows"),
    AllgatherKernel);

}  // namespace
}  // namespace matex
