// MatexLetGo: releases a resource in another thread, which waits until it has the last reference to the resource.
// Python calls it for the iterators of tf.data (iterator_ends.py), because releasing an iterator may take a minute:
//
// The autotuning thread of an iterator sleeps for up to a minute and often misses the cancellation, because
// CancellationManager wakes it before it sets the flag. The thread that releases the iterator waits for the end of this
// sleep. Without MatexLetGo, this would be the script's thread at each end of an epoch, and all ranks would wait.
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/resource_handle.h"

namespace matex {
namespace {

using namespace tensorflow;

constexpr std::chrono::milliseconds kPause(5);
constexpr int kMaxPauses = 2000;  // 10 s; then the thread drops its reference, and the last owner releases the resource

std::mutex unreleased_mutex;
std::condition_variable all_released;
int unreleased = 0;              // resources whose thread still runs
const pid_t process = getpid();  // a forked child has none of the threads

class LetGoKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    ResourceHandle handle = context->input(0).scalar<ResourceHandle>()();
    if (!handle.IsRefCounting()) return;  // a resource with a name lives until it is destroyed by that name
    {
      std::lock_guard<std::mutex> lock(unreleased_mutex);
      ++unreleased;
    }
    std::thread([handle = std::move(handle)]() mutable {
      for (int n = 0; n < kMaxPauses && !handle.resource()->RefCountIsOne(); ++n) std::this_thread::sleep_for(kPause);
      handle = ResourceHandle();
      std::lock_guard<std::mutex> lock(unreleased_mutex);
      if (--unreleased == 0) all_released.notify_all();
    }).detach();
  }
};

REGISTER_OP("MatexLetGo")
    .Input("resource: resource")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs);

MATEX_REGISTER("MatexLetGo", LetGoKernel, HostMemory("resource"));

}  // namespace
}  // namespace matex

// Waits until all resources are released, or `milliseconds` have passed. Returns the number of unreleased resources.
// The Python interpreter must live until this number is 0, because functions in a pipeline refer to it.
extern "C" __attribute__((visibility("default"))) int matex_wait_for_let_go(int milliseconds) {
  if (getpid() != matex::process) return 0;
  std::unique_lock<std::mutex> lock(matex::unreleased_mutex);
  matex::all_released.wait_for(lock, std::chrono::milliseconds(milliseconds), [] { return matex::unreleased == 0; });
  return matex::unreleased;
}
