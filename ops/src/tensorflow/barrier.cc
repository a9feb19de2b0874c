// MatexBarrier: ends when all ranks have reached it.
#include "engine/collectives.h"
#include "kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"

namespace matex {
namespace {

using namespace tensorflow;

class BarrierKernel : public Collective {
 public:
  using Collective::Collective;

 protected:
  void Run(OpKernelContext* context) override { MATEX_RETURN_IF_ERROR(context, Barrier(place_)); }
};

REGISTER_OP("MatexBarrier")
    .Attr("place: string = ''")
    .Attr("turn: int = -1")
    .MATEX_ORDER
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs);

REGISTER_KERNEL_BUILDER(Name("MatexBarrier").Device(DEVICE_CPU), BarrierKernel);
REGISTER_KERNEL_BUILDER(Name("MatexBarrier").Device(DEVICE_GPU).HostMemory("order"), BarrierKernel);

}  // namespace
}  // namespace matex
