// The XLA kernels of the collective ops, for CPUs. When XLA compiles a function, each op becomes one custom call
// (custom_call.h): a call of a function of this library, with a request, a text that describes the collective.
//
// XLA runs independent calls in any order and concurrently. So each call has a further operand and result, the token,
// whose value means nothing. The token is read from and written to the variable that orders the ops (MATEX_ORDER in
// kernel.h). So the token of a call is the result of the call before it, and each call waits for this call.
#include <string>
#include <vector>

#include "custom_call.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/kernel.h"
#if __has_include("xla/hlo/builder/xla_builder.h")
#include "xla/hlo/builder/xla_builder.h"
#else
#include "xla/client/xla_builder.h"
#endif

namespace matex {
namespace {

using namespace tensorflow;

// Compiles an op to a custom call. Derived classes add the attributes of their op to `request_`.
class XlaCollective : public XlaOpKernel {
 public:
  XlaCollective(OpKernelConstruction* construction, Kind kind) : XlaOpKernel(construction) {
    request_.kind = kind;
    OP_REQUIRES_OK(construction, construction->GetAttr("place", &request_.place));
    OP_REQUIRES_OK(construction, construction->GetAttr("order_count", &order_count_));
  }

  void Compile(XlaOpKernelContext* context) final {
    Request request = request_;
    std::vector<xla::XlaOp> operands;
    std::vector<xla::Shape> results;
    // The inputs of an op: its tensors, the weight (gradients only), and the handle that orders the ops, with index
    // `order`. The call gets the tensors flat, so that XLA cannot change their layout.
    const int order = context->num_inputs() - static_cast<int>(order_count_);
    const int tensors = order - (request.kind == Kind::kGradients ? 1 : 0);
    for (int i = 0; i < tensors; ++i) {
      const TensorShape shape = context->InputShape(i);
      std::vector<int64_t> dimensions(shape.dims());
      for (int d = 0; d < shape.dims(); ++d) dimensions[d] = shape.dim_size(d);
      request.entries.push_back({NameOf(i), TypeOf(context->input_type(i)), dimensions, VariableOf(i)});
      operands.push_back(xla::Reshape(context->Input(i), {shape.num_elements()}));
      xla::PrimitiveType type;
      OP_REQUIRES_OK(context, DataTypeToPrimitiveType(context->input_type(i), &type));
      results.push_back(xla::ShapeUtil::MakeShape(type, {shape.num_elements()}));
    }
    if (request.kind == Kind::kGradients) {
      request.weight_length = static_cast<int>(context->InputShape(tensors).num_elements());
      operands.push_back(context->Input(tensors));
    }
    xla::XlaOp token = xla::ConstantR0<int32_t>(context->builder(), 0);  // of an op without a handle: it has no order
    if (order_count_ > 0) OP_REQUIRES_OK(context, context->ReadVariableInput(order, DT_INT32, nullptr, &token));
    operands.push_back(token);
    results.push_back(xla::ShapeUtil::MakeShape(xla::S32, {}));
    // Without tensors, as for a barrier, the result of the call is the token, not a tuple.
    const xla::XlaOp call = xla::CustomCall(
        context->builder(), kTarget, operands, tensors == 0 ? results[0] : xla::ShapeUtil::MakeTupleShape(results),
        Encode(request), /*has_side_effect=*/true, {}, nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
        xla::CustomCallApiVersion::API_VERSION_STATUS_RETURNING_UNIFIED);
    for (int i = 0; i < tensors; ++i) {
      context->SetOutput(i, xla::Reshape(xla::GetTupleElement(call, i), request.entries[i].shape));
    }
    token = tensors == 0 ? call : xla::GetTupleElement(call, tensors);
    if (order_count_ > 0) OP_REQUIRES_OK(context, context->AssignVariable(order, DT_INT32, token));
  }

 protected:
  // The name of tensor `index` in messages and layouts; "" if it has none.
  virtual std::string NameOf(int index) const { return ""; }

  // The number of the variable whose gradient tensor `index` is; 0: none.
  virtual int64_t VariableOf(int index) const { return 0; }

  Request request_;

 private:
  tensorflow::int64 order_count_ = 0;  // the number of handles that order the op: 0 or 1
};

class XlaReduceGradients : public XlaCollective {
 public:
  explicit XlaReduceGradients(OpKernelConstruction* construction) : XlaCollective(construction, Kind::kGradients) {
    OP_REQUIRES_OK(construction, construction->GetAttr("names", &names_));
    OP_REQUIRES_OK(construction, construction->GetAttr("checked", &request_.checked));
    OP_REQUIRES_OK(construction, construction->GetAttr("variables", &variables_));
    variables_.resize(names_.size());  // zeros if the attribute is empty: no variables are known
  }

 protected:
  std::string NameOf(int index) const override { return names_[index]; }
  int64_t VariableOf(int index) const override { return variables_[index]; }

 private:
  std::vector<std::string> names_;
  std::vector<tensorflow::int64> variables_;
};

class XlaAllreduce : public XlaCollective {
 public:
  explicit XlaAllreduce(OpKernelConstruction* construction) : XlaCollective(construction, Kind::kAllreduce) {
    std::string name;
    OP_REQUIRES_OK(construction, construction->GetAttr("reduction", &name));
    request_.reduction = ReductionOf(name);
  }
};

class XlaBroadcast : public XlaCollective {
 public:
  explicit XlaBroadcast(OpKernelConstruction* construction) : XlaCollective(construction, Kind::kBroadcast) {
    tensorflow::int64 root = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("root", &root));
    request_.root = static_cast<int>(root);
  }
};

class XlaBarrier : public XlaCollective {
 public:
  explicit XlaBarrier(OpKernelConstruction* construction) : XlaCollective(construction, Kind::kBarrier) {}
};

// Not REGISTER_XLA_OP: its registrations are ignored after the first compilation.
REGISTER_KERNEL_BUILDER(Name("MatexReduceGradients").Device(DEVICE_CPU_XLA_JIT), XlaReduceGradients);
REGISTER_KERNEL_BUILDER(Name("MatexAllreduce").Device(DEVICE_CPU_XLA_JIT), XlaAllreduce);
REGISTER_KERNEL_BUILDER(Name("MatexBroadcast").Device(DEVICE_CPU_XLA_JIT), XlaBroadcast);
REGISTER_KERNEL_BUILDER(Name("MatexBarrier").Device(DEVICE_CPU_XLA_JIT), XlaBarrier);

}  // namespace
}  // namespace matex
