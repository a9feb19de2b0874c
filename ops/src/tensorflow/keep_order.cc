// MatexKeepOrder: takes the handle that orders collectives (MATEX_ORDER in kernel.h) and does nothing. One runs before
// and one after an op that must not take the handle itself: TensorFlow places an op on the device of a variable that it
// takes.
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
