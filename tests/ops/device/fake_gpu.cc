// A TensorFlow pluggable device that passes for a GPU, for tests of custom ops on machines without one.
//
// It only stores and copies tensors, and computes nothing. It detects wrong uses that a real GPU may tolerate:
//
// - The host cannot read or write device memory, except with FAKE_GPU_MEMORY=open.
// - Work on a stream begins FAKE_GPU_DELAY_US (2000) microseconds after it was added, in the stream's own thread.
// - New device memory contains a fixed pattern.
// - With FAKE_GPU_NO_DEVICE_WAIT=1, a wait for the whole device ends the process.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/c/tf_status.h"

namespace {

constexpr size_t kArenaBytes = size_t{256} << 20;
constexpr size_t kAlignment = 256;  // as that of cudaMalloc
constexpr int kPoison = 0xAB;
constexpr auto kNothing = [](auto...) {};

[[noreturn]] void Die(const char* message) {
  std::fprintf(stderr, "FAKE_GPU: %s\n", message);
  std::abort();
}

std::string ReadVariable(const char* name, const char* if_missing) {
  const char* value = std::getenv(name);
  return value == nullptr ? if_missing : value;
}

size_t RoundUp(size_t size) { return (std::max<size_t>(size, 1) + kAlignment - 1) / kAlignment * kAlignment; }

// Numbers the work of all streams, from 1, and knows which is done. So an event or a freed block stores only a number;
// number 0 is always done.
class Work {
 public:
  uint64_t Begin() {
    std::lock_guard<std::mutex> lock(mutex_);
    pending_.insert(++last_);
    return last_;
  }
  void End(uint64_t ticket) {
    std::lock_guard<std::mutex> lock(mutex_);
    pending_.erase(ticket);
    ended_.notify_all();
  }
  uint64_t Last() {
    std::lock_guard<std::mutex> lock(mutex_);
    return last_;
  }
  bool Done(uint64_t ticket) {
    std::lock_guard<std::mutex> lock(mutex_);
    return pending_.count(ticket) == 0;
  }
  void Wait(uint64_t ticket) {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [&] { return pending_.count(ticket) == 0; });
  }
  bool DoneUpTo(uint64_t ticket) {
    std::lock_guard<std::mutex> lock(mutex_);
    return pending_.empty() || *pending_.begin() > ticket;
  }
  void WaitUpTo(uint64_t ticket) {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [&] { return pending_.empty() || *pending_.begin() > ticket; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::set<uint64_t> pending_;
  uint64_t last_ = 0;
};

// The memory of the device: a file in memory, mapped twice. TensorFlow knows only the first mapping, which the host
// cannot access; this plugin uses the second one.
class Arena {
 public:
  Arena() {
    const int file = memfd_create("fake_gpu", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, kArenaBytes) != 0) Die("no memory file");
    const int access = ReadVariable("FAKE_GPU_MEMORY", "") == "open" ? PROT_READ | PROT_WRITE : PROT_NONE;
    void* device = mmap(nullptr, kArenaBytes, access, MAP_SHARED, file, 0);
    void* own = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (device == MAP_FAILED || own == MAP_FAILED) Die("no address space");
    close(file);
    device_ = static_cast<char*>(device);
    own_ = static_cast<char*>(own);
  }

  // The address of `memory` in this plugin's own mapping. Ends the process if it is not device memory.
  char* Own(const SP_DeviceMemoryBase* memory, uint64_t size) const {
    const size_t offset = static_cast<const char*>(memory->opaque) - device_;  // huge for an address below the arena
    if (offset > kArenaBytes || size > kArenaBytes - offset) Die("an address that is not device memory");
    return own_ + offset;
  }

  // The first block that is large enough; waits for freed blocks if there is none. Null if the arena is full.
  void* Allocate(size_t size) {
    size = RoundUp(size);
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      Reclaim();
      size_t start = 0;
      for (const auto& [offset, length] : blocks_) {
        if (offset - start >= size) break;
        start = offset + length;
      }
      if (kArenaBytes - start >= size) {
        blocks_[start] = size;
        in_use_ += size;
        std::memset(own_ + start, kPoison, size);
        return device_ + start;
      }
      if (freed_.empty()) return nullptr;
      const uint64_t last_use = freed_.front().second;
      lock.unlock();  // this work may itself free memory
      work_->WaitUpTo(last_use);
      lock.lock();
    }
  }

  // As on a GPU, work that is already on a stream may use a block after TensorFlow has freed it. So the block is
  // allocated again only after all work so far.
  void Free(const void* device) {
    if (device == nullptr) return;
    std::lock_guard<std::mutex> lock(mutex_);
    freed_.emplace_back(static_cast<const char*>(device) - device_, work_->Last());
  }

  size_t InUse() {
    std::lock_guard<std::mutex> lock(mutex_);
    Reclaim();
    return in_use_;
  }

  Work* work() { return work_; }

