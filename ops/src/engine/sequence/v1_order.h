// The order of collectives in a v1 graph. TensorFlow runs the independent ops of such a graph in any order, different
// on each rank; collectives need one order on all ranks. So each collective op has a number, its turn. `Expect` lists
// the turns of a run in order; the head is the first turn of the list that has not run. The kernels call `Enter` with a
// job; a job whose turn is not the head waits in the Turnstile without occupying a thread.
//
// Example: turns 7, 8, 9 are expected. Job 9 enters and waits. Job 7 enters and runs; the head is 8. Job 8 enters and
// runs, and its thread then runs job 9.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "engine/base/error.h"

namespace matex {

// A collective that can wait: `run` executes it, `done` reports its end; `drop` replaces both if it never runs.
struct Job {
  std::function<void()> run;
  std::function<void()> done;
  std::function<void(const Error&)> drop;
};

// The jobs that wait for their turns. A ticket is the number of a job, by which it can be cancelled.
class Turnstile {
 public:
  // Sets the turns of the next run, in order, and drops all jobs that still wait for turns of the previous run.
  void Expect(std::vector<int64_t> turns);

  // Returns the ticket of a job, which enters later and can be cancelled from now on.
  int64_t Reserve();

  // Runs the job now if its turn is at the head or is not expected. Otherwise the thread that ends the preceding turn
  // runs it. Drops the job if its ticket was cancelled.
  void Enter(int64_t ticket, int64_t turn, Job job);

  // Drops the job of this ticket, whether it waits or has not entered yet.
  void Cancel(int64_t ticket, const Error& error);

 private:
  // A reserved ticket; it has no job before `Enter`.
  struct Waiting {
    int64_t turn = -1;  // -1: not known before `Enter`
    Job job;
  };

  // Takes the waiting job whose turn is at the head; false if it has not entered yet.
  bool TakeHead(Job* job);

  std::mutex mutex_;
  std::deque<int64_t> turns_;  // the turns that have not run; the first is the head
  std::map<int64_t, Waiting> waiting_;  // by ticket
  int64_t tickets_ = 0;  // the last ticket
};

Turnstile& TheTurnstile();

}  // namespace matex
