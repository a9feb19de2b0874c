// Scheduling of communication threads, which mostly sleep, on cores where other threads compute. The threads of
// async_reduction.cc and pulls.cc call it when they start. Their share of a core does not change.
#pragma once

namespace matex {

// Shortens the calling thread's time slice. Linux then gives it the core soon after it wakes up, although another
// thread computes there. Only for threads that run for moments. Linux before 6.12 ignores the length of the slice.
void WakePromptly();

}  // namespace matex
