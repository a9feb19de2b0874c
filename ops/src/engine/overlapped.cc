#include "overlapped.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "hash.h"
#include "rendezvous.h"
#include "step.h"
#include "sum.h"

namespace matex {
namespace {

struct Update {
  std::shared_ptr<const Layout> layout;
  double weight;
  int64_t rows;
  std::function<std::string()> place;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<std::function<void(const Error&)>> done;
  std::vector<bool> here;
  std::string given_up;
  Error failed;
};

class Overlapped {
 public:
  int64_t Announce(std::shared_ptr<Update> update) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
    updates_.emplace(++tickets_, std::move(update));
    changed_.notify_all();
    return tickets_;
  }

  void HandOver(int64_t ticket, int entry, HandedOver gradient) {
    Error failed;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found = updates_.find(ticket);
      if (found == updates_.end()) {
        failed = Error("a gradient came after its update was over.");
      } else if (found->second->failed) {
        failed = found->second->failed;
      } else {
        Update& update = *found->second;
        update.inputs[entry] = gradient.input;
        update.outputs[entry] = gradient.output;
        update.done[entry] = std::move(gradient.done);
        update.here[entry] = true;
        changed_.notify_all();
        return;
      }
    }
    gradient.done(failed);
  }

  void GiveUp(int64_t ticket, const std::string& why) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = updates_.find(ticket);
    if (found == updates_.end()) return;
    found->second->given_up = why;
    changed_.notify_all();
  }

 private:
  void Run() {
    for (int64_t ticket = 1;; ++ticket) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return updates_.count(ticket) > 0; });
      const std::shared_ptr<Update> update = updates_[ticket];
      lock.unlock();
      const Error error = Reduce(update.get());
      if (error) Fail(update.get(), error);
      lock.lock();
      // Of an update that has failed, gradients may still come, and are told so.
      if (!error) updates_.erase(ticket);
    }
  }

  // Sleeps until gradient `entry` is here; an error if the update is given up before.
  Error WaitFor(Update* update, int entry) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return update->here[entry] || !update->given_up.empty(); });
    return update->here[entry] ? Error() : Error(update->given_up);
  }

  Error Reduce(Update* update) {
    const std::vector<Step>& steps = update->layout->steps();
    std::string given_up;
    const std::function<std::string()> place = [update, &given_up] {
      return given_up.empty() ? update->place() : update->place() + ", which it gave up: " + given_up;
    };
    std::vector<size_t> left(update->here.size(), 0);
    for (const Step& step : steps) {
      for (const Piece& piece : step.pieces) ++left[piece.entry];
    }
    const uint64_t key = Hash(&update->rows, sizeof update->rows, update->layout->key());
    Call call{Kind::kGradients, key, place, update->layout.get(), update->rows};
    const AddUp add_up = [&place](void* data, int64_t count, Type type) {
      return OverlappedAdder().Sum(data, count, type, place);
    };
    bool met = false;
    const auto meet = [&](const Error& missing) {
      // Ranks that wait in a sum for one that has given up learn of it when its script ends, with this error.
      if (met) return missing ? TheOverlappedSequence().Finish(call, missing) : missing;
      met = true;
      given_up = missing.message;
      if (missing) call.kind = Kind::kControl;
      // Where all have given up, as after an error of the script that strikes every rank, nothing has been sent.
      const Error error = TheOverlappedSequence().Meet(call);
      return error || !missing ? error : missing;
    };
    std::vector<int> over;
    for (const Step& step : steps) {
      for (const Piece& piece : step.pieces) {
        if (const Error missing = WaitFor(update, piece.entry)) return meet(missing);
      }
      if (Error error = meet(Error())) return error;
      if (Error error = RunStep(step, update->inputs.data(), update->outputs.data(), update->weight, &buffer_, add_up)) {
        return TheOverlappedSequence().Finish(call, error);
      }
      const bool is_last = &step == &steps.back();
      for (const Piece& piece : step.pieces) {
        if (--left[piece.entry] > 0) continue;
        if (is_last) {
          over.push_back(piece.entry);
        } else {
          update->done[piece.entry](Error());
          update->done[piece.entry] = nullptr;
        }
      }
    }
    // Gradients without elements are in no step.
    for (size_t entry = 0; entry < left.size(); ++entry) {
      if (update->layout->entries()[entry].count() > 0) continue;
      if (const Error missing = WaitFor(update, static_cast<int>(entry))) return meet(missing);
      over.push_back(static_cast<int>(entry));
    }
    if (Error error = meet(Error())) return error;
    // Counted before the last gradient is given back: once the script goes on, all ranks have the same count.
    TheOverlappedSequence().Finish(call, Error());
    for (int entry : over) {
      update->done[entry](Error());
      update->done[entry] = nullptr;
    }
    return Error();
  }

  void Fail(Update* update, const Error& error) {
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
  std::map<int64_t, std::shared_ptr<Update>> updates_;  // by ticket
  int64_t tickets_ = 0;
  std::thread thread_;
  std::vector<char> buffer_;
};

Overlapped& TheOverlapped() {
  // Never destroyed: its thread waits for updates until the process ends.
  static Overlapped* const overlapped = new Overlapped;
  return *overlapped;
}

}  // namespace

int64_t Announce(std::shared_ptr<const Layout> layout, double weight, int64_t rows,
                 std::function<std::string()> place) {
  const size_t count = layout->entries().size();
  auto update = std::make_shared<Update>();
  update->layout = std::move(layout);
  update->weight = weight;
  update->rows = rows;
  update->place = std::move(place);
  update->inputs.resize(count);
  update->outputs.resize(count);
  update->done.resize(count);
  update->here.resize(count);
  return TheOverlapped().Announce(std::move(update));
}

void HandOver(int64_t ticket, int entry, HandedOver gradient) {
  TheOverlapped().HandOver(ticket, entry, std::move(gradient));
}

void GiveUp(int64_t ticket, const std::string& why) { TheOverlapped().GiveUp(ticket, why); }

}  // namespace matex
