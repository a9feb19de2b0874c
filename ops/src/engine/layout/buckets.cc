// Finds the best buckets, groups of consecutive gradients that are summed in one transfer each. A transfer begins when
// all its gradients are ready and the transfer before it has ended; it takes `link.start_up` seconds and `link.byte`
// seconds for each byte. The method is dynamic programming: for the first 1, 2, ... gradients, the best boundary before
// their last bucket, given the best buckets of the gradients before this boundary.
#include "engine/layout/buckets.h"

#include <algorithm>
#include <limits>

namespace matex {

std::vector<int> ChooseBuckets(const std::vector<double>& ready, const std::vector<double>& bytes, const Link& link) {
  const int count = static_cast<int>(ready.size());
  // For the first i gradients: the sum of their bytes, the time when all are ready, the earliest end of their
  // transfers, and the boundary before the last bucket.
  std::vector<double> sum(count + 1, 0), all_ready(count + 1, 0);
  std::vector<double> end(count + 1, std::numeric_limits<double>::infinity());
  std::vector<int> last_boundary(count + 1, 0);
  for (int i = 0; i < count; ++i) {
    sum[i + 1] = sum[i] + bytes[i];
    all_ready[i + 1] = std::max(all_ready[i], ready[i]);
  }
  end[0] = 0;
  for (int i = 1; i <= count; ++i) {
    for (int j = 0; j < i; ++j) {
      const double finish = std::max(end[j], all_ready[i]) + link.start_up + link.byte * (sum[i] - sum[j]);
      if (finish < end[i]) {
        end[i] = finish;
        last_boundary[i] = j;
      }
    }
  }
  std::vector<int> boundaries;
  for (int i = count; i > 0; i = last_boundary[i]) boundaries.push_back(i);
  boundaries.push_back(0);
  std::reverse(boundaries.begin(), boundaries.end());
  return boundaries;
}

double EndOf(const std::vector<int>& boundaries, const std::vector<double>& ready, const std::vector<double>& bytes,
             const Link& link) {
  double end = 0, all_ready = 0;
  for (size_t k = 0; k + 1 < boundaries.size(); ++k) {
    double sum = 0;
    for (int i = boundaries[k]; i < boundaries[k + 1]; ++i) {
      all_ready = std::max(all_ready, ready[i]);
      sum += bytes[i];
    }
    end = std::max(end, all_ready) + link.start_up + link.byte * sum;
  }
  return end;
}

}  // namespace matex
