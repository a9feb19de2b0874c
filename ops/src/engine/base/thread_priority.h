// How Linux shares a core between threads that compute and one that mostly sleeps.
#pragma once

namespace matex {

// From now on this thread, when it wakes, soon gets its core from one that computes, if it has used less of it. For a
// thread that is awake for moments only; its share of the core stays the same. Linux before 6.12 has no such wish, and
// does without.
void WakePromptly();

}  // namespace matex
