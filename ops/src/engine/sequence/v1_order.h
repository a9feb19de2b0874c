// The order of collectives in a v1 graph. TensorFlow runs the independent ops of such a graph in any order, different
// on each rank; collectives need one order on all ranks. So each collective op has a number, its turn. Before each run
// Python lists the turns of the run in the common order (`Expect`). The head is the first turn of the list that has not
// run. The kernel of an op calls `Enter` with its turn and a job, which executes the collective. A job whose turn is
// not the head waits in the Turnstile without occupying a thread.
//
// Example: turns 7, 8, 9 are expected. The job of turn 9 enters and waits. The job of turn 7 enters and runs; the head
// is 8. The job of turn 8 enters and runs, and its thread then runs the job of turn 9.
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

// The jobs that wait for their turns. Each job has an id of its own, because an op has one turn in all runs.
class Turnstile {
 public:
  // Sets the turns of the next run, in order, and drops all jobs that still wait for turns of the previous run.
  void Expect(std::vector<int64_t> turns);

  // Returns a new id, for a job that enters later and can be cancelled from now on.
  int64_t Reserve();

  // Runs the job now if its turn is the head or is not expected. Otherwise the thread that ends the preceding turn runs
  // it. Drops the job if its id was cancelled.
  void Enter(int64_t id, int64_t turn, Job job);

  // Drops the job of this id, whether it waits or has not entered yet.
  void Cancel(int64_t id, const Error& error);

 private:
  // A reserved id and, after `Enter`, its job.
  struct Waiting {
    int64_t turn = -1;  // -1: not known before `Enter`
    Job job;            // its functions are null before `Enter`
  };

  // Moves the waiting job of the head to `job`; false if that job has not entered yet.
  bool RemoveHead(Job* job);

  std::mutex mutex_;
  std::deque<int64_t> turns_;  // the turns that have not run; the first is the head
  std::map<int64_t, Waiting> waiting_;  // by id
  int64_t last_id_ = 0;
};

Turnstile& TheTurnstile();

}  // namespace matex
