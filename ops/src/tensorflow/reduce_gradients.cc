// MatexReduceGradients: reduced[i] = the sum over ranks of weight * gradients[i], for all gradients of an update, in
// the thread that runs the kernel (engine/update/inline.h). With `cuts`, each rank gets only its own pieces' sums. The
// input MATEX_ORDER or, in a v1 graph, the attribute `turn` keeps collectives in order (kernel.h).
#include <memory>

#include "engine/update/inline.h"
#include "engine/layout/layout.h"
#include "engine/sums/world.h"
#include "kernel.h"

namespace matex {
namespace {

using namespace tensorflow;

class ReduceGradientsKernel : public Collective {
 public:
  explicit ReduceGradientsKernel(OpKernelConstruction* construction) : Collective(construction) {
    OP_REQUIRES_OK(construction, kept_.Read(construction));
    OP_REQUIRES_OK(construction, construction->GetAttr("checked", &checked_));
    OP_REQUIRES_OK(construction, CutsOf(construction, construction->num_outputs(), &cuts_));
  }

 protected:
  void Run(OpKernelContext* context) override {
    const int count = context->num_outputs();
    Weight weight;
    OP_REQUIRES_OK(context, WeightOf("MatexReduceGradients", context->input(count), &weight));
    std::vector<const void*> inputs(count);
    std::vector<void*> outputs(count);
    for (int i = 0; i < count; ++i) {
      const Tensor& x = context->input(i);
      Tensor* y = nullptr;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({i}, i, x.shape(), &y));
      inputs[i] = DataOf(x);
      outputs[i] = DataOf(*y);
    }
    const auto made = kept_.Of(context, [this](std::vector<Entry> entries) { return Make(std::move(entries)); });
    MATEX_RETURN_IF_ERROR(context, ReduceInline(
                                       made->layout, inputs.data(), outputs.data(), weight.weight, weight.batch,
                                       [this] { return place_; }, made->scatter.get()));
  }

 private:
  // The layout of the gradients and, if each rank needs only its pieces' sums, the shares of the ranks (transfer.h).
  std::shared_ptr<const KeptLayout::Made> Make(std::vector<Entry> entries) const {
    const World& world = TheWorld();
    Layout layout(std::move(entries), world.chunk_bytes, world.fuse_bytes, world.compression,
                  /*compiled=*/false, checked_, cuts_);
    const auto made = std::make_shared<KeptLayout::Made>(KeptLayout::Made{std::move(layout), nullptr});
    if (!made->layout.cuts().empty()) made->scatter = std::make_unique<Scatter>(made->layout, world.size);
    return made;
  }

  KeptLayout kept_;       // the result of `Make`, made again only if the shapes of the gradients change
  bool checked_ = false;  // whether gradients that are not finite are an error (finite_check.h)
  Cuts cuts_;  // of each gradient (layout.h); empty: every rank needs all sums
};

REGISTER_OP("MatexReduceGradients")
    .Attr("T: list({float, double, half, bfloat16}) >= 0")
    .Attr("names: list(string)")
    .Attr("variables: list(int) = []")
    .Attr("cuts: list(int) = []")
    .Attr("place: string = ''")
    .Attr("checked: bool = false")
    .Attr("turn: int = -1")
    .Input("gradients: T")
    .Input("weight: double")
    .MATEX_ORDER
    .Output("reduced: T")
    .SetIsStateful()
    .SetShapeFn(InferReduced);

MATEX_REGISTER("MatexReduceGradients", ReduceGradientsKernel,
               HostMemory("order").HostMemory("gradients").HostMemory("weight").HostMemory("reduced"));

}  // namespace
}  // namespace matex
