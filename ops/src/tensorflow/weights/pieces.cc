// Pieces of variables: each rank, the owner of a piece, updates only its piece of a whole variable, so the work of the
// optimizer and its memory are divided among the ranks. An optimizer updates complete TensorFlow variables. So each
// piece has a variable of its own, the piece variable. An update has three parts:
//
// 1. MatexLend makes the value of the piece variable a view of the piece in the whole variable.
// 2. The optimizer updates the piece variable.
// 3. MatexPublish puts the piece back into the whole variable and publishes it: every rank gets the pieces of all ranks
//    (engine/store/publish.h), at once, or later, while the next step computes.
//
// `cuts` defines the owners: for each variable the start of every rank's piece, and the end of the last piece. With
// cuts 0, 3, 6, rank 0 updates elements 0-2 and rank 1 elements 3-5.
#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "engine/store/publish.h"
#include "engine/sums/world.h"
#include "../kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace matex {
namespace {

using namespace tensorflow;

constexpr int64_t kMaxBytesOfRank = 1 << 20;  // the bytes that a rank sends in one message of new weights

// A whole variable, its piece variable, and this rank's piece: elements [first, first + count) of the whole.
struct Pair {
  core::RefCountPtr<Var> whole, piece;
  int64_t first = 0, count = 0;
};

// What both kernels need: the attributes, and the variables behind the inputs.
class PiecesKernel : public AsyncOpKernel {
 public:
  explicit PiecesKernel(OpKernelConstruction* construction) : AsyncOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &count_));
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &type_));
    OP_REQUIRES_OK(construction, CutsOf(construction, count_, &cuts_));
    cuts_.resize(count_);
  }

 protected:
  // Looks up the variables and locks the whole ones as long as `locks` lives.
  TfStatus Find(OpKernelContext* context, std::vector<Pair>* pairs, std::deque<mutex_lock>* locks) const {
    const int rank = TheWorld().rank;
    pairs->resize(count_);
    std::vector<mutex*> mutexes;
    for (int i = 0; i < count_; ++i) {
      Pair& pair = (*pairs)[i];
      TfStatus status = LookupResource(context, HandleFromInput(context, i), &pair.whole);
      if (status.ok()) status = LookupResource(context, HandleFromInput(context, count_ + i), &pair.piece);
      if (!status.ok()) return status;
      mutexes.push_back(pair.whole->mu());
    }
    // Each mutex once, in the order of TensorFlow's own ops that lock several variables, so no deadlock is possible.
    std::sort(mutexes.begin(), mutexes.end());
    mutexes.erase(std::unique(mutexes.begin(), mutexes.end()), mutexes.end());
    for (mutex* const one : mutexes) locks->emplace_back(*one);
    for (int i = 0; i < count_; ++i) {
      const std::vector<int64_t>& cuts = cuts_[i];
      const int64_t size = (*pairs)[i].whole->tensor()->NumElements();
      if (size != (cuts.empty() ? 0 : cuts.back())) {
        return errors::InvalidArgument("expected cuts that cover the ", size, " elements of a variable; they cover ",
                                       cuts.empty() ? 0 : cuts.back());
      }
      if (size == 0) continue;
      (*pairs)[i].first = cuts[rank];
      (*pairs)[i].count = cuts[rank + 1] - cuts[rank];
    }
    return TfStatus();
  }

  int64_t Width() const { return DataTypeSize(type_); }

  Cuts cuts_;
  int count_ = 0;  // the number of whole variables
  DataType type_ = DT_FLOAT;
};

class LendKernel : public PiecesKernel {
 public:
  using PiecesKernel::PiecesKernel;
  // The base class is asynchronous for PublishKernel. This kernel is synchronous, so ComputeAsync is never called.
  AsyncOpKernel* AsAsync() override { return nullptr; }
  void ComputeAsync(OpKernelContext*, DoneCallback) override {}
  void Compute(OpKernelContext* context) override {
    std::vector<Pair> pairs;
    std::deque<mutex_lock> locks;
    OP_REQUIRES_OK(context, Find(context, &pairs, &locks));
    for (const Pair& pair : pairs) {
      const Tensor& whole = *pair.whole->tensor();
      const int64_t offset = pair.first * Width(), bytes = pair.count * Width();
      mutex_lock lock(*pair.piece->mu());
      if (bytes > 0 && whole.RefCountIsOne()) {
        // A new tensor object on the same memory: it has no other references, so TensorFlow updates it in place.
        char* const memory = static_cast<char*>(DataOf(whole)) + offset;
        *pair.piece->tensor() = TensorAt(memory, std::make_shared<Tensor>(whole), type_, TensorShape({pair.count}));
        continue;
      }
      // Another tensor refers to the value and must not change: the piece is a copy, as in TensorFlow's own updates.
      Tensor copy;
      OP_REQUIRES_OK(context, context->allocate_temp(type_, TensorShape({pair.count}), &copy));
      if (bytes > 0) std::memcpy(DataOf(copy), static_cast<const char*>(DataOf(whole)) + offset, bytes);
      *pair.piece->tensor() = copy;
    }
  }
};

