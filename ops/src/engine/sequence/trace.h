// What this process does when, and how much of it in all: for timelines and profiles. While nothing is recorded, each
// place that could be costs one look at a number.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/layout/layout.h"
#include "engine/sequence/rendezvous.h"

namespace matex {

// The numbers of these three are part of the C interface (abi.cc).
enum class Recording : int { kOff = 0, kTotals = 1, kEvents = 2, kGradients = 3 };

// Which thread: whichever is in the sequence of collectives, that of the overlapped way, or that of new weights.
enum class Lane : int16_t { kScript = 0, kCommunication = 1, kPulls = 2 };
constexpr int kLanes = 3;

enum class Activity : int16_t {
  kUpdate = 0,         // the reduction of one update's gradients
  kCollective = 1,     // any other collective on tensors: a sum, or a barrier
  kMessage = 2,        // Python objects, or the end of the script
  kMeet = 3,           // waiting for the other ranks
  kBucket = 4,         // one step of a layout
  kCopyIn = 5,         // weighted and brought together
  kTransfer = 6,       // added up over ranks
  kCopyOut = 7,        // brought back
  kOwnGradients = 8,   // waiting for gradients that this rank still computes
  kChoice = 9,         // the choice of buckets
  kGap = 10,           // between two collectives
  kBetweenSteps = 11,  // without duration: what lies around it is no training step
  kExposed = 12,       // from an overlapped update's last gradient to its last sum
  kAnnouncement = 13,  // the collective of an overlapped update
  kPull = 17,          // new weights on their way from the ranks that have updated them
  kAllgather = 18,     // the rows of all ranks, on every rank; the bytes are those of this rank
  kBroadcast = 19,     // the tensor of one rank, on every rank
  // These without duration, and with Recording::kGradients only:
  kEntry = 14,  // a gradient that an update is about to reduce, in the order in which it does
  kReady = 15,  // a gradient of an overlapped update was handed over
  kRows = 16,   // of the global batch, in place of bytes
};

// What a collective that is no update is recorded as.
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

// Times are those of `Now`, in nanoseconds.
struct Event {
  int64_t start;
  int64_t duration;
  int64_t bytes;
  int32_t label;  // -1: none
  Activity activity;
  Lane lane;
};

// Of the updates of one place, but for its first few: those trace, allocate and wake up threads. Nanoseconds, bytes.
struct Totals {
  int64_t updates = 0;
  int64_t bytes = 0;
  int64_t transfers = 0;     // how many
  int64_t transfer = 0;      // how long they took
  int64_t copy = 0;
  int64_t exposed = 0;       // what no computation hides of both
  int64_t exposed_wait = 0;  // waiting for other ranks, of overlapped updates, with all of its own gradients there
  // Of the stretches from any update to the next, of this place, between which lies nothing but a training step:
  int64_t steps = 0;
  int64_t compute = 0;      // between the collectives
  int64_t meet = 0;         // waiting for other ranks where collectives begin
  int64_t collectives = 0;  // in collectives other than updates, less that
  // New weights that came while the next step computed:
  int64_t pulled = 0;  // bytes
  int64_t pull = 0;
};

struct PlaceTotals {
  std::string name;
  Totals totals;
};

// The calling thread is that of `lane`, in place of kScript.
void SetLane(Lane lane);

// From now on; of events, the last `capacity` are kept.
void Record(Recording how, int64_t capacity);

int64_t Now();

// The events, the oldest first; `dropped` older ones are not kept. A label is an index into `Labels`.
std::vector<Event> Events(int64_t* dropped);
std::vector<std::string> Labels();
std::vector<PlaceTotals> Places();

// What lies around this moment is no training step: the end of an epoch, an evaluation, saving.
void BetweenSteps();

extern std::atomic<int> recording;  // a Recording
inline bool IsRecording() { return recording.load(std::memory_order_relaxed) != 0; }

// The activity of the calling thread for as long as it lives.
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
  const std::string* const name_;
  const int64_t bytes_;
  const int64_t start_;
};

// A collective of the sequence: between `Meet` and `Finish`, which call these.
void RecordBegin(const Call& call);
void RecordEnd(const Call& call);

// A gradient of an overlapped update is there.
void RecordReady(const Entry& entry);

// A part of an overlapped update, for as long as it lives; made by the thread that reduces it, whose spans are then of it.
class OverlappedRecord {
 public:
  explicit OverlappedRecord(const Part& part);
  ~OverlappedRecord();
  OverlappedRecord(const OverlappedRecord&) = delete;
  OverlappedRecord& operator=(const OverlappedRecord&) = delete;

  // The last sum of the update is there now; the last gradient came at `came`.
  void Done(int64_t came) const;

 private:
  int64_t start_ = 0;
};

}  // namespace matex
