// Sums gradients over ranks in a communication thread (class Overlapped), while the step computes further gradients.
//
// An update is the set of gradients of one call of an optimizer. The step first announces the update, then hands over
// each gradient as soon as it is computed. The thread reduces the updates in the order of their announcements, which
// have numbers from 1. An update consists of transfers (layout.h). Each transfer is one sum over ranks: of a large
// gradient, of a part of it, or of several small gradients. For each transfer the thread
// 1. waits until this rank has handed over the gradients of the transfer;
// 2. agrees with the threads of the other ranks that all have theirs;
// 3. sums, and gives back each gradient whose last transfer this was, by its `done`.
//
// An update ends with its last sum, or fails as a whole, for one of two reasons:
// - A rank has given it up (`GiveUp`): the gradients that this rank has not handed over will never come, for example
//   because its step has raised an error. Later updates are reduced as usual.
// - MPI or the check of the numbers has failed. `BreakJobs` records the error, and all later updates fail with it.
#include "engine/update/async_reduction.h"

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/immortal.h"
#include "engine/base/hash.h"
#include "engine/base/thread_priority.h"
#include "engine/update/bucket_tuner.h"
#include "engine/mpi/failure.h"
#include "engine/mpi/sleeping_wait.h"
#include "engine/update/finite_check.h"
#include "engine/sequence/trace.h"
#include "engine/sequence/rendezvous.h"
#include "engine/update/transfer.h"
#include "engine/sums/allreduce.h"
#include "engine/sequence/wait_state.h"
#include "engine/sums/world.h"

namespace matex {
namespace {

// The time that copies and the agreement of ranks take between two successive sums. `GradientsTravel` stays true for
// this time after a sum, so that new weights (pulls.h) are not sent between two sums.
constexpr int64_t kBetweenSums = 5'000'000;  // nanoseconds

// An announced update, or a part of one, if the step has other collectives between the gradients. `part.more`: further
// parts of the same update follow. Vectors have one element for each gradient (entry of the layout).
struct Update {
  Update(const UpdatePart& announced_part, double rank_weight)
      : part(announced_part), ready(Count()), weight(rank_weight), inputs(Count()), outputs(Count()), done(Count()),
        handed_over(Count()), ready_on_all(Count()), awaited(Count()) {}

  size_t Count() const { return part.layout->entries().size(); }

  const UpdatePart part;
  int64_t announced_at = 0;   // the time of the announcement, by `Now`
  std::vector<double> ready;  // seconds from the announcement to the hand-over
  const double weight;
  int64_t number = 0;  // among the updates of the process, inline ones too, from 1; for messages
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<std::function<void(const Error&)>> done;  // null: not handed over, or called
  std::vector<bool> handed_over;   // ready on this rank
  std::vector<bool> ready_on_all;  // all ranks have agreed that they are ready
  std::vector<bool> awaited;       // the thread waits for them
  int missing = 0;                 // the number of awaited gradients that are not handed over
  std::string given_up;            // the reason, if this rank has given the update up; else ""
  Error failed;                    // the error that all its gradients receive, if the update has failed
};

// An all-reduce by which ranks agree that a transfer can start, so that no rank waits inside a sum for gradients that
// another rank still computes. This rank reports that its gradients are ready (`is_ready`) or will not come; the
// function returns when all ranks have reported. `position` numbers the transfer among all transfers of this rank; it
// is an error if ranks differ. `without` becomes the highest rank whose gradients will not come, or -1.
Error AgreeOnReadiness(int64_t position, bool is_ready, const std::string& place, int* without) {
  const World& world = TheWorld();
  *without = is_ready ? -1 : world.rank;
  if (!world.has_peers()) return Error();
  // ~ reverses the order, so the maximum of ~position is ~(the minimum of position). The first two results are
  // complements only if the minimum equals the maximum: all positions are equal.
  int64_t words[3] = {position, ~position, *without};
  const Span span(Activity::kMeet);
  MPI_Request request;
  int code = MPI_Iallreduce(MPI_IN_PLACE, words, 3, MPI_INT64_T, MPI_MAX, world.overlapped, &request);
  if (code == MPI_SUCCESS) code = Await(&request);
  if (code != MPI_SUCCESS) return MpiError(code, "MPI_Iallreduce", place);
  if (words[0] != ~words[1]) return Error("ranks are at different transfers of " + place + ".");
  *without = static_cast<int>(words[2]);
  return Error();
}

class Overlapped {
 public:
  int64_t Add(std::shared_ptr<Update> update) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
    const bool is_idle = last_done_ == last_added_;  // then the thread waits for an update
    updates_.emplace(++last_added_, std::move(update));
    if (is_idle) changed_.notify_all();
    return last_added_;
  }

