// The order of collectives in a graph that has none: a v1 graph runs independent ops in any order, a different one on
// each rank. Its ops carry turns; those that come early wait here, without a thread, until it is theirs.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "engine/base/error.h"

namespace matex {

// A collective that can be put off: `run` does it, `done` tells that it is over, `drop` is called instead of both if
// it never will be.
struct Job {
  std::function<void()> run;
  std::function<void()> done;
  std::function<void(const Error&)> drop;
};

class Turnstile {
 public:
  // The turns of the run about to start, in order; drops whatever still waits for those of the run before.
  void Expect(std::vector<int64_t> turns);

  // A ticket for one job, by which it can be cancelled at any time from now on.
  int64_t Reserve();

  // Does the job now if its turn is at the head or is not among those expected; else keeps it for whoever ends the
  // turn before it. Drops it if its ticket has been cancelled.
  void Enter(int64_t ticket, int64_t turn, Job job);

  // Drops the job of this ticket if it waits or is still to come.
  void Cancel(int64_t ticket, const Error& error);

 private:
  // A reserved ticket, without a job until that enters.
  struct Waiting {
    int64_t turn = -1;
    Job job;
  };

  // Takes the waiting job whose turn is at the head; false if it has not come yet.
  bool TakeHead(Job* job);

  std::mutex mutex_;
  std::deque<int64_t> turns_;
  std::map<int64_t, Waiting> waiting_;  // by ticket
  int64_t tickets_ = 0;
};

Turnstile& TheTurnstile();

}  // namespace matex
