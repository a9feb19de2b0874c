// An Adder sums a buffer over ranks by one of four algorithms (allreduce.h). `Prepare` makes its communicators and
// memory before the first sum. If several algorithms are possible, `Choose` times them. `Run` sums by one algorithm.
#include "engine/sums/allreduce.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "engine/mpi/mpi_calls.h"
#include "engine/sums/compressed_allreduce.h"
#include "engine/base/reduce_ops.h"
#include "engine/sums/ring.h"

namespace matex {
namespace {

// Smaller buffers are summed by MPI_Allreduce, if not in shared memory: the many messages of a ring, or the three calls
// of two levels, would cost more than one call.
constexpr int64_t kLargeBytes = 64 << 10;
// A trial sums kTrialCount floats kTrials times with each algorithm. Another algorithm replaces MPI_Allreduce, which
// suits most cases, only if it takes less than kGain of the time.
constexpr int64_t kTrialCount = 4 << 20;
constexpr int kTrials = 2;
constexpr double kGain = 0.95;
// Up to so many ranks on a node, shared memory was at least as fast as MPI in all measurements. Above, a trial decides.
constexpr int kMaxRanksWithoutTrial = 8;

// The ranges of single gradients within elements [first, first + count) of a transfer, as offsets from `first`.
std::vector<Extent> ExtentsOf(const Transfer& transfer, int64_t first, int64_t count) {
  std::vector<Extent> extents;
  InFragments(transfer, first, count, [&](const Fragment& part, int64_t begin) {
    extents.push_back({begin - first, begin - first + part.count});
  });
  return extents;
}

// Where each rank's own elements begin in the transfer, and where the last rank's end.
std::vector<int64_t> StartsOf(const Transfer& transfer) {
  std::vector<int64_t> starts{0};
  for (const int64_t owned : transfer.owned) starts.push_back(starts.back() + owned);
  return starts;
}

}  // namespace

const char* NameOf(Algorithm algorithm) {
  static const char* const names[] = {
      "the trial of sum algorithms", "MPI_Allreduce", "the ring all-reduce", "the two-level all-reduce",
      "the all-reduce in shared memory",
  };
  return names[static_cast<int>(algorithm)];
}

Adder::Adder(MPI_Comm communicator, Algorithm algorithm, int node, bool asleep)
    : communicator_(communicator), algorithm_(algorithm), node_(node), asleep_(asleep) {}

Error Adder::Sum(void* data, int64_t count, Type type, const std::function<std::string()>& place) {
  const int code = SumUncompressed(data, count, type);
  return code == MPI_SUCCESS ? Error() : MpiError(code, NameOf(algorithm_), place());
}

Error Adder::Sum(const Transfer& transfer, void* data, float* residual, const std::function<std::string()>& place) {
  if (!transfer.owned.empty()) return MpiError(ReduceScatter(transfer, data), "the reduce-scatter", place());
  if (!transfer.compressed) return Sum(data, transfer.count, transfer.type, place);
  const int code = SumCompressedTransfer(transfer, static_cast<float*>(data), residual);
  return code == MPI_SUCCESS ? Error() : MpiError(code, "the compressed all-reduce", place());
}

Error Adder::GetSharedMemory(SharedMemory** memory, const std::function<std::string()>& place) {
  const int code = Prepare();
  *memory = shared_.get();
  return code == MPI_SUCCESS ? Error() : MpiError(code, "the preparation of sums", place());
}

// The sum of an uncompressed buffer that all ranks need. 16-bit floats are summed as float32: they are converted here,
// or in shared memory by Add and AddAll (reduce_ops.h).
int Adder::SumUncompressed(void* data, int64_t count, Type type) {
  if (const int code = Prepare()) return code;
  if (algorithm_ == Algorithm::kShared) return Run(algorithm_, data, count, type);
  if (IsHalf(type)) {
    wide_.resize(count);
    Widen(type, data, wide_.data(), count);
    const int code = SumUncompressed(wide_.data(), count, Type::kFloat32);
    if (code == MPI_SUCCESS) Narrow(type, wide_.data(), data, count);
    return code;
  }
  const bool is_large = count * static_cast<int64_t>(SizeOf(type)) >= kLargeBytes;
  if (is_large && algorithm_ == Algorithm::kAuto) {
    if (const int code = Choose()) return code;
  }
  return Run(is_large ? algorithm_ : Algorithm::kMpi, data, count, type);
}

// Makes the communicators of two levels (within a node and between nodes) and the shared memory. Also chooses the
// algorithm, if it may be shared memory. Collective: all ranks begin their first sum together.
int Adder::Prepare() {
  if (is_prepared_) return MPI_SUCCESS;
  is_prepared_ = true;
  if (const int code = MakeLevels(communicator_, node_, &levels_)) return code;
  // A wait in shared memory polls, so shared memory is not used where waits must sleep.
  if (algorithm_ == Algorithm::kAuto && levels_.nodes == 1 && !asleep_) {
    if (const int code = SharedMemory::Make(communicator_, &shared_)) return code;
    if (shared_ != nullptr && Calls{communicator_, asleep_}.size() <= kMaxRanksWithoutTrial) {
      algorithm_ = Algorithm::kShared;
    } else if (shared_ != nullptr) {
      if (const int code = Choose()) return code;
      if (algorithm_ != Algorithm::kShared) shared_.reset();
    }
  }
  // In two levels, a carrier is a rank that sums a segment of the buffer over the nodes (hierarchical.h). It has an
  // Adder for this in the communicator `across`. A single node needs no such sum; there all ranks are carriers.
  if (levels_.across != MPI_COMM_NULL && levels_.carriers < Calls{communicator_, asleep_}.size()) {
    // In `across` each rank is a node of its own, so there are no two levels.
    const int node = Calls{levels_.across, asleep_}.rank();
    const Algorithm algorithm = algorithm_ == Algorithm::kTwoLevel ? Algorithm::kAuto : algorithm_;
    across_ = std::make_unique<Adder>(levels_.across, algorithm, node, asleep_);
  }
  return MPI_SUCCESS;
}

int Adder::Run(Algorithm algorithm, void* data, int64_t count, Type type) {
  switch (algorithm) {
    case Algorithm::kRing:
      return RingSum(communicator_, data, count, type, asleep_, &buffer_);
    case Algorithm::kTwoLevel:
      return SumInTwoLevels(
          levels_, data, count, type, asleep_, &segment_,
          [&](void* segment, int64_t, int64_t length) { return across_->SumUncompressed(segment, length, type); });
    case Algorithm::kShared:
      return SumShared(static_cast<char*>(data), count, type);
    default:
      return Calls{communicator_, asleep_}.Allreduce(data, count, type);
  }
}

int Adder::SumShared(char* data, int64_t count, Type type) {
  const int64_t size = static_cast<int64_t>(SizeOf(type));
  const auto produce = [&](char* to, int64_t first, int64_t length) {
    std::memcpy(to, data + first * size, length * size);
  };
  // The sums of elements [first, first + length) are one + other, or `one` if `other` is null.
  return shared_->Sum(type, count, produce, [&](const char* one, const char* other, int64_t first, int64_t length) {
    SharedMemory::Write(type, one, other, data + first * size, length);
  });
}

int Adder::SumCompressedTransfer(const Transfer& transfer, float* data, float* residual) {
  if (const int code = Prepare()) return code;
  const World& world = TheWorld();
  // Sums elements [first, first + count) of the transfer, which are at `numbers`. `residual` receives what compression
  // leaves out.
  const auto sum = [&](MPI_Comm communicator, int64_t first, int64_t count, float* numbers) {
    return SumCompressed({communicator, asleep_}, world.compression, ExtentsOf(transfer, first, count), count,
                         world.chunk_bytes, numbers, residual + first);
  };
  if (!world.compression.between_nodes) return sum(communicator_, 0, transfer.count, data);
  // Only the sums between nodes are compressed.
  std::fill_n(residual, transfer.count, 0.0f);  // a carrier then sets only the residuals of its segment
  return SumInTwoLevels(levels_, data, transfer.count, transfer.type, asleep_, &segment_,
                        [&](void* segment, int64_t first, int64_t count) {
                          return sum(levels_.across, first, count, static_cast<float*>(segment));
                        });
}

// The algorithm of a reduce-scatter or all-gather of `bytes` bytes: the algorithm that is fastest for sums. Two levels
// need the same number of ranks, more than one, on every node here; else the ring is used. Two levels also need the
// ranks' positions (hierarchical.h), which are made at the first use.
int Adder::ChooseForPieces(int64_t bytes, Algorithm* algorithm) {
  *algorithm = Algorithm::kMpi;
  if (bytes < kLargeBytes) return MPI_SUCCESS;
  if (const int code = Prepare()) return code;
  if (algorithm_ == Algorithm::kAuto) {
    if (const int code = Choose()) return code;
  }
  *algorithm = algorithm_;
  if (algorithm_ != Algorithm::kTwoLevel) return MPI_SUCCESS;
  const bool has_two_levels = levels_.equal_nodes && levels_.carriers > 1;
  if (!has_two_levels) *algorithm = Algorithm::kRing;
  return has_two_levels && levels_.positions.empty() ? MakePositions(communicator_, &levels_) : MPI_SUCCESS;
}

int Adder::ReduceScatter(const Transfer& transfer, void* data) {
  const std::vector<int64_t> starts = StartsOf(transfer);
  if (IsHalf(transfer.type)) {
    Transfer wide = transfer;
    wide.type = Type::kFloat32;
    std::vector<float> numbers(transfer.count);
    Widen(transfer.type, data, numbers.data(), transfer.count);
    const int code = ReduceScatter(wide, numbers.data());
    if (code == MPI_SUCCESS) Narrow(transfer.type, numbers.data(), data, transfer.count);
    return code;
  }
  const int64_t size = static_cast<int64_t>(SizeOf(transfer.type));
  Algorithm algorithm;
  if (const int code = ChooseForPieces(transfer.count * size, &algorithm)) return code;
  if (algorithm == Algorithm::kTwoLevel)
    return ReduceScatterInTwoLevels(levels_, data, starts, transfer.type, asleep_, &buffer_);
  if (algorithm == Algorithm::kRing)
    return RingReduceScatter(communicator_, data, starts, transfer.type, asleep_, &buffer_);
  const Calls calls{communicator_, asleep_};
  const std::vector<int> counts(transfer.owned.begin(), transfer.owned.end());
  const int64_t own = counts[calls.rank()] * size;
  buffer_.resize(std::max<size_t>(buffer_.size(), own));
  const int code = calls.ReduceScatter(data, buffer_.data(), counts.data(), transfer.type);
  if (own > 0) std::memcpy(static_cast<char*>(data) + starts[calls.rank()] * size, buffer_.data(), own);
  return code;
}

int Adder::Gather(const Transfer& transfer, void* data) {
  const std::vector<int64_t> starts = StartsOf(transfer);
  const int64_t size = static_cast<int64_t>(SizeOf(transfer.type));
  Algorithm algorithm;
  if (const int code = ChooseForPieces(transfer.count * size, &algorithm)) return code;
  if (algorithm == Algorithm::kTwoLevel)
    return AllgatherInTwoLevels(levels_, data, starts, transfer.type, asleep_, &buffer_);
  if (algorithm == Algorithm::kRing) return RingAllgather(communicator_, data, starts, transfer.type, asleep_);
  const std::vector<int> counts(transfer.owned.begin(), transfer.owned.end());
  const std::vector<int> firsts(starts.begin(), starts.end());
  return Calls{communicator_, asleep_}.Allgatherv(MPI_IN_PLACE, data, counts.data(), firsts.data(), transfer.type);
}

// Times the algorithms that are possible here and sets `algorithm_` to the fastest. Collective.
int Adder::Choose() {
  std::vector<Algorithm> candidates{Algorithm::kMpi};
  if (shared_ != nullptr) candidates.push_back(Algorithm::kShared);
  if (levels_.nodes > 1) {
    candidates.push_back(Algorithm::kRing);
    if (levels_.carriers > 1) candidates.push_back(Algorithm::kTwoLevel);
  }
  algorithm_ = Algorithm::kMpi;
  if (candidates.size() == 1) return MPI_SUCCESS;
  // The trial sums chunks as large as those of gradients: an algorithm may be fast in one large call only.
  const int64_t chunk = TheWorld().chunk_bytes / static_cast<int64_t>(sizeof(float));
  std::vector<float> data(kTrialCount, 0.0f);
  std::vector<double> seconds(candidates.size(), 1e9);
  for (int trial = 0; trial < kTrials; ++trial) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (const int code = MPI_Barrier(communicator_)) return code;
      const auto start = std::chrono::steady_clock::now();
      for (int64_t first = 0; first < kTrialCount; first += chunk) {
        const int64_t count = std::min(chunk, kTrialCount - first);
        if (const int code = Run(candidates[i], data.data() + first, count, Type::kFloat32)) return code;
      }
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      seconds[i] = std::min(seconds[i], elapsed.count());
    }
  }
  // The slowest rank counts, so that all ranks choose the same algorithm.
  const int count = static_cast<int>(seconds.size());
  if (const int code = MPI_Allreduce(MPI_IN_PLACE, seconds.data(), count, MPI_DOUBLE, MPI_MAX, communicator_))
    return code;
  const auto best = std::min_element(seconds.begin(), seconds.end());
  if (*best < kGain * seconds[0]) algorithm_ = candidates[best - seconds.begin()];
  return MPI_SUCCESS;
}

namespace {

// Not destroyed when the process ends: threads of TensorFlow may still be in a sum.
Adder* adders[2] = {nullptr, nullptr};  // of the inline and of the overlapped reduction

Adder& GetOrMake(bool overlapped) {
  const World& world = TheWorld();
  Adder*& adder = adders[overlapped];
  if (adder == nullptr) {
    // The thread of overlapped sums sleeps while it waits, because the other threads then compute.
    adder = new Adder(overlapped ? world.overlapped : world.gradients, world.algorithm, world.node, overlapped);
  }
  return *adder;
}

}  // namespace

Adder& InlineAdder() { return GetOrMake(false); }

Adder& OverlappedAdder() { return GetOrMake(true); }

void ForgetAdders() {
  for (Adder*& adder : adders) {
    delete adder;
    adder = nullptr;
  }
}

}  // namespace matex