  void Finish() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return last_done_ == last_added_; });
  }

  void HandOver(int64_t announcement, int entry, HandedOver gradient) {
    if (const Error error = Store(announcement, entry, &gradient)) gradient.done(error);
  }

  void GiveUp(int64_t announcement, const std::string& why) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = updates_.find(announcement);
    if (found == updates_.end()) return;
    found->second->given_up = why;
    changed_.notify_all();
  }

  void GiveUpAll(const std::string& why) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& one : updates_) one.second->given_up = why;
    changed_.notify_all();
  }

  bool GradientsTravel() const { return Now() < travel_until_; }

 private:
  // Stores a gradient for the thread, with its `done`. If the update is over, returns an error and keeps nothing.
  Error Store(int64_t announcement, int entry, HandedOver* gradient) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = updates_.find(announcement);
    if (found == updates_.end()) return Error("a gradient was handed over after the end of its update.");
    Update& update = *found->second;
    if (update.failed) return update.failed;
    update.inputs[entry] = gradient->input;
    update.outputs[entry] = gradient->output;
    update.done[entry] = std::move(gradient->done);
    update.handed_over[entry] = true;
    update.ready[entry] = 1e-9 * (Now() - update.announced_at);
    RecordReady(update.part.layout->entries()[entry]);
    NoteGradient();  // the process was not blocked until now: it computed, even if the thread waited for ranks
    // Only the last awaited gradient wakes the thread: a wake-up takes the core from a thread that computes.
    if (update.awaited[entry] && --update.missing == 0) changed_.notify_all();
    return Error();
  }

  // The thread: reduces one update after another.
  void Run() {
    WakePromptly();
    SetLane(Lane::kCommunication);
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return last_done_ < last_added_; });
      const int64_t announcement = last_done_ + 1;
      const std::shared_ptr<Update> update = updates_[announcement];
      lock.unlock();
      const Error error = Reduce(announcement, update.get());
      if (error) Fail(update.get(), error);
      if (error || !update->part.more) travel_until_ = 0;  // no sum follows soon: other messages may start
      lock.lock();
      if (!error) updates_.erase(announcement);  // after an error its gradients may still come, and receive the error
      last_done_ = announcement;
      changed_.notify_all();
    }
  }

  // Sleeps until this rank has handed over these gradients (returns "") or given up the update (returns the reason).
  std::string WaitFor(Update* update, const std::vector<int>& entries) {
    const Span span(Activity::kOwnGradients);
    std::unique_lock<std::mutex> lock(mutex_);
    for (int entry : entries) {
      if (update->handed_over[entry] || update->awaited[entry]) continue;
      update->awaited[entry] = true;
      ++update->missing;
    }
    changed_.wait(lock, [&] { return update->missing == 0 || !update->given_up.empty(); });
    return update->missing == 0 ? "" : update->given_up;
  }

  // Waits until these gradients are ready on all ranks and runs `transfer`, the transfer `index` of the update. If a
  // rank has given the update up, no rank runs it, and all ranks return an error that names this rank. Any other error
  // is recorded by `BreakJobs`, so no communication thread begins another exchange.
  Error RunWhenReady(int64_t announcement, int64_t index, Update* update, const std::vector<int>& entries,
                     const std::function<Error()>& transfer) {
    const std::string given_up = WaitFor(update, entries);
    const std::function<std::string()> place = [&] {
      const std::string& first = update->part.layout->entries()[entries[0]].name;
      return update->part.place + ", with the gradients of " + NameAll(first, entries.size());
    };
    const NotedWait wait(Waiter::kOverlapped, place);
    // The ranks agree, unless all these gradients were in an earlier transfer: a large gradient has several transfers,
    // and after the first one all ranks know that it is ready.
    int without = -1;  // a rank that has given the update up
    const bool is_agreed =
        std::all_of(entries.begin(), entries.end(), [&](int entry) { return update->ready_on_all[entry]; });
    if (!is_agreed) {
      // One number for the pair (announcement, index): an update has fewer than 2^24 transfers.
      const int64_t position = announcement << 24 | index;
      const Error error = AgreeOnReadiness(position, given_up.empty(), update->part.place, &without);
      if (error) return BreakJobs(error);
    }
    if (without >= 0) {
      const std::string who = "rank " + std::to_string(without) + " has given up " + update->part.place;
      if (!given_up.empty()) return Error(who + ": " + given_up);
      const Error error(who + "; its own message says why.");
      // So Python treats this error as a consequence of an error on another rank.
      NoteCause(Cause::kElsewhere, error.message);
      return error;
    }
    for (int entry : entries) update->ready_on_all[entry] = true;
    travel_until_ = std::numeric_limits<int64_t>::max();  // until the sum ends
    const Error failed = transfer();
    travel_until_ = Now() + kBetweenSums;
    return failed ? BreakJobs(failed) : failed;
  }

  // Runs all transfers of the update, and gives each gradient back after its last transfer. A BucketTuner gives the
  // transfers: after some updates it groups gradients by the times at which they were ready.
  Error Reduce(int64_t announcement, Update* update) {
    if (const Error broken = BrokenJobs()) return broken;
    const Layout& layout = *update->part.layout;
    BucketTuner& tuner = tuners_.For(layout);
    const std::vector<Transfer>& transfers = tuner.transfers();
    const std::vector<Entry>& gradients = layout.entries();
    const OverlappedRecord record(update->part);
    std::vector<size_t> transfers_left(gradients.size(), 0);
    for (const Transfer& transfer : transfers) {
      for (const Fragment& fragment : transfer.fragments) ++transfers_left[fragment.entry];
    }
    size_t gradients_left = transfers_left.size();
    const auto give_back = [&](int entry) {
      if (--gradients_left == 0) RecordEndOf(*update, record);  // before `done`, with which the script continues
      const auto done = std::exchange(update->done[entry], nullptr);
      done(Error());
    };
    std::vector<int> entries;
    for (size_t i = 0; i < transfers.size(); ++i) {
      entries.clear();
      for (const Fragment& fragment : transfers[i].fragments) entries.push_back(fragment.entry);
      const auto run = [&] { return RunOne(layout, transfers[i], *update); };
      if (Error error = RunWhenReady(announcement, static_cast<int64_t>(i), update, entries, run)) return error;
      for (int entry : entries) {
        if (--transfers_left[entry] == 0) give_back(entry);
      }
    }
    // Gradients without elements are in no transfer, but they are also handed over and given back.
    entries.clear();
    for (size_t entry = 0; entry < transfers_left.size(); ++entry) {
      if (gradients[entry].count() == 0) entries.push_back(static_cast<int>(entry));
    }
    if (!entries.empty()) {
      const auto nothing = [] { return Error(); };
      if (Error error = RunWhenReady(announcement, static_cast<int64_t>(transfers.size()), update, entries, nothing))
        return error;
      for (int entry : entries) give_back(entry);
    }
    // Report when the gradients were ready. After a few updates the ranks choose the buckets here, a collective.
    const Error error = tuner.AddUpdate(layout, update->ready);
    return error ? BreakJobs(error) : error;
  }

  // Sums one transfer, with a check of its numbers if the layout is checked.
  Error RunOne(const Layout& layout, const Transfer& transfer, const Update& update) {
    const auto place = [&update] { return update.part.place; };
    const auto numbered = [&update] { return update.part.place + ", update " + std::to_string(update.number); };
    const AddUp add_up = [&place](const Transfer& one, void* data, float* residual) {
      return TheWorld().has_peers() ? OverlappedAdder().Sum(one, data, residual, place) : Error();
    };
    const AddUp checked = [&](const Transfer& one, void* data, float* residual) {
      return AddUpFinite(layout, one, TheWorld().overlapped, numbered, data, residual, add_up);
    };
    return RunTransfer(layout, transfer, update.inputs.data(), update.outputs.data(), update.weight, &buffer_,
                       layout.checked() ? checked : add_up);
  }

  // Called after the last sum of an update or part. Records, of an update, the time since its last gradient was ready:
  // the script only waited then. Before further parts (`more`) the script still has gradients to compute.
  void RecordEndOf(const Update& update, const OverlappedRecord& record) {
    const double last = *std::max_element(update.ready.begin(), update.ready.end());
    last_ready_ = std::max(last_ready_, update.announced_at + static_cast<int64_t>(last * 1e9));
    if (update.part.more) return;
    record.Done(last_ready_);
    AddNanoseconds(Kind::kGradients, Now() - last_ready_);
    last_ready_ = 0;
  }

  // Returns the error to all gradients that were handed over; later ones receive it in HandOver.
  void Fail(Update* update, const Error& error) {
    last_ready_ = 0;
    std::vector<std::function<void(const Error&)>> waiting;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      update->failed = error;
      waiting.swap(update->done);
      update->done.resize(waiting.size());
    }
    for (const auto& done : waiting) {
      if (done) done(error);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  std::map<int64_t, std::shared_ptr<Update>> updates_;  // by announcement: waiting, under way, or failed
  int64_t last_added_ = 0, last_done_ = 0;              // the last announcements that were made, and reduced
  std::vector<char> buffer_;  // the message of a transfer of several gradients
  BucketTuners tuners_;  // the buckets of each layout
  // Gradients travel, or may do so soon, until this time (by `Now`). The maximum: a transfer is under way.
  std::atomic<int64_t> travel_until_{0};
  int64_t last_ready_ = 0;  // the time, by `Now`, of the last hand-over in the parts of the current update so far
};

