// Two ops that take a place in the order of collectives, and do nothing else.
//
// MatexKeepOrder has the handle that orders collectives (MATEX_ORDER in kernel.h) as its input. TensorFlow would place
// an op with this input on the device of the handle's variable, the CPU. So a collective on another device does not
// have the handle: one MatexKeepOrder runs before the collective and one after it (order.py).
//
// MatexPassTurn uses the turn of a collective that is not executed. In a v1 graph collectives run in numbered turns
// (engine/sequence/v1_order.h). If a `cond` does not take the branch with a collective, the collective never uses its
// turn, and all later collectives would wait for ever. MatexPassTurn, in the other branch, uses the turn instead.
#include "kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"

namespace matex {
namespace {

using namespace tensorflow;

class KeepOrderKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext*) override {}
};

REGISTER_OP("MatexKeepOrder").MATEX_ORDER.SetIsStateful().SetShapeFn(shape_inference::NoOutputs);

MATEX_REGISTER("MatexKeepOrder", KeepOrderKernel, HostMemory("order"));

class PassTurnKernel : public Collective {
 public:
  using Collective::Collective;

 protected:
  void Run(OpKernelContext*) override {}  // the base class waits for the turn and ends it
};

REGISTER_OP("MatexPassTurn")
    .Attr("turn: int")
    .Input("other_branch: bool")  // dead if the branch with the collective is taken, so that this op does not run
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs);

MATEX_REGISTER("MatexPassTurn", PassTurnKernel, HostMemory("other_branch"));

}  // namespace
}  // namespace matex