 private:
  // Makes freed blocks available whose last possible use is done.
  void Reclaim() {
    for (; !freed_.empty() && work_->DoneUpTo(freed_.front().second); freed_.pop_front()) {
      const auto block = blocks_.find(freed_.front().first);
      if (block == blocks_.end()) Die("freed what was not allocated");
      in_use_ -= block->second;
      blocks_.erase(block);
    }
  }

  Work* const work_ = new Work;
  char* device_;
  char* own_;
  std::mutex mutex_;
  std::map<size_t, size_t> blocks_;                // offset and length of each block in use
  std::deque<std::pair<size_t, uint64_t>> freed_;  // offset of a freed block, and the last work that may use it
  size_t in_use_ = 0;
};

// Set when the plugin is loaded, and never freed: TensorFlow does not unload plugins, and streams outlive main().
Arena* arena;
Work* work;
std::chrono::microseconds delay;

}  // namespace

// A stream: a thread that runs tasks one after another. An empty task ends the thread.
struct SP_Stream_st {
 public:
  ~SP_Stream_st() {
    Add(nullptr);
    thread_.join();
  }

  uint64_t Add(std::function<void()> task) {
    std::lock_guard<std::mutex> lock(mutex_);
    last_ = work->Begin();
    tasks_.emplace_back(last_, std::move(task));
    added_.notify_one();
    return last_;
  }
  void AddSlow(std::function<void()> task) {
    Add([task = std::move(task)] {
      std::this_thread::sleep_for(delay);
      task();
    });
  }
  uint64_t Last() const { return last_; }

 private:
  void Run() {
    for (bool stop = false; !stop;) {
      std::unique_lock<std::mutex> lock(mutex_);
      added_.wait(lock, [this] { return !tasks_.empty(); });
      const auto [ticket, task] = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      stop = !task;
      if (!stop) task();
      work->End(ticket);
    }
  }

  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<std::pair<uint64_t, std::function<void()>>> tasks_;
  std::atomic<uint64_t> last_{0};
  std::thread thread_{[this] { Run(); }};  // initialized last, because it uses all other fields
};

struct SP_Event_st {
  std::atomic<uint64_t> ticket{0};  // as on a GPU, an event that was never recorded is complete
};

