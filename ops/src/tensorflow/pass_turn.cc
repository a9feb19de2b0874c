// MatexPassTurn: takes the turn of a collective that is in a branch of a v1 graph which is not executed. Without it,
// all later turns (engine/sequence/v1_order.h) would wait for ever.
#include "kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"

namespace matex {
namespace {

using namespace tensorflow;

class PassTurnKernel : public Collective {
 public:
  using Collective::Collective;

 protected:
  void Run(OpKernelContext*) override {}
};

REGISTER_OP("MatexPassTurn")
    .Attr("turn: int")
    .Input("other_branch: bool")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs);

REGISTER_KERNEL_BUILDER(Name("MatexPassTurn").Device(DEVICE_CPU), PassTurnKernel);
REGISTER_KERNEL_BUILDER(Name("MatexPassTurn").Device(DEVICE_GPU).HostMemory("other_branch"), PassTurnKernel);

}  // namespace
}  // namespace matex
