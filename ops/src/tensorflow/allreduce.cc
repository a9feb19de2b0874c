// MatexAllreduce: y = the sum, mean, minimum or maximum of x over ranks. The base class `Collective` reads `place` and
// `turn`. The input MATEX_ORDER or, in a v1 graph, the attribute `turn` keeps collectives in order (kernel.h).
#include "engine/collectives.h"
#include "kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"

namespace matex {
namespace {

using namespace tensorflow;

class AllreduceKernel : public Collective {
 public:
  explicit AllreduceKernel(OpKernelConstruction* construction) : Collective(construction) {
    std::string name;
    OP_REQUIRES_OK(construction, construction->GetAttr("reduction", &name));
    reduction_ = ReductionOf(name);
  }

 protected:
  void Run(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    const Entry tensor{place_, TypeOf(x.dtype()), ShapeOf(x)};
    MATEX_RETURN_IF_ERROR(context, Allreduce(tensor, reduction_, DataOf(x), DataOf(*y)));
  }

 private:
  Reduction reduction_ = Reduction::kSum;
};

REGISTER_OP("MatexAllreduce")
    .Attr("T: " MATEX_TYPES)
    .Attr("reduction: {'sum', 'mean', 'min', 'max'}")
    .Attr("place: string = ''")
    .Attr("turn: int = -1")
    .Input("x: T")
    .MATEX_ORDER
    .Output("y: T")
    .SetIsStateful()
    .SetShapeFn(shape_inference::UnchangedShape);

REGISTER_KERNEL_BUILDER(Name("MatexAllreduce").Device(DEVICE_CPU), AllreduceKernel);
// On a GPU, TensorFlow copies the tensors to and from host memory, where MPI sums them.
REGISTER_KERNEL_BUILDER(Name("MatexAllreduce").Device(DEVICE_GPU).HostMemory("order").HostMemory("x").HostMemory("y"),
                        AllreduceKernel);

}  // namespace
}  // namespace matex
