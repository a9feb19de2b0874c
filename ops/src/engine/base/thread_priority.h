// Scheduling of communication threads, which mostly sleep, on cores where other threads compute. The threads of
// async_reduction.cc and pulls.cc call it when they start. Their share of a core does not change.
#pragma once

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace matex {

// Shortens the calling thread's time slice. Linux then gives it the core soon after it wakes up, although another
// thread computes there. Only for threads that run for moments. Linux before 6.12 ignores the length of the slice.
inline void WakePromptly() {
  // Linux's sched_attr, which older C libraries do not declare.
  struct {
    uint32_t size;
    uint32_t policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime;  // nanoseconds; with SCHED_OTHER: the thread's time slice
    uint64_t deadline;
    uint64_t period;
  } attributes{};
  attributes.size = sizeof attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  // With other policies `runtime` has another meaning, or none.
  if (attributes.policy != SCHED_OTHER && attributes.policy != SCHED_BATCH) return;
  attributes.runtime = 100'000;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace matex