Overlapped& TheOverlapped() { return Immortal<Overlapped>(); }

}  // namespace

Error Announce(const UpdatePart& part, double weight, Batch batch, int64_t* announcement) {
  const std::function<std::string()> place = [&part] { return part.place; };
  // The key has all that ranks must agree on: the rows of the batch, whether parts follow, and the layout.
  const int64_t agreed[] = {batch.rows, part.more};
  const uint64_t key = Hash(agreed, sizeof agreed, ~part.layout->key());  // ~: differs from the key of ReduceInline
  const Call call{Kind::kGradients, key, place, /*bytes=*/0, part.layout.get(), batch, &part};
  auto update = std::make_shared<Update>(part, weight);
  // In `Meet`, the rendezvous, ranks compare the number and the key of the collective. The update is added under the
  // same mutex, so updates have the same order on all ranks.
  std::lock_guard<std::mutex> lock(TheWorld().mutex);
  if (Error error = Meet(call)) return error;
  update->announced_at = Now();
  update->number = CountOf(Kind::kGradients) + 1;
  *announcement = TheOverlapped().Add(std::move(update));
  return Finish(call, Error());
}

void HandOver(int64_t announcement, int entry, HandedOver gradient) {
  TheOverlapped().HandOver(announcement, entry, std::move(gradient));
}

void GiveUp(int64_t announcement, const std::string& why) { TheOverlapped().GiveUp(announcement, why); }
void FinishUpdates() { TheOverlapped().Finish(); }
void GiveUpAll(const std::string& why) { TheOverlapped().GiveUpAll(why); }
bool GradientsTravel() { return TheOverlapped().GradientsTravel(); }

}  // namespace matex