// Variables whose new values are on their way from the ranks that have updated them (engine/store/pulls.h). The pull
// thread holds the mutex of each variable until its value is complete. So every reader waits: eager code, saving, and
// functions that know nothing of pulls.
class Pulled {
 public:
  explicit Pulled(std::vector<core::RefCountPtr<Var>> variables) : variables_(std::move(variables)) {}

  // Called by the pull thread. `Lock` locks all variables and returns the addresses of their values, which no other
  // tensor shares. `Unlock` unlocks variable `i`, whose value is complete.
  std::vector<void*> Lock() {
    std::vector<Var*> variables;
    for (const auto& variable : variables_) variables.push_back(variable.get());
    // In the order of TensorFlow's own ops that lock several variables, so that no deadlock is possible.
    std::sort(variables.begin(), variables.end(), [](Var* one, Var* other) { return one->mu() < other->mu(); });
    for (Var* const variable : variables) variable->mu()->lock();
    std::vector<void*> values;
    for (const auto& variable : variables_) {
      // A thread of the script may have read or assigned it since it was published: another tensor has this memory.
      Tensor* const value = variable->tensor();
      if (!value->RefCountIsOne()) *value = tensor::DeepCopy(*value);
      values.push_back(DataOf(*value));
    }
    return values;
  }
  void Unlock(int i) { variables_[i]->mu()->unlock(); }

 private:
  const std::vector<core::RefCountPtr<Var>> variables_;
};

