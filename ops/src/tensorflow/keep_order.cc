// MatexKeepOrder: has the handle that orders collectives (MATEX_ORDER in kernel.h) as its input, and does nothing.
// TensorFlow would place an op with this input on the device of the handle's variable, the CPU. So a collective on
// another device does not have the handle: one MatexKeepOrder runs before the collective and one after it (order.py).
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

REGISTER_KERNEL_BUILDER(Name("MatexKeepOrder").Device(DEVICE_CPU), KeepOrderKernel);
REGISTER_KERNEL_BUILDER(Name("MatexKeepOrder").Device(DEVICE_GPU).HostMemory("order"), KeepOrderKernel);

}  // namespace
}  // namespace matex
