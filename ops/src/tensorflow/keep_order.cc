// MatexKeepOrder: takes the handle that orders collectives (MATEX_ORDER in kernel.h) and does nothing. TensorFlow would
// place an op that takes the handle on the device of its variable, the CPU. So an op for another device does not take
// the handle: one MatexKeepOrder runs before it and one after it.
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
