// Chooses buckets: the gradients that travel in one message, from the times when gradients are ready and the cost of
// a transfer. bucket_tuner.cc calls it with measurements; Python's planner has the same algorithm.
#pragma once

#include <vector>

namespace matex {

// The cost of a transfer of b bytes in seconds: start_up + b * byte.
struct Link {
  double start_up = 0;     // seconds
  double byte = 0;         // seconds for each byte
  bool disturbed = false;  // the measurements vary too much to be used
};

// Boundaries of consecutive buckets: bucket k holds gradients boundaries[k] up to boundaries[k + 1], exclusive. The
// first boundary is 0, the last the number of gradients. `ready`: when each gradient is ready, in seconds from the
// start of the step, in the order of transfer; `bytes`: their sizes. The transfers run one after another, each after
// its last gradient is ready, and end as early as possible. iBatch (Wang, Pi and Zhou, AAAI 2019) solves the same
// problem by two greedy passes, which come near the best plan. A model has few gradients, so dynamic programming finds
// the best plan in milliseconds.
std::vector<int> ChooseBuckets(const std::vector<double>& ready, const std::vector<double>& bytes, const Link& link);

// When the transfers of these buckets end.
double EndOf(const std::vector<int>& boundaries, const std::vector<double>& ready, const std::vector<double>& bytes,
             const Link& link);

}  // namespace matex
