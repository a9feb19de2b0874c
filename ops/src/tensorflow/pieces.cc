// MatexLend has a variable of this rank's own be its piece of a whole one, where that lies; MatexPublish takes such pieces
// back, updated, and gives every rank those of all (engine/store/publish.h).
//
// Only `starts` says who owns what: of the numbers of all variables, counted through, rank r has those from starts[r] up
// to starts[r + 1].
#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "engine/store/publish.h"
#include "engine/sums/world.h"
#include "kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace matex {
namespace {

using namespace tensorflow;

// A whole variable, the variable that has this rank's piece of it, and where that is.
struct Pair {
  core::RefCountPtr<Var> whole, piece;
  int64_t first = 0, count = 0;
};

class PiecesKernel : public OpKernel {
 public:
  explicit PiecesKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("starts", &starts_));
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &variables_));
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &type_));
    OP_REQUIRES(construction, static_cast<int>(starts_.size()) == TheWorld().size + 1,
                errors::InvalidArgument("pieces of ", starts_.size() - 1, " ranks, and there are ", TheWorld().size));
  }

 protected:
  // Finds the variables and, for as long as `locks` lives, keeps others from using the whole ones.
  TfStatus Find(OpKernelContext* context, std::vector<Pair>* pairs, std::deque<mutex_lock>* locks) const {
    const int64_t begin = starts_[TheWorld().rank], end = starts_[TheWorld().rank + 1];
    pairs->resize(variables_);
    std::vector<mutex*> mutexes;
    for (int i = 0; i < variables_; ++i) {
      Pair& pair = (*pairs)[i];
      TfStatus status = LookupResource(context, HandleFromInput(context, i), &pair.whole);
      if (status.ok()) status = LookupResource(context, HandleFromInput(context, variables_ + i), &pair.piece);
      if (!status.ok()) return status;
      mutexes.push_back(pair.whole->mu());
    }
    // In the order of TensorFlow's own ops that take several variables.
    std::sort(mutexes.begin(), mutexes.end());
    mutexes.erase(std::unique(mutexes.begin(), mutexes.end()), mutexes.end());
    for (mutex* const one : mutexes) locks->emplace_back(*one);
    int64_t start = 0;
    for (Pair& pair : *pairs) {
      const int64_t size = pair.whole->tensor()->NumElements();
      pair.first = std::min(std::max(begin - start, int64_t{0}), size);
      pair.count = std::min(std::max(end - start, int64_t{0}), size) - pair.first;
      start += size;
    }
    if (start == starts_.back()) return TfStatus();
    return errors::InvalidArgument("variables of ", start, " numbers, of which ranks own ", starts_.back());
  }

  int64_t Width() const { return DataTypeSize(type_); }

  std::vector<tensorflow::int64> starts_;
  int variables_ = 0;
  DataType type_ = DT_FLOAT;
};

class LendKernel : public PiecesKernel {
 public:
  using PiecesKernel::PiecesKernel;
  void Compute(OpKernelContext* context) override {
    std::vector<Pair> pairs;
    std::deque<mutex_lock> locks;
    OP_REQUIRES_OK(context, Find(context, &pairs, &locks));
    for (const Pair& pair : pairs) {
      const Tensor& whole = *pair.whole->tensor();
      const int64_t offset = pair.first * Width(), bytes = pair.count * Width();
      mutex_lock lock(*pair.piece->mu());
      if (bytes > 0 && whole.RefCountIsOne()) {
        // To who has it it is a tensor of its own, to be updated where it lies.
        char* const memory = static_cast<char*>(DataOf(whole)) + offset;
        *pair.piece->tensor() = TensorAt(memory, std::make_shared<Tensor>(whole), type_, TensorShape({pair.count}));
        continue;
      }
      // Somebody else has the value of the variable, and is to keep it: as TensorFlow's own updates, on a copy.
      Tensor copy;
      OP_REQUIRES_OK(context, context->allocate_temp(type_, TensorShape({pair.count}), &copy));
      if (bytes > 0) std::memcpy(DataOf(copy), static_cast<const char*>(DataOf(whole)) + offset, bytes);
      *pair.piece->tensor() = copy;
    }
  }
};

