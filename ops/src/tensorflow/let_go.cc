// MatexLetGo: waits in a thread of its own until nobody else holds a resource, and then lets go of it there.
//
// For iterators of tf.data. The thread that tunes a pipeline sleeps longer and longer, up to a minute, and often misses
// that its iterator is cancelled: CancellationManager wakes it before it says so. Whoever lets go of the iterator then
// waits for the sleep to end, at the end of each epoch, and all ranks with it.
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
constexpr int kPauses = 2000;  // then somebody else goes on holding it, and it is for them to let go

std::mutex going_mutex;
std::condition_variable all_gone;
int going = 0;
const pid_t process = getpid();  // a child that the script forks has none of the threads

class LetGoKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    ResourceHandle handle = context->input(0).scalar<ResourceHandle>()();
    if (!handle.IsRefCounting()) return;  // a resource with a name lives until it is destroyed by that name
    {
      std::lock_guard<std::mutex> lock(going_mutex);
      ++going;
    }
    std::thread([handle = std::move(handle)]() mutable {
      for (int n = 0; n < kPauses && !handle.resource()->RefCountIsOne(); ++n) std::this_thread::sleep_for(kPause);
      handle = ResourceHandle();
      std::lock_guard<std::mutex> lock(going_mutex);
      if (--going == 0) all_gone.notify_all();
    }).detach();
  }
};

REGISTER_OP("MatexLetGo")
    .Input("resource: resource")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs);

REGISTER_KERNEL_BUILDER(Name("MatexLetGo").Device(DEVICE_CPU), LetGoKernel);
REGISTER_KERNEL_BUILDER(Name("MatexLetGo").Device(DEVICE_GPU).HostMemory("resource"), LetGoKernel);

}  // namespace
}  // namespace matex

// Returns when nothing is left to let go of, or after so many milliseconds; how much is left. Python must live until
// nothing is: functions in a pipeline refer to it.
extern "C" __attribute__((visibility("default"))) int matex_wait_for_let_go(int milliseconds) {
  if (getpid() != matex::process) return 0;
  std::unique_lock<std::mutex> lock(matex::going_mutex);
  matex::all_gone.wait_for(lock, std::chrono::milliseconds(milliseconds), [] { return matex::going == 0; });
  return matex::going;
}
