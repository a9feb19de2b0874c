// Which gradients travel together: chosen from when each is ready and what a transfer costs.
#pragma once

#include <vector>

namespace matex {

// What a transfer of b bytes takes: start_up + b * byte, in seconds.
struct Link {
  double start_up = 0;
  double byte = 0;
  bool disturbed = false;  // what was measured varies too much to be relied on
};

// Boundaries of consecutive buckets over gradients that are ready at `ready` seconds (each from the start of the step, in
// the order of their transfer, which is theirs of becoming ready) and have `bytes`: bucket k holds those from boundary k,
// exclusive, to boundary k + 1; the first boundary is 0, the last the number of gradients. The transfers, one after
// another, each not before its last gradient is ready, are then over as early as can be. The problem is that of iBatch
// (Wang, Pi and Zhou, AAAI 2019), whose two greedy passes are near the best plan; over so few gradients the best itself
// is found in no time, by dynamic programming over the last boundary.
std::vector<int> ChooseBuckets(const std::vector<double>& ready, const std::vector<double>& bytes, const Link& link);

// When the transfers of these buckets are over.
double EndOf(const std::vector<int>& boundaries, const std::vector<double>& ready, const std::vector<double>& bytes,
             const Link& link);

}  // namespace matex
