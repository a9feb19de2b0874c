// Records when this process computes, waits and sends: as events for a timeline (MATEX_TIMELINE) and as totals for a
// profile. Collectives, transfers and copies call it; Python reads the result through abi.cc. While recording is off,
// each call costs one relaxed load.
//
// An update is the reduction of the gradients of one call of an optimizer. Its place is the name of this call.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/layout/layout.h"
#include "engine/sequence/rendezvous.h"

namespace matex {

// The numbers of these three enums are part of the C interface (abi.cc).
enum class Recording : int {
  kOff = 0,
  kTotals = 1,     // only totals
  kEvents = 2,     // also events
  kGradients = 3,  // also events of single gradients
};

// The thread of an activity.
enum class Lane : int16_t {
  kScript = 0,         // any thread that calls collectives of the sequence
  kCommunication = 1,  // the thread of overlapped updates (async_reduction.h)
  kPulls = 2,          // the thread that sends new weights (pulls.h)
};
constexpr int kLanes = 3;

enum class Activity : int16_t {
  kUpdate = 0,         // the reduction of one update's gradients
  kCollective = 1,     // another collective on tensors: a sum or a barrier
  kMessage = 2,        // an exchange of Python objects, or the end of the script
  kMeet = 3,           // waiting for the other ranks
  kBucket = 4,         // one transfer of a layout
  kCopyIn = 5,         // weighting gradients and copying them into the message
  kTransfer = 6,       // the sum over ranks
  kCopyOut = 7,        // copying sums out of the message
  kOwnGradients = 8,   // waiting for gradients that this rank still computes
  kChoice = 9,         // the choice of buckets (bucket_tuner.h)
  kGap = 10,           // between two collectives
  kBetweenSteps = 11,  // no duration: the time around it is not part of a training step
  kExposed = 12,       // from an overlapped update's last gradient to its last sum
  kAnnouncement = 13,  // the collective that announces an overlapped update
  // 14 to 16 have no duration and are recorded only with Recording::kGradients.
  kEntry = 14,      // a gradient of an update, in the order of reduction
  kReady = 15,      // a gradient of an overlapped update was handed over
  kRows = 16,       // the rows of the global batch, in the field `bytes`
  kPull = 17,       // new weights, sent by the ranks that have updated them
  kAllgather = 18,  // an all-gather; with the bytes of this rank
  kBroadcast = 19,  // a broadcast
};

// The activity that is recorded for a collective that is no update.
inline Activity ActivityOf(Kind kind) {
  switch (kind) {
    case Kind::kControl:
    case Kind::kExit:
    case Kind::kFailure:
      return Activity::kMessage;
    case Kind::kAllgather:
      return Activity::kAllgather;
    case Kind::kBroadcast:
      return Activity::kBroadcast;
    default:
      return Activity::kCollective;
  }
}

// An event. Times are those of `Now`, in nanoseconds.
struct Event {
  int64_t start;
  int64_t duration;
  int64_t bytes;
  int32_t label;  // an index into `Labels`; -1: none
  Activity activity;
  Lane lane;
};

// Totals of the updates at one place, in nanoseconds and bytes. The first updates are not included: they are slow,
// because they trace functions, allocate memory and start threads.
struct Totals {
  int64_t updates = 0;       // their number
  int64_t bytes = 0;
  int64_t transfers = 0;     // their number
  int64_t transfer = 0;      // their duration
  int64_t copy = 0;
  int64_t exposed = 0;       // transfer and copy time that no computation hides
  int64_t exposed_wait = 0;  // of overlapped updates: waiting for other ranks after the last own gradient
  // Of the intervals from one update to the next at this place that contain nothing but a training step:
  int64_t steps = 0;
  int64_t compute = 0;      // between collectives
  int64_t meet = 0;         // waiting for other ranks at a rendezvous
  int64_t collectives = 0;  // in collectives that are no update, without `meet`
  // New weights that arrived while the next step computed:
  int64_t pulled = 0;  // bytes
  int64_t pull = 0;    // nanoseconds
};

struct PlaceTotals {
  std::string name;
  Totals totals;
};

// Assigns the calling thread to `lane`; the default is kScript.
void SetLane(Lane lane);

// Starts recording; of events, the last `capacity` are kept.
void Record(Recording how, int64_t capacity);

int64_t Now();  // nanoseconds of the monotonic clock

// The kept events, oldest first; `dropped`: the number of older events. A label is an index into `Labels`.
std::vector<Event> Events(int64_t* dropped);
std::vector<std::string> Labels();
std::vector<PlaceTotals> Places();

// Marks that the current time is not part of a training step: the end of an epoch, an evaluation, saving.
void BetweenSteps();

extern std::atomic<int> recording;  // a Recording
inline bool IsRecording() { return recording.load(std::memory_order_relaxed) != 0; }

// Records an activity of the calling thread, from construction to destruction.
class Span {
 public:
  explicit Span(Activity activity, int64_t bytes = 0) : Span(activity, nullptr, bytes) {}
  Span(Activity activity, const std::string* name, int64_t bytes)
      : activity_(activity), name_(name), bytes_(bytes), start_(IsRecording() ? Now() : 0) {}
  ~Span() {
    if (start_ != 0) End();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  void End() const;

  const Activity activity_;
  const std::string* const name_;  // the label; null: none
  const int64_t bytes_;
  const int64_t start_;  // by `Now`; 0: recording was off
};

// The begin and end of a collective of the sequence, called by `Meet` and `Finish` (rendezvous.h).
void RecordBegin(const Call& call);
void RecordEnd(const Call& call);

// Records that a gradient of an overlapped update was handed over.
void RecordReady(const Entry& entry);

// Records a part of an overlapped update: the gradients that one collective announces (layout.h). The thread of
// overlapped updates makes one for each part. The spans that the thread records meanwhile belong to the part.
class OverlappedRecord {
 public:
  explicit OverlappedRecord(const UpdatePart& part);
  ~OverlappedRecord();
  OverlappedRecord(const OverlappedRecord&) = delete;
  OverlappedRecord& operator=(const OverlappedRecord&) = delete;

  // Records that the last sum of the update has ended; its last gradient was ready at `last_ready`.
  void Done(int64_t last_ready) const;

 private:
  int64_t start_ = 0;  // by `Now`; 0: recording was off
};

}  // namespace matex
