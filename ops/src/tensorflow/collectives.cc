// The collectives on one tensor as ops. y is, on every rank:
//
//   MatexAllreduce  the sum, mean, minimum or maximum of x over ranks
//   MatexBroadcast  x of rank `root`
//   MatexAllgather  the rows x of all ranks, in rank order (a scalar is one row); rows: the number of rows of each rank
//   MatexBarrier    nothing; it ends when all ranks have reached it
//
// The base class `Collective` reads `place`, the name in messages, and `turn`. The input MATEX_ORDER or, in a v1 graph,
// `turn` keeps collectives in order (kernel.h). On a GPU, TensorFlow copies the tensors to and from host memory, where
// MPI exchanges them.
#include "engine/collectives.h"

#include <algorithm>
#include <cstring>

#include "kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"

namespace matex {
namespace {

using namespace tensorflow;

class AllreduceKernel : public Collective {
 public:
  explicit AllreduceKernel(OpKernelConstruction* construction) : Collective(construction) {
    std::string name;
    OP_REQUIRES_OK(construction, construction->GetAttr("reduction", &name));
    reduction_ = ReductionOf(name);
  }

 protected:
  void Run(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    const Entry tensor{place_, TypeOf(x.dtype()), ShapeOf(x)};
    MATEX_RETURN_IF_ERROR(context, Allreduce(tensor, reduction_, DataOf(x), DataOf(*y)));
  }

 private:
  Reduction reduction_ = Reduction::kSum;
};

REGISTER_OP("MatexAllreduce")
    .Attr("T: " MATEX_TYPES)
    .Attr("reduction: {'sum', 'mean', 'min', 'max'}")
    .Attr("place: string = ''")
    .Attr("turn: int = -1")
    .Input("x: T")
    .MATEX_ORDER
    .Output("y: T")
    .SetIsStateful()
    .SetShapeFn(shape_inference::UnchangedShape);

MATEX_REGISTER("MatexAllreduce", AllreduceKernel, HostMemory("order").HostMemory("x").HostMemory("y"));

class BroadcastKernel : public Collective {
 public:
  explicit BroadcastKernel(OpKernelConstruction* construction) : Collective(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("root", &root_));
  }

 protected:
  void Run(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    if (DataOf(*y) != DataOf(x)) std::memcpy(DataOf(*y), DataOf(x), x.tensor_data().size());
    const Entry tensor{place_, TypeOf(x.dtype()), ShapeOf(x)};
    MATEX_RETURN_IF_ERROR(context, Broadcast(tensor, static_cast<int>(root_), DataOf(*y)));
  }

 private:
  tensorflow::int64 root_ = 0;
};

REGISTER_OP("MatexBroadcast")
    .Attr("T: " MATEX_TYPES)
    .Attr("root: int >= 0 = 0")
    .Attr("place: string = ''")
    .Attr("turn: int = -1")
    .Input("x: T")
    .MATEX_ORDER
    .Output("y: T")
    .SetIsStateful()
    .SetShapeFn(shape_inference::UnchangedShape);

MATEX_REGISTER("MatexBroadcast", BroadcastKernel, HostMemory("order").HostMemory("x").HostMemory("y"));

class AllgatherKernel : public Collective {
 public:
  using Collective::Collective;

 protected:
  void Run(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    // Allgather calls it when it knows the numbers of rows of all ranks, and writes the rows to the address that it
    // returns; null: there is no memory.
    const auto allocate = [&](const std::vector<int64_t>& rows) -> void* {
      Tensor* counts = nullptr;
      TfStatus status = context->allocate_output(1, TensorShape({static_cast<int64_t>(rows.size())}), &counts);
      if (!status.ok()) return nullptr;
      std::copy(rows.begin(), rows.end(), static_cast<int64_t*>(DataOf(*counts)));
      TensorShape shape = x.shape();
      int64_t all = 0;
      for (int64_t count : rows) all += count;
      if (shape.dims() == 0) {
        shape.AddDim(all);
      } else {
        shape.set_dim(0, all);
      }
      Tensor* y = nullptr;
      status = context->allocate_output(0, shape, &y);
      // An empty tensor may have the address null, which stands for a failed allocation.
      static char nothing;
      if (!status.ok()) return nullptr;
      return y->NumElements() == 0 ? &nothing : DataOf(*y);
    };
    const Entry tensor{place_, TypeOf(x.dtype()), ShapeOf(x)};
    MATEX_RETURN_IF_ERROR(context, Allgather(tensor, DataOf(x), allocate));
  }
};

REGISTER_OP("MatexAllgather")
    .Attr("T: " MATEX_TYPES)
    .Attr("place: string = ''")
    .Attr("turn: int = -1")
    .Input("x: T")
    .MATEX_ORDER
    .Output("y: T")
    .Output("rows: int64")
    .SetIsStateful()
    .SetShapeFn([](shape_inference::InferenceContext* context) {
      shape_inference::ShapeHandle y = context->input(0);
      if (context->RankKnown(y) && context->Rank(y) == 0) {
        y = context->Vector(context->UnknownDim());
      } else if (context->RankKnown(y)) {
        TfStatus status = context->ReplaceDim(y, 0, context->UnknownDim(), &y);
        if (!status.ok()) return status;
      }
      context->set_output(0, y);
      context->set_output(1, context->Vector(context->UnknownDim()));
      return TfStatus();
    });

MATEX_REGISTER("MatexAllgather", AllgatherKernel,
               HostMemory("order").HostMemory("x").HostMemory("y").HostMemory("rows"));

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

MATEX_REGISTER("MatexBarrier", BarrierKernel, HostMemory("order"));

}  // namespace
}  // namespace matex
