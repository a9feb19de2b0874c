// The recorder: a ring of events, and the totals of the updates at each place. In the totals, a step lasts from the end
// of one update to the end of the next:
//
//   update | compute | collective | compute | collective | compute | update
//          |<----------------------- one step -------------------------->|
//
// A Stretch has the durations of the parts of the step. Each of its collectives, and the update, begins with a meeting,
// the wait for the other ranks. An overlapped update runs in its own lane (trace.h: the thread of an activity) at the
// same time; then a step ends with the announcement of an update. If an update is announced in parts, each part is an
// UpdatePart, and `more` is true for all but the last. A label is the index of a text, such as a place, in `labels_`.
#include "engine/sequence/trace.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "engine/base/immortal.h"
#include "engine/base/hash.h"

namespace matex {

std::atomic<int> recording{0};

namespace {

constexpr int64_t kIgnoredUpdates = 3;  // the first updates of a place, which the totals do not include (trace.h)

thread_local Lane lane_of_thread = Lane::kScript;

// The time since the last update, in parts, in nanoseconds. It is added to the totals when the next update ends, if it
// was a training step and nothing else.
struct Stretch {
  int64_t since = 0;  // the end of the last collective; 0 before the first
  // As in Totals, with two differences: `compute` includes `exposed`, and `exposed` includes the waits of overlapped
  // updates and nothing of inline updates.
  int64_t compute = 0, meet = 0, collectives = 0, exposed = 0;
  std::vector<std::pair<int64_t, int64_t>> calls;  // begin and end of the script's latest collectives
  bool is_step = false;  // whether the time contains nothing but a training step
};

// The collective or overlapped update that a lane is executing.
struct Current {
  int64_t start = 0;    // 0: the lane executes nothing
  int label = -1;       // of the update; -1: no update
  bool counts = false;  // whether the totals include this update
  int64_t meet = 0;     // nanoseconds in meetings
  std::vector<std::pair<int64_t, int64_t>> waits;  // begin and end of its meetings
};

bool RecordsGradients() { return recording.load() >= static_cast<int>(Recording::kGradients); }

class Recorder {
 public:
  void Start(Recording how, int64_t capacity) {
    std::lock_guard<std::mutex> lock(mutex_);
    capacity_ = how >= Recording::kEvents ? capacity : 0;
    events_.reserve(capacity_);
    recording.store(static_cast<int>(how));
  }

  std::vector<Event> Events(int64_t* dropped) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Event> events = events_;
    *dropped = added_ - static_cast<int64_t>(events.size());
    // `events_` is a ring: once it is full, the oldest event is at added_ % capacity_.
    if (*dropped > 0 && capacity_ > 0) std::rotate(events.begin(), events.begin() + added_ % capacity_, events.end());
    return events;
  }

  std::vector<std::string> Labels() {
    std::lock_guard<std::mutex> lock(mutex_);
    return labels_;
  }

  std::vector<PlaceTotals> Places() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<PlaceTotals> places;
    for (const auto& [label, totals] : totals_) places.push_back({labels_[label], totals});
    return places;
  }

  void BetweenSteps() {
    std::lock_guard<std::mutex> lock(mutex_);
    Add({Now(), 0, 0, -1, Activity::kBetweenSteps, Lane::kScript});
    stretch_.is_step = false;
  }

  // A Span ends: adds its event, and its duration to the totals of the update to which it belongs.
  void EndSpan(Activity activity, const std::string* name, int64_t bytes, int64_t start) {
    const int64_t now = Now();
    std::lock_guard<std::mutex> lock(mutex_);
    const Lane lane = lane_of_thread;
    Add({start, now - start, bytes, name == nullptr ? -1 : Label(*name), activity, lane});
    Current& current = At(lane);
    if (activity == Activity::kMeet) {
      current.meet += now - start;
      if (lane == Lane::kCommunication) current.waits.emplace_back(start, now);
    }
    if (activity == Activity::kPull && updated_ >= 0) {  // new weights belong to the last update, which has ended
      totals_[updated_].pulled += bytes;
      totals_[updated_].pull += now - start;
    }
    if (!current.counts) return;
    Totals& totals = totals_[current.label];
    if (activity == Activity::kTransfer) {
      ++totals.transfers;
      totals.transfer += now - start;
      totals.bytes += bytes;
    } else if (activity == Activity::kCopyIn || activity == Activity::kCopyOut) {
      totals.copy += now - start;
    }
  }