class PublishKernel : public PiecesKernel {
 public:
  explicit PublishKernel(OpKernelConstruction* construction) : PiecesKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("place", &place_));
    OP_REQUIRES_OK(construction, construction->GetAttr("holding", &holding_));
  }
  void Compute(OpKernelContext* context) override {
    std::vector<Pair> pairs;
    std::deque<mutex_lock> locks;
    OP_REQUIRES_OK(context, Find(context, &pairs, &locks));
    Shared shared{TypeOf(type_), {}, {starts_.begin(), starts_.end()}, place_, holding_};
    for (const Pair& pair : pairs) shared.wholes.push_back({nullptr, pair.whole->tensor()->NumElements()});
    const std::shared_ptr<Homes> homes = HomesOf(shared);
    for (int i = 0; i < variables_; ++i) {
      OP_REQUIRES_OK(context, TakeBack(context, pairs[i], homes, i));
      shared.wholes[i].data = static_cast<char*>(DataOf(*pairs[i].whole->tensor()));
    }
    MATEX_RETURN_IF_ERROR(context, Publish(shared, homes.get()));
  }

 private:
  // The whole variable gets this rank's piece, in memory in which the others' can be written, too: what nobody else has.
  TfStatus TakeBack(OpKernelContext* context, const Pair& pair, const std::shared_ptr<Homes>& homes, int i) const {
    mutex_lock lock(*pair.piece->mu());
    Tensor* const whole = pair.whole->tensor();
    Tensor piece(type_, TensorShape({0}));
    std::swap(piece, *pair.piece->tensor());
    if (piece.NumElements() != pair.count) {
      return errors::InvalidArgument("a piece of ", pair.count, " numbers has become one of ", piece.NumElements());
    }
    const char* const from = static_cast<const char*>(DataOf(piece));
    if (from == At(*whole, pair)) piece = Tensor();  // updated where it lies: `whole` has that
    const bool can_stay = whole->RefCountIsOne();
    const size_t bytes = whole->TotalBytes();
    Tensor now = *whole;
    char* home = nullptr;
    if (homes != nullptr && bytes > 0 && !(can_stay && homes->Has(i, DataOf(*whole)))) home = homes->Take(i);
    if (home != nullptr) {
      // It is given back with the last tensor there.
      const std::shared_ptr<void> taken(home, [homes, i](void*) { homes->Leave(i); });
      now = TensorAt(home, taken, type_, whole->shape());
    } else if (!can_stay) {
      TfStatus status = context->allocate_temp(type_, whole->shape(), &now);
      if (!status.ok()) return status;
    }
    if (from != At(now, pair)) std::copy_n(from, pair.count * Width(), At(now, pair));
    *whole = now;
    return TfStatus();
  }

  char* At(const Tensor& whole, const Pair& pair) const { return static_cast<char*>(DataOf(whole)) + pair.first * Width(); }

  std::string place_;
  tensorflow::int64 holding_ = -1;
};

REGISTER_OP("MatexLend")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("N: int >= 1")
    .Attr("starts: list(int)")
    .Input("wholes: N * resource")
    .Input("pieces: N * resource")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs);
REGISTER_KERNEL_BUILDER(Name("MatexLend").Device(DEVICE_CPU), LendKernel);

REGISTER_OP("MatexPublish")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("N: int >= 1")
    .Attr("starts: list(int)")
    .Attr("place: string = ''")
    .Attr("holding: int = -1")
    .Input("wholes: N * resource")
    .Input("pieces: N * resource")
    .MATEX_ORDER
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs);
REGISTER_KERNEL_BUILDER(Name("MatexPublish").Device(DEVICE_CPU), PublishKernel);

}  // namespace
}  // namespace matex
