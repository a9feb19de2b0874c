#include "engine/mpi/communication_thread.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/base/thread_priority.h"

namespace matex {
namespace {

class CommunicationThread {
 public:
  int64_t Add(std::function<void(int64_t)> job) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
    jobs_.push_back(std::move(job));
    changed_.notify_all();
    return ++added_;
  }

  void Finish() {
    std::unique_lock<std::mutex> lock(mutex_);
    const int64_t last = added_;
    changed_.wait(lock, [&] { return done_ >= last; });
  }

  Error Break(const Error& error) {
    std::lock_guard<std::mutex> lock(mutex_);
    return broken_ ? broken_ : broken_ = error;
  }

  Error Broken() {
    std::lock_guard<std::mutex> lock(mutex_);
    return broken_;
  }

 private:
  void Run() {
    WakePromptly();
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !jobs_.empty(); });
      const auto job = std::move(jobs_.front());
      jobs_.pop_front();
      const int64_t number = done_ + 1;
      lock.unlock();
      job(number);
      lock.lock();
      done_ = number;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void(int64_t)>> jobs_;
  int64_t added_ = 0, done_ = 0;
  std::thread thread_;
  Error broken_;
};

CommunicationThread& TheThread() {
  // Never destroyed: it waits for jobs until the process ends.
  static CommunicationThread* const thread = new CommunicationThread;
  return *thread;
}

}  // namespace

int64_t AddJob(std::function<void(int64_t number)> job) { return TheThread().Add(std::move(job)); }

void FinishJobs() { TheThread().Finish(); }

Error BreakJobs(const Error& error) { return TheThread().Break(error); }

Error BrokenJobs() { return TheThread().Broken(); }

}  // namespace matex
