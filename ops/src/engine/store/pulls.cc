#include "engine/store/pulls.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/base/thread_priority.h"
#include "engine/mpi/failure.h"
#include "engine/mpi/sleeping_wait.h"
#include "engine/sequence/trace.h"
#include "engine/sequence/wait_state.h"
#include "engine/sums/allreduce.h"
#include "engine/sums/world.h"
#include "engine/update/async_reduction.h"
#include "engine/update/transfer.h"

namespace matex {
namespace {

constexpr std::chrono::milliseconds kLook(1);

struct Job {
  Shared shared;
  Later later;
  int64_t number;             // counted from 1, as on all ranks
  std::vector<size_t> left;   // of each variable, in how many messages it is still to come
  std::vector<void*> wholes;  // where it lies; empty until the job has begun
  size_t next = 0;            // the next message

  const Step& Message() const { return (*shared.messages)[next]; }
};

class PullThread {
 public:
  void Add(const Shared& shared, Later later) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
    jobs_.push_back({shared, std::move(later), ++added_, std::vector<size_t>(shared.layout->entries().size(), 0), {}});
    for (const Step& step : *shared.messages) {
      for (const Piece& piece : step.pieces) ++jobs_.back().left[piece.entry];
    }
    changed_.notify_all();
  }

  void Finish() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return jobs_.empty(); });
  }

 private:
  void Run() {
    WakePromptly();
    SetLane(Lane::kPulls);
    const World& world = TheWorld();
    // Halves of sums need no trial.
    const Algorithm algorithm = world.algorithm == Algorithm::kAuto ? Algorithm::kTwoLevel : world.algorithm;
    Adder adder(world.pulls, algorithm, world.node, true);
    for (;;) {
      std::vector<Job*> here;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return !jobs_.empty(); });
        for (Job& job : jobs_) here.push_back(&job);  // a deque leaves them where they are
      }
      for (Job* const job : here) Begin(job);
      Job* const job = Choose(here);
      if (job == nullptr) continue;
      Send(job, &adder);
      if (job->next < job->shared.messages->size()) continue;
      std::lock_guard<std::mutex> lock(mutex_);
      jobs_.erase(std::find_if(jobs_.begin(), jobs_.end(), [job](const Job& one) { return &one == job; }));
      changed_.notify_all();
    }
  }

  static void Begin(Job* job) {
    if (!job->wholes.empty()) return;
    job->wholes = job->later.begin();
    for (size_t i = 0; i < job->left.size(); ++i) {
      if (job->left[i] == 0) job->later.came(static_cast<int>(i), BrokenJobs());
    }
  }

  // Of the jobs that all ranks have the one whose variables are needed first. A rank asks only if it has a job that is not
  // done, and all add the same ones: so there is one that all have. None while gradients travel between any of them: no
  // rank can begin its next step before all of those have come.
  static Job* Choose(const std::vector<Job*>& here) {
    while (GradientsTravel()) std::this_thread::sleep_for(kLook);
    int64_t known = GradientsTravel() ? 0 : here.back()->number;
    if (!BrokenJobs()) {
      const std::function<std::string()> what = [&] { return "agreeing on which new weights come next"; };
      const Waits waits(Waiter::kPulls, &what);
      MPI_Request request;
      int code = MPI_Iallreduce(MPI_IN_PLACE, &known, 1, MPI_INT64_T, MPI_MIN, TheWorld().pulls, &request);
      if (code == MPI_SUCCESS) code = Await(&request);
      if (code != MPI_SUCCESS) BreakJobs(MpiError(code, "MPI_Iallreduce", what()));
    }
    if (known == 0) return nullptr;
    Job* chosen = here.front();
    for (Job* const job : here) {
      if (job->number <= known && job->shared.place < chosen->shared.place) chosen = job;
    }
    return chosen;
  }

  void Send(Job* job, Adder* adder) {
    if (job->shared.messages->empty()) return;
    const Step& step = job->Message();
    Error error = BrokenJobs();
    if (!error) {
      const std::function<std::string()> what = [&] { return "pulling the new " + step.name; };
      const Waits waits(Waiter::kPulls, &what);
      const Span span(Activity::kPull, &step.name, step.count * job->shared.Width());
      const Gather gather = [adder](const Step& one, void* data) { return adder->Gather(one, data); };
      const int code = GatherStep(step, job->wholes.data(), &buffer_, gather);
      if (code != MPI_SUCCESS) error = BreakJobs(MpiError(code, "the exchange of new weights", what()));
    }
    for (const Piece& piece : step.pieces) {
      if (--job->left[piece.entry] == 0) job->later.came(piece.entry, error);
    }
    ++job->next;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // not done
  int64_t added_ = 0;
  std::thread thread_;
  std::vector<char> buffer_;
};

PullThread& ThePulls() {
  // Never destroyed: it waits for jobs until the process ends.
  static PullThread* const thread = new PullThread;
  return *thread;
}

}  // namespace

void AddPull(const Shared& shared, Later later) { ThePulls().Add(shared, std::move(later)); }

void FinishPulls() { ThePulls().Finish(); }

}  // namespace matex
