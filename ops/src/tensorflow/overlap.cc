// The overlapped reduction as ops (engine/update/async_reduction.h). MatexAnnounceUpdate announces an update, or a
// part of one, before its gradients are computed. It is a collective of the sequence, and its output `ticket` is the
// number of the announcement. There is one MatexHandOverGradient for each gradient: it hands the gradient to the engine
// and ends when the engine has the sum over ranks.
#include <algorithm>
#include <memory>

#include "engine/layout/layout.h"
#include "engine/update/async_reduction.h"
#include "engine/sums/world.h"
#include "kernel.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/common_shape_fns.h"

namespace matex {
namespace {

using namespace tensorflow;

class AnnounceUpdateKernel : public OpKernel {
 public:
  explicit AnnounceUpdateKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    std::vector<std::string> names;
    std::vector<TensorShape> shapes;
    std::vector<DataType> types;
    OP_REQUIRES_OK(construction, construction->GetAttr("names", &names));
    OP_REQUIRES_OK(construction, construction->GetAttr("shapes", &shapes));
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &types));
    // See UpdatePart and Entry (layout.h). `of`: the gradients of the whole update, if this announces a part of one.
    bool checked = false;
    OP_REQUIRES_OK(construction, construction->GetAttr("place", &part_.place));
    OP_REQUIRES_OK(construction, construction->GetAttr("of", &part_.gradients));
    OP_REQUIRES_OK(construction, construction->GetAttr("more", &part_.more));
    OP_REQUIRES_OK(construction, construction->GetAttr("checked", &checked));
    std::vector<tensorflow::int64> variables;
    OP_REQUIRES_OK(construction, construction->GetAttr("variables", &variables));
    variables.resize(names.size());  // missing numbers are 0: no gradient of a variable
    OP_REQUIRES(construction, names.size() == shapes.size() && names.size() == types.size(),
                errors::InvalidArgument("MatexAnnounceUpdate: expected as many names as shapes and types, not ",
                                        names.size(), ", ", shapes.size(), " and ", types.size()));
    std::vector<Entry> entries;
    for (size_t i = 0; i < names.size(); ++i) {
      const auto sizes = shapes[i].dim_sizes();
      entries.push_back({names[i], TypeOf(types[i]), std::vector<int64_t>(sizes.begin(), sizes.end()), variables[i]});
    }
    Cuts cuts;
    OP_REQUIRES_OK(construction, CutsOf(construction, names.size(), &cuts));
    const World& world = TheWorld();
    part_.layout = std::make_shared<Layout>(std::move(entries), world.chunk_bytes, world.fuse_bytes, world.compression,
                                            /*compiled=*/false, checked, std::move(cuts));
  }

  void Compute(OpKernelContext* context) override {
    Weight weight;
    OP_REQUIRES_OK(context, WeightOf("MatexAnnounceUpdate", context->input(0), &weight));
    Tensor* ticket = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &ticket));
    int64_t announcement = 0;
    MATEX_RETURN_IF_ERROR(context, Announce(part_, weight.weight, weight.batch, &announcement));
    ticket->scalar<tensorflow::int64>()() = announcement;
    // If a step fails, TensorFlow cancels it, and gradients that are not computed yet will not come. The callback lives
    // as long as the step and has no effect after the end of the update.
    CancellationManager* const cancellation = context->cancellation_manager();
    if (cancellation == nullptr) return;
    const auto give_up = [announcement] { GiveUp(announcement, "its step failed or was cancelled."); };
    if (!cancellation->RegisterCallback(cancellation->get_cancellation_token(), give_up)) give_up();
  }

 private:
  UpdatePart part_;
};

class HandOverGradientKernel : public AsyncOpKernel {
 public:
  explicit HandOverGradientKernel(OpKernelConstruction* construction) : AsyncOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("entry", &entry_));
  }

  // TensorFlow runs inexpensive kernels at once, in the thread that has computed the input. So a gradient is handed
  // over before this thread does other work.
  bool IsExpensive() override { return false; }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Tensor& x = context->input(0);
    const int64_t announcement = context->input(1).scalar<tensorflow::int64>()();
    Tensor* y = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->forward_input_or_allocate_output({0}, 0, x.shape(), &y), done);
    HandedOver gradient;
    gradient.input = DataOf(x);
    gradient.output = DataOf(*y);
    gradient.done = [context, done](const Error& error) {
      if (error) context->SetStatus(StatusOf(error));
      done();
    };
    HandOver(announcement, static_cast<int>(entry_), std::move(gradient));
  }

 private:
  tensorflow::int64 entry_ = 0;
};

REGISTER_OP("MatexAnnounceUpdate")
    .Attr("T: list({float, double, half, bfloat16}) >= 1")
    .Attr("names: list(string)")
    .Attr("shapes: list(shape)")
    .Attr("variables: list(int) = []")
    .Attr("cuts: list(int) = []")
    .Attr("place: string = ''")
    .Attr("of: string = ''")
    .Attr("more: bool = false")
    .Attr("checked: bool = false")
    .Input("weight: double")
    .MATEX_ORDER
    .Output("ticket: int64")
    .SetIsStateful()
    .SetShapeFn(shape_inference::ScalarShape);

REGISTER_OP("MatexHandOverGradient")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("entry: int")
    .Input("gradient: T")
    .Input("ticket: int64")
    .Output("reduced: T")
    .SetIsStateful()
    .SetShapeFn(shape_inference::UnchangedShape);

MATEX_REGISTER("MatexAnnounceUpdate", AnnounceUpdateKernel,
               HostMemory("weight").HostMemory("order").HostMemory("ticket"));
MATEX_REGISTER("MatexHandOverGradient", HandOverGradientKernel,
               HostMemory("gradient").HostMemory("ticket").HostMemory("reduced"));

}  // namespace
}  // namespace matex
