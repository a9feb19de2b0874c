// MatexDealRows: the rows of a batch that this rank computes, by the rule of sharding/slice_bounds.py. Input `counts`:
// the number of rows of each of the batch's tensors. Input `dealt`: whether rows are divided among ranks (0 or 1), this
// rank, and the share of each rank. With counts [5] and dealt [1, 0, 1, 1], which means divided, rank 0, and equal
// shares of two ranks, rank 0 computes rows 0-2.
//
// Outputs: the first row, the number of rows, the rows of the whole batch, and whether this rank has rows of its own.
#include <algorithm>
#include <numeric>
#include <vector>

#include "kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"

namespace matex {
namespace {

using namespace tensorflow;

// The range of rows of `rank`, of `total` rows divided in proportion to `shares`.
std::pair<int64_t, int64_t> DealBlock(int64_t total, int64_t rank, const int64_t* shares, int64_t ranks) {
  const int64_t sum = std::accumulate(shares, shares + ranks, int64_t{0});
  std::vector<int64_t> rows(ranks), order(ranks);
  for (int64_t i = 0; i < ranks; ++i) rows[i] = total * shares[i] / sum;
  const int64_t remaining = total - std::accumulate(rows.begin(), rows.end(), int64_t{0});
  std::iota(order.begin(), order.end(), 0);
  // Ranks that lose most by rounding down get one of the remaining rows each; of equal losses, lower ranks come first.
  std::stable_sort(order.begin(), order.end(), [&](int64_t one, int64_t other) {
    return total * shares[one] % sum > total * shares[other] % sum;
  });
  for (int64_t i = 0; i < remaining; ++i) ++rows[order[i]];
  const int64_t start = std::accumulate(rows.begin(), rows.begin() + rank, int64_t{0});
  return {start, start + rows[rank]};
}

class DealRowsKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& counts = context->input(0);
    const Tensor& dealt = context->input(1);
    const int64_t ranks = dealt.NumElements() - 2;
    OP_REQUIRES(context, counts.dims() == 1 && counts.NumElements() > 0 && dealt.dims() == 1 && ranks > 0,
                errors::InvalidArgument("MatexDealRows: expected counts [k > 0] and dealt [2 + ranks], not ",
                                        counts.shape().DebugString(), " and ", dealt.shape().DebugString()));
    const auto* const rows = reinterpret_cast<const int64_t*>(counts.flat<tensorflow::int64>().data());
    const auto* const numbers = reinterpret_cast<const int64_t*>(dealt.flat<tensorflow::int64>().data());
    const bool is_divided = numbers[0] != 0;
    const int64_t* const shares = numbers + 2;
    const int64_t rank = numbers[1], total = rows[0];
    const int64_t largest = *std::max_element(rows, rows + counts.NumElements());
    OP_REQUIRES(context, rank >= 0 && rank < ranks && std::accumulate(shares, shares + ranks, int64_t{0}) > 0,
                errors::InvalidArgument("MatexDealRows: rank ", rank, " of ", ranks, " ranks cannot be dealt rows"));
    auto [start, stop] = DealBlock(total, rank, shares, ranks);
    const bool has_rows = stop > start;
    const bool is_even = std::all_of(rows, rows + counts.NumElements(), [&](int64_t count) { return count == total; });
    if (!is_divided || !is_even) {
      // Tensors of different lengths are not divided: every rank computes all rows.
      start = 0;
      stop = largest;
    } else if (!has_rows) {
      // A rank without rows computes the first row and contributes nothing, because steps fail on empty batches.
      start = 0;
      stop = std::min<int64_t>(1, total);
    }
    Tensor* output = nullptr;
    const int64_t numbers_of_rows[] = {start, stop - start, total};
    for (int i = 0; i < 3; ++i) {
      OP_REQUIRES_OK(context, context->allocate_output(i, TensorShape(), &output));
      output->scalar<tensorflow::int64>()() = numbers_of_rows[i];
    }
    OP_REQUIRES_OK(context, context->allocate_output(3, TensorShape(), &output));
    output->scalar<bool>()() = has_rows;
  }
};

REGISTER_OP("MatexDealRows")
    .Input("counts: int64")
    .Input("dealt: int64")
    .Output("first: int64")
    .Output("number: int64")
    .Output("total: int64")
    .Output("has_rows: bool")
    .SetShapeFn([](shape_inference::InferenceContext* context) -> TfStatus {
      for (int i = 0; i < 4; ++i) context->set_output(i, context->Scalar());
      return TfStatus();
    });

REGISTER_KERNEL_BUILDER(Name("MatexDealRows").Device(DEVICE_CPU), DealRowsKernel);

}  // namespace
}  // namespace matex