namespace {

using Device = const SP_Device*;
using Memory = SP_DeviceMemoryBase*;
using ConstMemory = const SP_DeviceMemoryBase*;

void SetMemory(SP_StreamExecutor* se) {
  se->allocate = [](Device, uint64_t size, int64_t, Memory memory) {
    memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
    memory->opaque = arena->Allocate(size);
    memory->size = memory->opaque == nullptr ? 0 : size;
  };
  se->deallocate = [](Device, Memory memory) { arena->Free(memory->opaque); };
  se->host_memory_allocate = [](Device, uint64_t size) { return std::aligned_alloc(kAlignment, RoundUp(size)); };
  se->host_memory_deallocate = [](Device, void* memory) { std::free(memory); };
  se->unified_memory_allocate = [](Device, uint64_t) -> void* { return nullptr; };
  se->unified_memory_deallocate = kNothing;
  se->get_allocator_stats = [](Device, SP_AllocatorStats*) -> TF_Bool { return 0; };
  se->device_memory_usage = [](Device, int64_t* free, int64_t* total) -> TF_Bool {
    *total = kArenaBytes;
    *free = static_cast<int64_t>(kArenaBytes - arena->InUse());
    return 1;
  };
}

void SetStreamsAndEvents(SP_StreamExecutor* se) {
  se->create_stream = [](Device, SP_Stream* stream, TF_Status*) { *stream = new SP_Stream_st; };
  se->destroy_stream = [](Device, SP_Stream stream) { delete stream; };
  se->create_stream_dependency = [](Device, SP_Stream dependent, SP_Stream other, TF_Status*) {
    dependent->Add([last = other->Last()] { work->Wait(last); });
  };
  se->get_stream_status = kNothing;  // no stream ever fails
  se->block_host_until_done = [](Device, SP_Stream stream, TF_Status*) { work->Wait(stream->Last()); };
  se->synchronize_all_activity = [](Device, TF_Status*) {
    if (ReadVariable("FAKE_GPU_NO_DEVICE_WAIT", "") == "1") Die("a wait for the whole device");
    work->WaitUpTo(work->Last());
  };
  se->host_callback = [](Device, SP_Stream stream, SE_StatusCallbackFn function, void* argument) -> TF_Bool {
    stream->AddSlow([=] {
      TF_Status* status = TF_NewStatus();
      function(argument, status);
      TF_DeleteStatus(status);
    });
    return 1;
  };

  se->create_event = [](Device, SP_Event* event, TF_Status*) { *event = new SP_Event_st; };
  se->destroy_event = [](Device, SP_Event event) { delete event; };
  se->get_event_status = [](Device, SP_Event event) {
    return work->Done(event->ticket) ? SE_EVENT_COMPLETE : SE_EVENT_PENDING;
  };
  se->record_event = [](Device, SP_Stream stream, SP_Event event, TF_Status*) {
    event->ticket = stream->Add(kNothing);
  };
  se->wait_for_event = [](Device, SP_Stream stream, SP_Event event, TF_Status*) {
    stream->Add([ticket = event->ticket.load()] { work->Wait(ticket); });
  };
  se->block_host_for_event = [](Device, SP_Event event, TF_Status*) { work->Wait(event->ticket); };

  se->create_timer = [](Device, SP_Timer* timer, TF_Status*) { *timer = nullptr; };
  se->destroy_timer = kNothing;
  se->start_timer = kNothing;
  se->stop_timer = kNothing;
}

void SetCopies(SP_StreamExecutor* se) {
  se->memcpy_dtoh = [](Device, SP_Stream stream, void* to, ConstMemory from, uint64_t size, TF_Status*) {
    stream->AddSlow([=, own = arena->Own(from, size)] { std::memcpy(to, own, size); });
  };
  se->memcpy_htod = [](Device, SP_Stream stream, Memory to, const void* from, uint64_t size, TF_Status*) {
    stream->AddSlow([=, own = arena->Own(to, size)] { std::memcpy(own, from, size); });
  };
  se->memcpy_dtod = [](Device, SP_Stream stream, Memory to, ConstMemory from, uint64_t size, TF_Status*) {
    stream->AddSlow([=, a = arena->Own(to, size), b = arena->Own(from, size)] { std::memcpy(a, b, size); });
  };
  se->sync_memcpy_dtoh = [](Device, void* to, ConstMemory from, uint64_t size, TF_Status*) {
    std::memcpy(to, arena->Own(from, size), size);
  };
  se->sync_memcpy_htod = [](Device, Memory to, const void* from, uint64_t size, TF_Status*) {
    std::memcpy(arena->Own(to, size), from, size);
  };
  se->sync_memcpy_dtod = [](Device, Memory to, ConstMemory from, uint64_t size, TF_Status*) {
    std::memcpy(arena->Own(to, size), arena->Own(from, size), size);
  };
  se->mem_zero = [](Device, SP_Stream stream, Memory to, uint64_t size, TF_Status*) {
    stream->AddSlow([=, own = arena->Own(to, size)] { std::memset(own, 0, size); });
  };
  se->memset = [](Device, SP_Stream stream, Memory to, uint8_t pattern, uint64_t size, TF_Status*) {
    stream->AddSlow([=, own = arena->Own(to, size)] { std::memset(own, pattern, size); });
  };
  se->memset32 = [](Device, SP_Stream stream, Memory to, uint32_t pattern, uint64_t size, TF_Status*) {
    stream->AddSlow([=, own = arena->Own(to, size)] {
      std::fill_n(reinterpret_cast<uint32_t*>(own), size / sizeof(pattern), pattern);
    });
  };
}

void SetPlatform(SP_PlatformFns* fns) {
  fns->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  fns->get_device_count = [](const SP_Platform*, int* count, TF_Status*) { *count = 1; };
  fns->create_device = [](const SP_Platform*, SE_CreateDeviceParams* params, TF_Status*) {
    params->device->struct_size = SP_DEVICE_STRUCT_SIZE;
    params->device->ordinal = params->ordinal;
  };
  fns->destroy_device = kNothing;
  fns->create_device_fns = [](const SP_Platform*, SE_CreateDeviceFnsParams* params, TF_Status*) {
    params->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
  };
  fns->destroy_device_fns = kNothing;
  fns->create_stream_executor = [](const SP_Platform*, SE_CreateStreamExecutorParams* params, TF_Status*) {
    params->stream_executor->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
    SetMemory(params->stream_executor);
    SetStreamsAndEvents(params->stream_executor);
    SetCopies(params->stream_executor);
  };
  fns->destroy_stream_executor = kNothing;
  fns->create_timer_fns = [](const SP_Platform*, SP_TimerFns* timer, TF_Status*) {
    timer->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
    timer->nanoseconds = [](SP_Timer) -> uint64_t { return 0; };
  };
  fns->destroy_timer_fns = kNothing;
}

}  // namespace

extern "C" void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status*) {
  arena = new Arena;
  work = arena->work();
  delay = std::chrono::microseconds(std::stol(ReadVariable("FAKE_GPU_DELAY_US", "2000")));

  params->struct_size = SE_PLATFORM_REGISTRATION_PARAMS_STRUCT_SIZE;
  params->major_version = SE_MAJOR;
  params->minor_version = SE_MINOR;
  params->patch_version = SE_PATCH;
  params->destroy_platform = kNothing;
  params->destroy_platform_fns = kNothing;
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "FAKE_GPU";
  params->platform->type = "GPU";
  params->platform->use_bfc_allocator = 0;  // it would reuse blocks without the fixed pattern
  SetPlatform(params->platform_fns);
}