  // A collective of the script begins. The time since the last one was computation.
  void Begin(const Call& call) {
    std::lock_guard<std::mutex> lock(mutex_);
    Enter(Lane::kScript, Now());
    if (stretch_.since != 0) {
      const int64_t gap = At(Lane::kScript).start - stretch_.since;
      Add({stretch_.since, gap, 0, -1, Activity::kGap, Lane::kScript});
      stretch_.compute += gap;
    }
    if (call.announced != nullptr) {
      MarkUpdate(Lane::kScript, *call.announced);
    } else if (call.reduces_gradients()) {
      // An UpdatePart needs a shared pointer; this one does not free the layout.
      const std::shared_ptr<const Layout> unowned(std::shared_ptr<void>(), call.layout);
      MarkUpdate(Lane::kScript, {unowned, call.place()});
    }
    if (!call.reduces_gradients() || !RecordsGradients()) return;
    Add({Now(), 0, call.batch.rows, -1, Activity::kRows, Lane::kScript});
    for (const Entry& entry : call.layout->entries()) AddEntry(entry, Activity::kEntry);
  }

  // The collective of the script ends. If it ends a step, the stretch becomes part of the totals.
  void End(const Call& call) {
    std::lock_guard<std::mutex> lock(mutex_);
    Current& current = At(Lane::kScript);
    if (current.start == 0) return;  // recording was off when the collective began
    const int64_t now = Now(), elapsed = now - current.start;
    const bool is_update = current.label >= 0, announces = call.announced != nullptr;
    // A step ends with an inline update, or with the announcement of the last part of an overlapped update.
    const bool ends_step = is_update && !(announces && call.announced->more);
    Activity activity = ActivityOf(call.kind);
    if (is_update) activity = announces ? Activity::kAnnouncement : Activity::kUpdate;
    Add({current.start, elapsed, call.bytes, is_update ? current.label : Label(call.place()), activity, Lane::kScript});
    // EndSums needs the collectives that the script makes while an overlapped update runs. If none runs, the earlier
    // collectives are not needed any more.
    if (At(Lane::kCommunication).start == 0) stretch_.calls.clear();
    stretch_.calls.emplace_back(current.start, now);
    stretch_.meet += current.meet;
    if (!is_update) stretch_.collectives += elapsed - current.meet;
    if (current.counts && ends_step) AddStep(current, announces, elapsed);
    if (ends_step) {
      updated_ = current.counts ? current.label : -1;  // new weights that arrive later count for this update
      stretch_ = Stretch();
      stretch_.is_step = true;
    }
    stretch_.since = now;
    current = Current();
  }

  void Ready(const Entry& entry) {
    std::lock_guard<std::mutex> lock(mutex_);
    AddEntry(entry, Activity::kReady);
  }

  // An OverlappedRecord begins, for a part of an update; returns the time.
  int64_t BeginOverlapped(const UpdatePart& part) {
    std::lock_guard<std::mutex> lock(mutex_);
    Enter(Lane::kCommunication, Now());
    MarkUpdate(Lane::kCommunication, part);
    At(Lane::kCommunication).waits.swap(waits_);  // of the earlier parts of this update
    waits_.clear();
    has_more_parts_ = part.more;
    return At(Lane::kCommunication).start;
  }

  // The last sum of the update has ended. Its exposed time began with its last gradient, at `last_ready`.
  void EndSums(int64_t last_ready) {
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t now = Now();
    const Current& current = At(Lane::kCommunication);
    Add({last_ready, now - last_ready, 0, current.label, Activity::kExposed, Lane::kCommunication});
    // Time within a collective of the script is counted there, not as exposed time. `outside_calls`: the nanoseconds of
    // an interval outside these collectives.
    std::vector<std::pair<int64_t, int64_t>> calls = stretch_.calls;
    if (At(Lane::kScript).start != 0) calls.emplace_back(At(Lane::kScript).start, now);
    const auto outside_calls = [&](int64_t from, int64_t to) {
      int64_t remaining = std::max<int64_t>(to - from, 0);
      for (const auto& [begin, end] : calls)
        remaining -= std::max<int64_t>(std::min(to, end) - std::max(from, begin), 0);
      return remaining;
    };
    const int64_t exposed = outside_calls(last_ready, now);
    stretch_.exposed += exposed;
    if (!current.counts) return;
    int64_t waited = 0;
    for (const auto& [from, to] : current.waits) waited += outside_calls(std::max(from, last_ready), to);
    Totals& totals = totals_[current.label];
    ++totals.updates;
    totals.exposed += exposed - waited;
    totals.exposed_wait += waited;
  }

  // The OverlappedRecord ends.
  void EndOverlapped() {
    std::lock_guard<std::mutex> lock(mutex_);
    Current& current = At(Lane::kCommunication);
    Add({current.start, Now() - current.start, 0, current.label, Activity::kUpdate, Lane::kCommunication});
    if (has_more_parts_) waits_ = current.waits;
    current = Current();
  }

