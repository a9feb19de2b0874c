// Measures what a transfer between ranks costs, by small and large sums. The median time of the small sums is the
// start-up time. The difference of the two medians, divided by the difference in bytes, is the time per byte.
#include "engine/update/link_probe.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/immortal.h"
#include "engine/sums/world.h"

namespace matex {
namespace {

using Clock = std::chrono::steady_clock;

// The elements of a small and of a large probe, and the number of probes of each.
constexpr int kSmall = 256, kLarge = 256 << 10, kProbes = 7;
// A measurement is disturbed if its slowest large probe but one took kMaxSpread times as long as its fastest but one.
constexpr double kMaxSpread = 4;

// The last probe, noted by NoteLink.
struct LastProbe {
  std::mutex mutex;
  std::optional<Link> link;
};

double CpuSeconds() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  return used.ru_utime.tv_sec + used.ru_stime.tv_sec + 1e-6 * (used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

Error ProbeOnce(Adder& adder, MPI_Comm communicator, Link* link) {
  const auto place = [] { return std::string("the measurement of a transfer"); };
  std::vector<float> data(kLarge, 0.0f);
  enum { kSmallMedian, kLargeMedian, kSpread, kResults };
  double results[kResults] = {};  // seconds, seconds, and the ratio of slow to fast large probes
  for (const int kind : {kSmallMedian, kLargeMedian}) {
    std::vector<double> seconds;
    for (int probe = 0; probe < kProbes; ++probe) {
      if (Error error = MpiError(MPI_Barrier(communicator), "MPI_Barrier", place())) return error;
      const Clock::time_point start = Clock::now();
      const int count = kind == kSmallMedian ? kSmall : kLarge;
      if (Error error = adder.Sum(data.data(), count, Type::kFloat32, place)) return error;
      seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    std::sort(seconds.begin(), seconds.end());
    results[kind] = seconds[kProbes / 2];
    results[kSpread] = seconds[kProbes - 2] / std::max(seconds[1], 1e-9);  // of the large probes, which come last
  }
  // The slowest rank counts, so that all ranks get the same result.
  const int code = MPI_Allreduce(MPI_IN_PLACE, results, kResults, MPI_DOUBLE, MPI_MAX, communicator);
  if (Error error = MpiError(code, "MPI_Allreduce", place())) return error;
  link->start_up = results[kSmallMedian];
  link->byte = std::max(results[kLargeMedian] - results[kSmallMedian], 0.0) / ((kLarge - kSmall) * sizeof(float));
  link->disturbed = link->byte <= 0 || results[kSpread] > kMaxSpread;
  return Error();
}

}  // namespace

Error ProbeLink(Adder& adder, MPI_Comm communicator, int trials, Link* link) {
  do {
    if (Error error = ProbeOnce(adder, communicator, link)) return error;
  } while (link->disturbed && --trials > 0);
  NoteLink(*link);
  return Error();
}

Error TimeSums(Adder& adder, MPI_Comm communicator, int64_t bytes, int probes, double* seconds, double* cpu) {
  const auto place = [] { return std::string("the measurement of a link"); };
  const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
  const int64_t chunk = TheWorld().chunk_bytes / static_cast<int64_t>(sizeof(float));
  std::vector<float> data(count, 0.0f);
  const double before = CpuSeconds();
  for (int probe = 0; probe < probes; ++probe) {
    if (Error error = MpiError(MPI_Barrier(communicator), "MPI_Barrier", place())) return error;
    const Clock::time_point start = Clock::now();
    for (int64_t first = 0; first < count; first += chunk) {
      const int64_t length = std::min(chunk, count - first);
      if (Error error = adder.Sum(data.data() + first, length, Type::kFloat32, place)) return error;
    }
    seconds[probe] = std::chrono::duration<double>(Clock::now() - start).count();
  }
  *cpu = CpuSeconds() - before;
  const int code = MPI_Allreduce(MPI_IN_PLACE, seconds, probes, MPI_DOUBLE, MPI_MAX, communicator);
  return MpiError(code, "MPI_Allreduce", place());
}

bool LastLink(Link* link) {
  LastProbe& last = Immortal<LastProbe>();
  std::lock_guard<std::mutex> lock(last.mutex);
  *link = last.link.value_or(Link());
  return last.link.has_value();
}

void NoteLink(const Link& link) {
  LastProbe& last = Immortal<LastProbe>();
  std::lock_guard<std::mutex> lock(last.mutex);
  last.link = link;
}

}  // namespace matex
