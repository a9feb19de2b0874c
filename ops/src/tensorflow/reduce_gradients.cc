// MatexReduceGradients: reduced[i] = the sum over ranks of weight * gradients[i], all gradients of an update in one op.
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
    OP_REQUIRES_OK(construction, construction->GetAttr("names", &names_));
    OP_REQUIRES_OK(construction, construction->GetAttr("place", &place_));
    OP_REQUIRES_OK(construction, construction->GetAttr("checked", &checked_));
    OP_REQUIRES_OK(construction, construction->GetAttr("variables", &variables_));
    variables_.resize(names_.size());
    OP_REQUIRES_OK(construction, CutsOf(construction, names_.size(), &cuts_));
    OP_REQUIRES(construction, static_cast<int>(names_.size()) == construction->num_outputs(),
                errors::InvalidArgument("MatexReduceGradients: expected one name for each gradient, ",
                                        construction->num_outputs(), " of them, not ", names_.size()));
  }

 protected:
  void Run(OpKernelContext* context) override {
    const int count = context->num_outputs();
    const Tensor& weight = context->input(count);
    OP_REQUIRES(context, weight.dims() == 0 || (weight.dims() == 1 && weight.NumElements() == 2),
                errors::InvalidArgument("MatexReduceGradients: expected a scalar weight, or weight and rows, not shape ",
                                        weight.shape().DebugString()));
    std::vector<const void*> inputs(count);
    std::vector<void*> outputs(count);
    for (int i = 0; i < count; ++i) {
      const Tensor& x = context->input(i);
      Tensor* y = nullptr;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({i}, i, x.shape(), &y));
      inputs[i] = DataOf(x);
      outputs[i] = DataOf(*y);
    }
    std::shared_ptr<const Scatter> scatter;
    const std::shared_ptr<const Layout> layout = LayoutOf(context, count, &scatter);
    const double* const numbers = static_cast<const double*>(DataOf(weight));
    const int64_t rows = weight.dims() == 0 ? 0 : static_cast<int64_t>(numbers[1]);
    MATEX_RETURN_IF_ERROR(context, ReduceInline(*layout, inputs.data(), outputs.data(), numbers[0], rows,
                                                [this] { return place_; }, scatter.get()));
  }

 private:
  // Shapes are known when the op runs, and as good as always those of the last time.
  std::shared_ptr<const Layout> LayoutOf(OpKernelContext* context, int count, std::shared_ptr<const Scatter>* scatter) {
    std::lock_guard<std::mutex> lock(mutex_);
    *scatter = scatter_;
    if (layout_ != nullptr && IsLayoutOf(context, count)) return layout_;
    std::vector<Entry> entries;
    for (int i = 0; i < count; ++i) {
      const Tensor& x = context->input(i);
      entries.push_back({names_[i], TypeOf(x.dtype()), ShapeOf(x), variables_[i]});
    }
    const World& world = TheWorld();
    layout_ = std::make_shared<Layout>(std::move(entries), world.chunk_bytes, world.fuse_bytes, world.compression, false,
                                       checked_, cuts_);
    if (!layout_->cuts().empty()) scatter_ = std::make_shared<Scatter>(*layout_, world.size);
    *scatter = scatter_;
    return layout_;
  }

  bool IsLayoutOf(OpKernelContext* context, int count) const {
    for (int i = 0; i < count; ++i) {
      const TensorShape& shape = context->input(i).shape();
      const std::vector<int64_t>& known = layout_->entries()[i].shape;
      if (shape.dims() != static_cast<int>(known.size())) return false;
      for (int d = 0; d < shape.dims(); ++d) {
        if (shape.dim_size(d) != known[d]) return false;
      }
    }
    return true;
  }

  std::vector<std::string> names_;
  std::vector<tensorflow::int64> variables_;
  std::string place_;
  bool checked_ = false;
  std::mutex mutex_;
  std::shared_ptr<const Layout> layout_;
  Cuts cuts_;  // of each gradient; none where every rank needs all of all
  std::shared_ptr<const Scatter> scatter_;
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
    .SetShapeFn([](shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
      shape_inference::ShapeHandle scalar;
      return context->WithRankAtMost(context->input(context->num_outputs()), 1, &scalar);
    });

REGISTER_KERNEL_BUILDER(Name("MatexReduceGradients").Device(DEVICE_CPU), ReduceGradientsKernel);
REGISTER_KERNEL_BUILDER(
    Name("MatexReduceGradients").Device(DEVICE_GPU).HostMemory("order").HostMemory("gradients").HostMemory("weight").HostMemory("reduced"),
    ReduceGradientsKernel);

}  // namespace
}  // namespace matex
