// Scheduling of communication threads, which mostly sleep, beside threads that compute. The overlapped thread and the
// pull thread call it when they start. Their share of the core does not change.
#pragma once

namespace matex {

// Shortens the calling thread's time slice, so that after waking it soon gets its core from a thread that computes.
// For threads that run only for moments. Linux before 6.12 ignores it.
void WakePromptly();

}  // namespace matex
