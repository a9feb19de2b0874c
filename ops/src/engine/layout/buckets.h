// Chooses buckets, which are groups of consecutive gradients that travel in one message, by the times when gradients
// are ready and the cost of a message. bucket_tuner.cc calls it; Python's planner has the same algorithm.
#pragma once

#include <vector>

namespace matex {

// The cost of a message of b bytes in seconds: start_up + b * byte.
struct Link {
  double start_up = 0;     // seconds
  double byte = 0;         // seconds for each byte
  bool disturbed = false;  // the measurements vary too much to be used
};

// Boundaries of consecutive buckets: bucket k holds gradients boundaries[k] up to boundaries[k + 1], exclusive. The
// first boundary is 0, the last the number of gradients. `ready`: when each gradient is ready, in seconds from the
// start of the step, in the order of transfer; `bytes`: the sizes of the gradients. Transfers run one after another,
// each after the last of its gradients is ready; the chosen buckets let the last transfer end as early as possible.
// iBatch (Wang, Pi and Zhou, AAAI 2019) solves the same problem by two greedy passes, which come near the best plan. A
// model has few gradients, so dynamic programming finds the best plan in milliseconds.
std::vector<int> ChooseBuckets(const std::vector<double>& ready, const std::vector<double>& bytes, const Link& link);

// When the last transfer of these buckets ends, in seconds from the start of the step.
double EndOf(const std::vector<int>& boundaries, const std::vector<double>& ready, const std::vector<double>& bytes,
             const Link& link);

}  // namespace matex
