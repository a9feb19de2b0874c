#include "sum.h"

#include <algorithm>
#include <chrono>

#include "await.h"
#include "reduce_ops.h"
#include "ring.h"
#include "world.h"

namespace matex {
namespace {

// Below this a ring's many messages cost more than they save.
constexpr int64_t kRingBytes = 64 << 10;
// What both are tried on, and how much faster the ring must be: MPI's own suits more cases.
constexpr int64_t kTrialCount = 1 << 20;
constexpr int kTrials = 2;
constexpr double kGain = 0.95;

}  // namespace

Adder::Adder(MPI_Comm communicator, Algorithm algorithm, bool several_hosts, bool asleep)
    : communicator_(communicator), algorithm_(algorithm), asleep_(asleep) {
  int size = 1;
  MPI_Comm_size(communicator, &size);
  if (algorithm_ == Algorithm::kAuto && (!several_hosts || size < 3)) algorithm_ = Algorithm::kMpi;
}

Error Adder::Sum(void* data, int64_t count, Type type, const std::function<std::string()>& place) {
  const bool is_large = count * static_cast<int64_t>(SizeOf(type)) >= kRingBytes;
  if (is_large && algorithm_ == Algorithm::kAuto) {
    if (Error error = MpiError(Choose(), "the trial of algorithms", place())) return error;
  }
  const bool ring = is_large && algorithm_ == Algorithm::kRing;
  const int code = Run(ring ? Algorithm::kRing : Algorithm::kMpi, data, count, type);
  return code == MPI_SUCCESS ? Error() : MpiError(code, ring ? "the ring" : "MPI_Allreduce", place());
}

int Adder::Run(Algorithm algorithm, void* data, int64_t count, Type type) {
  if (algorithm == Algorithm::kRing) return RingSum(communicator_, data, count, type, asleep_, &buffer_);
  const MPI_Op op = MpiOp(type, Reduction::kSum);
  if (!asleep_) {
    return MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MpiType(type), op, communicator_);
  }
  MPI_Request request;
  const int code =
      MPI_Iallreduce(MPI_IN_PLACE, data, static_cast<int>(count), MpiType(type), op, communicator_, &request);
  return code == MPI_SUCCESS ? Await(&request) : code;
}

// Collective: all ranks come to their first large sum together.
int Adder::Choose() {
  std::vector<float> data(kTrialCount, 0.0f);
  double seconds[2] = {1e9, 1e9};
  const Algorithm tried[2] = {Algorithm::kMpi, Algorithm::kRing};
  for (int trial = 0; trial < kTrials; ++trial) {
    for (int i = 0; i < 2; ++i) {
      if (const int code = MPI_Barrier(communicator_)) return code;
      const auto start = std::chrono::steady_clock::now();
      if (const int code = Run(tried[i], data.data(), kTrialCount, Type::kFloat32)) return code;
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      seconds[i] = std::min(seconds[i], took.count());
    }
  }
  if (const int code = MPI_Allreduce(MPI_IN_PLACE, seconds, 2, MPI_DOUBLE, MPI_MAX, communicator_)) return code;
  algorithm_ = seconds[1] < kGain * seconds[0] ? Algorithm::kRing : Algorithm::kMpi;
  return MPI_SUCCESS;
}

Adder& InlineAdder() {
  const World& world = TheWorld();
  static Adder* const adder = new Adder(world.gradients, world.algorithm, world.several_hosts, false);
  return *adder;
}

Adder& OverlappedAdder() {
  const World& world = TheWorld();
  static Adder* const adder = new Adder(world.overlapped, world.algorithm, world.several_hosts, true);
  return *adder;
}

}  // namespace matex
