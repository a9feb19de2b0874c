// A job is one publication: new values of some variables, sent in messages. A rank adds its jobs at its own time, but
// all ranks must send the same messages in the same order. So before each message the pull threads of all ranks agree
// which job is the next: the most urgent of the jobs that all ranks have.
#include "engine/store/pulls.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/base/immortal.h"
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

constexpr std::chrono::milliseconds kPollInterval(1);
constexpr char kAgreeing[] = "agreeing on which new weights come next";

struct Job {
  // publish.h: the pieces of the variables, the messages that send them, and `needed`, when a step needs the variables.
  DividedVariables variables;
  // What to call (publish.h): `begin` gives the addresses of the variables; `end` reports a variable that is complete,
  // or has failed.
  Later later;
  int64_t number;                     // from 1, equal on all ranks
  std::vector<size_t> messages_left;  // for each variable: the number of its messages that are not sent yet
  std::vector<void*> wholes;          // the addresses of the variables; empty until `Begin`
  size_t next = 0;                    // the index of the next message

  const Transfer& Message() const { return (*variables.messages)[next]; }
};

class PullThread {
 public:
  void Add(const DividedVariables& variables, Later later) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
    std::vector<size_t> messages_left(variables.layout->entries().size(), 0);
    for (const Transfer& transfer : *variables.messages) {
      for (const Fragment& fragment : transfer.fragments) ++messages_left[fragment.entry];
    }
    jobs_.push_back({variables, std::move(later), ++added_, std::move(messages_left), /*wholes=*/{}});
    changed_.notify_all();
  }

  void Finish() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return jobs_.empty(); });
  }

 private:
  // The thread: sends one message in each round.
  void Run() {
    WakePromptly();
    SetLane(Lane::kPulls);
    const World& world = TheWorld();
    // kAuto would choose the algorithm of a sum by a trial; an all-gather needs none.
    const Algorithm algorithm = world.algorithm == Algorithm::kAuto ? Algorithm::kTwoLevel : world.algorithm;
    Adder adder(world.pulls, algorithm, world.node, /*asleep=*/true);
    for (;;) {
      std::vector<Job*> jobs;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return !jobs_.empty(); });
        for (Job& job : jobs_) jobs.push_back(&job);  // a deque does not move its elements
      }
      for (Job* const job : jobs) Begin(job);
      Job* const job = Choose(jobs);
      if (job == nullptr) continue;
      const bool is_last = job->next + 1 >= job->variables.messages->size();
      // While this message is sent, ranks already agree on the job of the next message. They do so only if all of them
      // know that there is a next message: in this job, or in another job that all ranks have. On every rank `Ask`
      // comes before `Send`, because both may make collective calls, which all ranks must make in the same order.
      const auto is_other_common = [&](const Job* one) { return one != job && one->number <= last_common_; };
      if (!is_last || std::any_of(jobs.begin(), jobs.end(), is_other_common)) Ask(jobs);
      Send(job, &adder);
      if (!is_last) continue;
      std::lock_guard<std::mutex> lock(mutex_);
      jobs_.erase(std::find_if(jobs_.begin(), jobs_.end(), [job](const Job& one) { return &one == job; }));
      changed_.notify_all();
    }
  }

  // Calls `begin` of a new job. Variables without messages are complete at once.
  static void Begin(Job* job) {
    if (!job->wholes.empty()) return;
    job->wholes = job->later.begin();
    for (size_t i = 0; i < job->messages_left.size(); ++i) {
      if (job->messages_left[i] == 0) job->later.end(static_cast<int>(i), BrokenJobs());
    }
  }

  // Starts the agreement on the last job that all ranks have: the minimum over ranks of the number of each rank's last
  // job. A rank reports 0 while gradients travel: they go first, because no rank can begin its next step without them.
  // A rank asks only if it has an unfinished job, and all ranks add and finish the same jobs in the same order. So the
  // minimum is the number of an unfinished job, or 0.
  void Ask(const std::vector<Job*>& jobs) {
    last_common_ = GradientsTravel() ? 0 : jobs.back()->number;
    is_asked_ = true;
    if (BrokenJobs()) return;
    const int code = MPI_Iallreduce(MPI_IN_PLACE, &last_common_, 1, MPI_INT64_T, MPI_MIN, TheWorld().pulls, &answer_);
    if (code != MPI_SUCCESS) BreakJobs(MpiError(code, "MPI_Iallreduce", kAgreeing));
  }

  // The job whose variables a step needs first (the lowest `needed`), among the jobs that all ranks have; null while
  // gradients travel on any rank. Asks if the agreement is not under way, and waits for the answer.
  Job* Choose(const std::vector<Job*>& jobs) {
    if (!is_asked_) {
      while (GradientsTravel()) std::this_thread::sleep_for(kPollInterval);
      Ask(jobs);
    }
    is_asked_ = false;
    if (!BrokenJobs()) {
      const NotedWait wait(Waiter::kPulls, [] { return std::string(kAgreeing); });
      const int code = Await(&answer_);
      if (code != MPI_SUCCESS) BreakJobs(MpiError(code, "MPI_Iallreduce", kAgreeing));
    }
    if (last_common_ == 0) return nullptr;
    Job* chosen = jobs.front();  // the job with the lowest number, so all ranks have it
    for (Job* const job : jobs) {
      if (job->number <= last_common_ && job->variables.needed < chosen->variables.needed) chosen = job;
    }
    return chosen;
  }

  // Sends the next message of a job, and reports the variables that are complete after it. After an error it sends
  // nothing, and reports the error instead.
  void Send(Job* job, Adder* adder) {
    if (job->variables.messages->empty()) return;
    const Transfer& transfer = job->Message();
    Error error = BrokenJobs();
    if (!error) {
      const auto place = [&] { return "pulling the new " + transfer.name; };
      const NotedWait wait(Waiter::kPulls, place);
      const Span span(Activity::kPull, &transfer.name, transfer.count * job->variables.Width());
      const Gather gather = [adder](const Transfer& one, void* data) { return adder->Gather(one, data); };
      const int code = GatherTransfer(transfer, job->wholes.data(), &buffer_, gather);
      if (code != MPI_SUCCESS) error = BreakJobs(MpiError(code, "the exchange of new weights", place()));
    }
    for (const Fragment& fragment : transfer.fragments) {
      if (--job->messages_left[fragment.entry] == 0) job->later.end(fragment.entry, error);
    }
    ++job->next;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // unfinished
  int64_t added_ = 0;     // the number of the last job added
  MPI_Request answer_ = MPI_REQUEST_NULL;  // of the agreement (`Ask`) under way
  int64_t last_common_ = 0;  // after the agreement: the last job that all ranks have; 0 while gradients travel
  bool is_asked_ = false;    // whether an agreement is under way
  std::thread thread_;
  std::vector<char> buffer_;
};

PullThread& ThePulls() { return Immortal<PullThread>(); }

}  // namespace

void AddPull(const DividedVariables& variables, Later later) { ThePulls().Add(variables, std::move(later)); }

void FinishPulls() { ThePulls().Finish(); }

}  // namespace matex