 private:
  // Adds the stretch to the totals of the update that ends it. Also adds the update itself if it was inline, with the
  // duration `elapsed`; if it is only announced, EndSums will add it.
  void AddStep(const Current& current, bool announces, int64_t elapsed) {
    Totals& totals = totals_[current.label];
    if (stretch_.is_step) {
      ++totals.steps;
      totals.compute += std::max<int64_t>(stretch_.compute - stretch_.exposed, 0);
      totals.meet += stretch_.meet;
      totals.collectives += stretch_.collectives;
    }
    if (announces) return;
    ++totals.updates;
    totals.exposed += elapsed - current.meet;
  }

  void AddEntry(const Entry& entry, Activity activity) {
    Add({Now(), 0, entry.bytes(), Label(entry.name), activity, Lane::kScript});
  }

  Current& At(Lane lane) { return currents_[static_cast<int>(lane)]; }

  void Enter(Lane lane, int64_t now) {
    At(lane) = Current();
    At(lane).start = now;
  }

  // Marks the current collective of `lane` as an update and finds its label. Updates at one place with different
  // gradients have separate totals. So the hash contains the gradients' names, or without names the layout's key.
  void MarkUpdate(Lane lane, const UpdatePart& part) {
    const int64_t key = part.gradients.empty() ? static_cast<int64_t>(part.layout->key()) : 0;
    const auto [found, is_new] = places_.emplace(Hasher().Add(part.place).Add(part.gradients).Add(key).value(), -1);
    if (is_new) found->second = Label(part.Name());
    Current& current = At(lane);
    current.label = found->second;
    int64_t& seen = seen_[static_cast<int>(lane)][current.label];
    current.counts = seen >= kIgnoredUpdates;
    if (!part.more) ++seen;
  }

  int Label(const std::string& name) {
    const auto [found, is_new] = label_numbers_.emplace(name, static_cast<int>(labels_.size()));
    if (is_new) labels_.push_back(name);
    return found->second;
  }

  void Add(const Event& event) {
    if (capacity_ == 0) return;
    if (static_cast<int64_t>(events_.size()) < capacity_) {
      events_.push_back(event);
    } else {
      events_[added_ % capacity_] = event;
    }
    ++added_;
  }

  std::mutex mutex_;
  std::vector<Event> events_;
  int64_t capacity_ = 0;  // the maximum number of kept events
  int64_t added_ = 0;     // the number of events so far
  std::vector<std::string> labels_;
  std::unordered_map<std::string, int> label_numbers_;  // the index of a text in labels_
  std::unordered_map<uint64_t, int> places_;            // the label of a place, by the hash in MarkUpdate
  // By lane: the number of updates of each label. Overlapped updates are in two lanes: announcement and reduction.
  std::unordered_map<int, int64_t> seen_[kLanes];
  std::vector<std::pair<int64_t, int64_t>> waits_;  // of the earlier parts of an update whose further parts follow
  bool has_more_parts_ = false;  // whether further parts of the overlapped update follow
  std::map<int, Totals> totals_;  // by label
  int updated_ = -1;  // the label of the last update; -1: the totals do not include it
  Current currents_[kLanes];  // by lane
  Stretch stretch_;
};

Recorder& TheRecorder() { return Immortal<Recorder>(); }

}  // namespace

int64_t Now() {
  using std::chrono::nanoseconds;
  return std::chrono::duration_cast<nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void SetLane(Lane lane) { lane_of_thread = lane; }
void Record(Recording how, int64_t capacity) { TheRecorder().Start(how, capacity); }
std::vector<Event> Events(int64_t* dropped) { return TheRecorder().Events(dropped); }
std::vector<std::string> Labels() { return TheRecorder().Labels(); }
std::vector<PlaceTotals> Places() { return TheRecorder().Places(); }

void BetweenSteps() {
  if (IsRecording()) TheRecorder().BetweenSteps();
}

void Span::End() const { TheRecorder().EndSpan(activity_, name_, bytes_, start_); }

void RecordBegin(const Call& call) {
  if (IsRecording()) TheRecorder().Begin(call);
}

void RecordEnd(const Call& call) {
  if (IsRecording()) TheRecorder().End(call);
}

void RecordReady(const Entry& entry) {
  if (RecordsGradients()) TheRecorder().Ready(entry);
}

OverlappedRecord::OverlappedRecord(const UpdatePart& part) {
  if (IsRecording()) start_ = TheRecorder().BeginOverlapped(part);
}

OverlappedRecord::~OverlappedRecord() {
  if (start_ != 0) TheRecorder().EndOverlapped();
}

void OverlappedRecord::Done(int64_t last_ready) const {
  if (start_ != 0) TheRecorder().EndSums(last_ready);
}

}  // namespace matex
