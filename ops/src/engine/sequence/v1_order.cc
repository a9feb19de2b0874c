// Runs the collectives of a v1 graph in the order of their turns (v1_order.h). The functions of a job: `run` executes
// the collective; `done` reports its end to TensorFlow; `drop` reports an error instead, if the job never runs.
#include "engine/sequence/v1_order.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/base/immortal.h"

namespace matex {

Turnstile& TheTurnstile() { return Immortal<Turnstile>(); }

void Turnstile::Expect(std::vector<int64_t> turns) {
  std::vector<Job> dropped;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    turns_.assign(turns.begin(), turns.end());
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      const bool has_entered = static_cast<bool>(at->second.job.run);  // else the id is only reserved
      if (has_entered) dropped.push_back(std::move(at->second.job));
      at = has_entered ? waiting_.erase(at) : std::next(at);
    }
  }
  for (Job& job : dropped) job.drop(Error("a collective was still waiting for its turn when its run ended."));
}

int64_t Turnstile::Reserve() {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.emplace(++last_id_, Waiting());
  return last_id_;
}

void Turnstile::Enter(int64_t id, int64_t turn, Job job) {
  bool is_cancelled = false;
  bool is_expected = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto mine = waiting_.find(id);
    is_cancelled = mine == waiting_.end();  // `Cancel` has removed the id
    is_expected = std::find(turns_.begin(), turns_.end(), turn) != turns_.end();
    const bool must_wait = is_expected && turns_.front() != turn;
    if (!is_cancelled && must_wait) {
      mine->second = Waiting{turn, std::move(job)};
      return;
    }
    if (!is_cancelled) waiting_.erase(mine);
  }
  if (is_cancelled) return job.drop(Error("the run was cancelled before the turn of a collective."));
  // Runs this job, and then the waiting jobs whose turns follow directly.
  for (bool has_job = true; has_job;) {
    job.run();
    // The turn is removed before `done`. With `done` of the last turn the run ends, and the next run may call `Expect`.
    Job next;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (is_expected && !turns_.empty() && turns_.front() == turn) turns_.pop_front();
      has_job = is_expected && RemoveHead(&next);
      if (has_job) turn = turns_.front();
    }
    job.done();
    job = std::move(next);
  }
}

void Turnstile::Cancel(int64_t id, const Error& error) {
  Job job;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = waiting_.find(id);
    if (found == waiting_.end()) return;
    job = std::move(found->second.job);
    waiting_.erase(found);
  }
  if (job.drop) job.drop(error);
}

bool Turnstile::RemoveHead(Job* job) {
  if (turns_.empty()) return false;
  for (auto at = waiting_.begin(); at != waiting_.end(); ++at) {
    if (!at->second.job.run || at->second.turn != turns_.front()) continue;
    *job = std::move(at->second.job);
    waiting_.erase(at);
    return true;
  }
  return false;
}

}  // namespace matex
