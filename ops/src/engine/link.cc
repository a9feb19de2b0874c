#include "link.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "world.h"

namespace matex {
namespace {

using Clock = std::chrono::steady_clock;

// Elements that are sent, and how often.
constexpr int kSmall = 256, kLarge = 256 << 10, kProbes = 5;

}  // namespace

Error ProbeLink(Adder& adder, MPI_Comm communicator, Link* link) {
  const auto place = [] { return std::string("the probe of what a transfer costs"); };
  std::vector<float> data(kLarge, 0.0f);
  std::vector<double> medians;
  for (int count : {kSmall, kLarge}) {
    std::vector<double> seconds;
    for (int probe = 0; probe < kProbes; ++probe) {
      if (Error error = MpiError(MPI_Barrier(communicator), "MPI_Barrier", place())) return error;
      const Clock::time_point start = Clock::now();
      if (Error error = adder.Sum(data.data(), count, Type::kFloat32, place)) return error;
      seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    std::nth_element(seconds.begin(), seconds.begin() + kProbes / 2, seconds.end());
    medians.push_back(seconds[kProbes / 2]);
  }
  const int code = MPI_Allreduce(MPI_IN_PLACE, medians.data(), 2, MPI_DOUBLE, MPI_MAX, communicator);
  if (Error error = MpiError(code, "MPI_Allreduce", place())) return error;
  *link = {medians[0], std::max(medians[1] - medians[0], 0.0) / ((kLarge - kSmall) * sizeof(float))};
  return Error();
}

}  // namespace matex