class PublishKernel : public PiecesKernel {
 public:
  explicit PublishKernel(OpKernelConstruction* construction) : PiecesKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("place", &place_));
    OP_REQUIRES_OK(construction, construction->GetAttr("holding", &holding_));
    OP_REQUIRES_OK(construction, construction->GetAttr("later", &later_));
    OP_REQUIRES_OK(construction, construction->GetAttr("needed", &needed_));
    OP_REQUIRES_OK(construction, construction->GetAttr("names", &names_));
    OP_REQUIRES(construction, static_cast<int>(names_.size()) == count_,
                errors::InvalidArgument("MatexPublish: expected ", count_, " names, not ", names_.size()));
  }
  // Publishing at once is synchronous. Publishing later (a pull) is asynchronous and occupies no thread.
  AsyncOpKernel* AsAsync() override { return later_ && TheWorld().has_peers() ? this : nullptr; }

  void Compute(OpKernelContext* context) override {
    Publication publication;
    OP_REQUIRES_OK(context, Prepare(context, &publication));
    MATEX_RETURN_IF_ERROR(context, Publish(publication.variables, publication.homes.get()));
  }

  // Publishes later. Calls `done` when the variables are locked for their new values: readers wait for the locks.
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Publication publication;
    OP_REQUIRES_OK_ASYNC(context, Prepare(context, &publication), done);
    std::vector<core::RefCountPtr<Var>> wholes;
    for (Pair& pair : publication.pairs) wholes.push_back(std::move(pair.whole));
    const auto pulled = std::make_shared<Pulled>(std::move(wholes));
    const auto begin = [pulled, done] {
      const std::vector<void*> values = pulled->Lock();
      done();
      return values;
    };
    const auto end = [pulled](int i, const Error&) { pulled->Unlock(i); };
    // In the pull thread, `begin` locks the same variables: it waits until they are unlocked here.
    const Error failed = PublishLater(publication.variables, {begin, end});
    publication.locks.clear();
    if (failed) OP_REQUIRES_OK_ASYNC(context, StatusOf(failed), done);
  }

 private:
  struct Publication {
    std::vector<Pair> pairs;
    std::deque<mutex_lock> locks;  // of the whole variables
    DividedVariables variables;
    std::shared_ptr<Homes> homes;  // null if there are none
  };

  // Locks the variables and puts this rank's updated pieces back into them.
  TfStatus Prepare(OpKernelContext* context, Publication* made) {
    TfStatus status = Find(context, &made->pairs, &made->locks);
    if (!status.ok()) return status;
    made->variables = Describe(made->pairs);
    made->homes = HomesOf(made->variables);
    for (int i = 0; i < count_; ++i) {
      status = PutBack(context, made->pairs[i], made->homes, i);
      if (!status.ok()) return status;
      made->variables.wholes.push_back(DataOf(*made->pairs[i].whole->tensor()));
    }
    return TfStatus();
  }

  // The variables for the engine, without addresses; the layout is made at the first call.
  DividedVariables Describe(const std::vector<Pair>& pairs) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (layout_ == nullptr) {
      std::vector<Entry> entries;
      for (int i = 0; i < count_; ++i)
        entries.push_back({names_[i], TypeOf(type_), ShapeOf(*pairs[i].whole->tensor())});
      const World& world = TheWorld();
      // While a message travels `later`, more urgent ones wait, so it is only as large as needed to saturate a link.
      const int64_t max_bytes =
          later_ ? std::min<int64_t>(world.chunk_bytes, world.size * kMaxBytesOfRank) : world.chunk_bytes;
      // New weights are sent as they are: they are neither compressed nor checked.
      layout_ = std::make_shared<Layout>(std::move(entries), max_bytes, world.fuse_bytes, Compression(),
                                         /*compiled=*/false, /*checked=*/false, cuts_);
      messages_ = std::make_shared<std::vector<Transfer>>(layout_->TransfersInOrder());
    }
    return {layout_, messages_, /*wholes=*/{}, place_, needed_, holding_};
  }

  // Puts this rank's piece into the whole variable. The variable then has memory without other references, where the
  // pieces of other ranks can be written: its own memory, its home (homes.h), or new memory.
  TfStatus PutBack(OpKernelContext* context, const Pair& pair, const std::shared_ptr<Homes>& homes, int i) const {
    mutex_lock lock(*pair.piece->mu());
    Tensor* const whole = pair.whole->tensor();
    Tensor piece(type_, TensorShape({0}));
    std::swap(piece, *pair.piece->tensor());
    if (piece.NumElements() != pair.count) {
      return errors::InvalidArgument("expected a piece of ", pair.count, " elements, got ", piece.NumElements());
    }
    const char* const from = static_cast<const char*>(DataOf(piece));
    // Updated in place: the piece's own reference to the whole variable is dropped, so that it does not count below.
    if (from == At(*whole, pair)) piece = Tensor();
    // Another reference, such as a tensor that the script has read, needs the old value.
    const bool can_stay = whole->RefCountIsOne();
    Tensor updated = *whole;  // the new value; in the same memory, unless it moves below
    char* home = nullptr;     // null: the value does not move to its home
    if (homes != nullptr && whole->TotalBytes() > 0) {
      const bool stays_at_home = can_stay && homes->IsHome(i, DataOf(*whole));
      if (!stays_at_home) home = homes->Occupy(i);
    }
    if (home != nullptr) {
      // Returned to `homes` with the last tensor that uses it.
      const std::shared_ptr<void> owner(home, [homes, i](void*) { homes->Release(i); });
      updated = TensorAt(home, owner, type_, whole->shape());
    } else if (!can_stay) {
      TfStatus status = context->allocate_temp(type_, whole->shape(), &updated);
      if (!status.ok()) return status;
    }
    if (from != At(updated, pair)) std::copy_n(from, pair.count * Width(), At(updated, pair));
    *whole = updated;
    return TfStatus();
  }

  // The address of this rank's piece within `whole`.
  char* At(const Tensor& whole, const Pair& pair) const {
    return static_cast<char*>(DataOf(whole)) + pair.first * Width();
  }

  std::string place_;
  tensorflow::int64 holding_ = -1;  // the number of the group of homes (publish.h); -1: no homes
  bool later_ = false;
  tensorflow::int64 needed_ = 0;  // the order in which a step needs the variables; smaller is earlier
  std::vector<std::string> names_;
  std::mutex mutex_;
  std::shared_ptr<const Layout> layout_;
  std::shared_ptr<const std::vector<Transfer>> messages_;
};

REGISTER_OP("MatexLend")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("N: int >= 1")
    .Attr("cuts: list(int)")
    .Input("wholes: N * resource")
    .Input("pieces: N * resource")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs);
REGISTER_KERNEL_BUILDER(Name("MatexLend").Device(DEVICE_CPU), LendKernel);

REGISTER_OP("MatexPublish")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("N: int >= 1")
    .Attr("cuts: list(int)")
    .Attr("place: string = ''")
    .Attr("holding: int = -1")
    .Attr("later: bool = false")
    .Attr("needed: int = 0")
    .Attr("names: list(string)")
    .Input("wholes: N * resource")
    .Input("pieces: N * resource")
    .MATEX_ORDER
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs);
REGISTER_KERNEL_BUILDER(Name("MatexPublish").Device(DEVICE_CPU), PublishKernel);

}  // namespace
}  // namespace matex
