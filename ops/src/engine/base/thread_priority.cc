#include "engine/base/thread_priority.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace matex {
namespace {

// What Linux calls sched_attr, which C libraries name only lately.
struct Attributes {
  uint32_t size;
  uint32_t policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime;  // nanoseconds; of a usual thread the slice in which it is given a core
  uint64_t deadline;
  uint64_t period;
};

constexpr uint64_t kShortest = 100'000;

}  // namespace

void WakePromptly() {
  Attributes attributes{};
  attributes.size = sizeof attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  // In other policies that number is a deadline's, or nothing.
  if (attributes.policy != SCHED_OTHER && attributes.policy != SCHED_BATCH) return;
  attributes.runtime = kShortest;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace matex
