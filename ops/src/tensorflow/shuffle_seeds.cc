// MatexSeekSeeds: reads or sets the position of the seed generator of a `shuffle` of tf.data, for the state of a run
// (`input/ticket_batches.py`). The position is how many numbers the generator has drawn. With input `drawn` >= 0 the generator
// continues after so many numbers; a negative `drawn` only reads the position.
//
// The generator outlives the iterators of the `shuffle`, but TensorFlow saves its position only within the state of one
// of these iterators. Between two passes there is none: the iterator of a `batch` has deleted the iterator of the
// `shuffle`, its input, when it delivered the last rows. So this op reads the position from the generator itself.
#include "kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/kernels/data/random_seed_ops.h"

namespace matex {
namespace {

using namespace tensorflow;

class SeekSeedsKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    // A lookup by type needs the class's type information, which TensorFlow's libraries do not export. The caller
    // passes only resources that a `shuffle` has made (`tickets.list_generators`).
    core::RefCountPtr<ResourceBase> resource;
    ResourceBase* found = nullptr;
    OP_REQUIRES_OK(context, context->resource_manager()->Lookup(HandleFromInput(context, 0), &found));
    resource.reset(found);
    const auto generator = static_cast<data::SeedGeneratorManager*>(found)->get();
    const int64_t drawn = context->input(1).scalar<tensorflow::int64>()();
    if (drawn >= 0) {
      generator->set_num_random_samples(drawn);
      generator->Reset();  // draws again from its seed, and skips the numbers that count as drawn
    }
    Tensor* count = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape(), &count));
    count->scalar<tensorflow::int64>()() = generator->num_random_samples();
  }
};

REGISTER_OP("MatexSeekSeeds")
    .Input("generator: resource")
    .Input("drawn: int64")
    .Output("count: int64")
    .SetIsStateful()
    .SetShapeFn(shape_inference::ScalarShape);

REGISTER_KERNEL_BUILDER(Name("MatexSeekSeeds").Device(DEVICE_CPU), SeekSeedsKernel);

}  // namespace
}  // namespace matex
