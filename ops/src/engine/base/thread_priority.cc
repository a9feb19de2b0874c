// Sets the time slice of a thread by Linux's system call sched_setattr.
#include "engine/base/thread_priority.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace matex {
namespace {

// Linux's sched_attr, which older C libraries do not declare.
struct Attributes {
  uint32_t size;
  uint32_t policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime;  // nanoseconds; with SCHED_OTHER: the thread's time slice
  uint64_t deadline;
  uint64_t period;
};

constexpr uint64_t kTimeSlice = 100'000;  // nanoseconds

}  // namespace

void WakePromptly() {
  Attributes attributes{};
  attributes.size = sizeof attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  // With other policies `runtime` has another meaning, or none.
  if (attributes.policy != SCHED_OTHER && attributes.policy != SCHED_BATCH) return;
  attributes.runtime = kTimeSlice;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace matex
