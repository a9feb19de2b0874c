// MatexBroadcast: y = x of rank root, on all ranks. `place` names the op in messages. By the input `order` and, in a v1
// graph, the attribute `turn`, collectives run in the same order on all ranks (kernel.h).
#include <cstring>

#include "engine/collectives.h"
#include "kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"

namespace matex {
namespace {

using namespace tensorflow;

class BroadcastKernel : public Collective {
 public:
  explicit BroadcastKernel(OpKernelConstruction* construction) : Collective(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("root", &root_));
  }

 protected:
  void Run(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    if (DataOf(*y) != DataOf(x)) std::memcpy(DataOf(*y), DataOf(x), x.tensor_data().size());
    const Entry tensor{place_, TypeOf(x.dtype()), ShapeOf(x)};
    MATEX_RETURN_IF_ERROR(context, Broadcast(tensor, static_cast<int>(root_), DataOf(*y)));
  }

 private:
  tensorflow::int64 root_ = 0;
};

REGISTER_OP("MatexBroadcast")
    .Attr("T: " MATEX_TYPES)
    .Attr("root: int >= 0 = 0")
    .Attr("place: string = ''")
    .Attr("turn: int = -1")
    .Input("x: T")
    .MATEX_ORDER
    .Output("y: T")
    .SetIsStateful()
    .SetShapeFn(shape_inference::UnchangedShape);

REGISTER_KERNEL_BUILDER(Name("MatexBroadcast").Device(DEVICE_CPU), BroadcastKernel);
// On a GPU, TensorFlow copies the tensors to and from host memory, where MPI sends them.
REGISTER_KERNEL_BUILDER(Name("MatexBroadcast").Device(DEVICE_GPU).HostMemory("order").HostMemory("x").HostMemory("y"),
                        BroadcastKernel);

}  // namespace
}  // namespace matex
