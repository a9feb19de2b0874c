// Scheduling of communication threads, which mostly sleep, on cores where other threads compute. The overlapped thread
// and the pull thread call it when they start. Their share of the core does not change.
#pragma once

namespace matex {

// Shortens the calling thread's time slice. Linux then soon gives it the core when it wakes up, although another thread
// computes there. Only for threads that run for moments. Linux before 6.12 ignores it.
void WakePromptly();

}  // namespace matex
