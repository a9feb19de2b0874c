// A BucketTuner collects the measurements of one layout and then changes its transfers once (bucket_tuner.h).
#include "engine/update/bucket_tuner.h"

#include <mpi.h>

#include <algorithm>
#include <string>

#include "engine/layout/buckets.h"
#include "engine/update/link_probe.h"
#include "engine/sequence/trace.h"
#include "engine/sums/allreduce.h"
#include "engine/sequence/wait_state.h"
#include "engine/sums/world.h"

namespace matex {
namespace {

// The first kIgnored updates of a layout are slow, because they trace functions, allocate memory and start threads. The
// updates after them, up to the kUpdates-th, are measured.
constexpr int kIgnored = 3, kUpdates = 13;
constexpr int kProbeTrials = 3;
// More layouts than a script uses at a time. Beyond it, the tuner of the least recently used layout is dropped.
constexpr size_t kMaxLayouts = 256;

double Median(std::vector<double>* numbers) {
  const auto middle = numbers->begin() + numbers->size() / 2;
  std::nth_element(numbers->begin(), middle, numbers->end());
  return *middle;
}

}  // namespace

Error BucketTuner::AddUpdate(const Layout& layout, const std::vector<double>& ready) {
  if (updates_ >= kUpdates) return Error();
  ++updates_;
  if (updates_ <= kIgnored) return Error();
  ready_times_.push_back(ready);
  return updates_ < kUpdates ? Error() : ChooseTransfers(layout);
}

Error BucketTuner::ChooseTransfers(const Layout& layout) {
  const World& world = TheWorld();
  if (!world.has_peers()) return Error();
  const Span span(Activity::kChoice);
  const std::function<std::string()> place = [] { return std::string("the choice of buckets"); };
  const NotedWait wait(Waiter::kOverlapped, place);
  // When each gradient is ready: the median over updates, which a single delayed update does not distort.
  std::vector<double> ready;
  for (size_t i = 0; i < layout.entries().size(); ++i) {
    std::vector<double> times;
    for (const std::vector<double>& update : ready_times_) times.push_back(update[i]);
    ready.push_back(Median(&times));
  }
  ready_times_.clear();
  Link link;
  if (Error error = ProbeLink(OverlappedAdder(), world.overlapped, kProbeTrials, &link)) return error;
  // Without a reliable cost the current buckets stay: small and in the order of gradients, they are never bad.
  if (link.disturbed) return Error();
  // Each transfer costs two start-ups: before its sum, a small all-reduce agrees that its gradients are ready.
  link.start_up *= 2;
  link.byte *= layout.compression().CompressedFraction(world.size);
  // A sum begins when the slowest rank has its gradient.
  const int count = static_cast<int>(ready.size());
  int code = MPI_Allreduce(MPI_IN_PLACE, ready.data(), count, MPI_DOUBLE, MPI_MAX, world.overlapped);
  if (Error error = MpiError(code, "MPI_Allreduce", place())) return error;
  std::vector<double> bytes;
  for (size_t i = 0; i < layout.entries().size(); ++i) {
    // A gradient with cuts is summed in pieces: each rank gets the sum of its piece only, by a reduce-scatter, which
    // takes half as long as an all-reduce.
    const bool is_owned = !layout.cuts().empty() && !layout.cuts()[i].empty();
    bytes.push_back(layout.entries()[i].bytes() * (is_owned ? 0.5 : 1.0));
  }
  // The processors of the ranks may round differently, so rank 0 decides.
  std::vector<int> boundaries = ChooseBuckets(ready, bytes, link);
  int length = static_cast<int>(boundaries.size());
  code = MPI_Bcast(&length, 1, MPI_INT, 0, world.overlapped);
  boundaries.resize(length);
  if (code == MPI_SUCCESS) code = MPI_Bcast(boundaries.data(), length, MPI_INT, 0, world.overlapped);
  if (Error error = MpiError(code, "MPI_Bcast", place())) return error;
  transfers_ = layout.TransfersOf(boundaries);
  return Error();
}

BucketTuner& BucketTuners::For(const Layout& layout) {
  ++uses_;
  const auto found = tuners_.find(layout.key());
  if (found != tuners_.end()) {
    found->second.last_use = uses_;
    return found->second.tuner;
  }
  if (tuners_.size() == kMaxLayouts) {
    const auto is_older = [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; };
    tuners_.erase(std::min_element(tuners_.begin(), tuners_.end(), is_older));
  }
  return tuners_.emplace(layout.key(), Used{BucketTuner(layout), uses_}).first->second.tuner;
}

}  // namespace matex
