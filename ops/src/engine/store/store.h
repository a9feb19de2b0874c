// Asynchronous training in the shared memory of one node: all ranks train the same weights, and the store hands out the
// batches of an epoch, which are numbers from 0. Each batch has one holder, the rank that trains it. A rank begins a
// batch only while the oldest unfinished batch is at most `bound` behind it: with bound 2, batch 5 begins only after
// batches 0 to 2 have ended. The kernels of weights/store.cc and Python (apart/store.py) use the store.
//
// The store has no locks, because a rank could be lost while it holds one. The state of a batch names its holder, and
// ranks change it by compare-and-swap, so exactly one rank takes over the batch of a lost rank. A step consists of
// additions to variables; a part is the number of an addition within the step, from 0. Each rank records in its
// progress table how many numbers or rows of each addition it has added. If it is lost, the rank that takes over its
// batch adds the rest.
//
// Each rank writes its metrics after a batch into one of two slots, alternately: if it is lost while it writes to one
// slot, the metrics in the other slot are complete. A version, 0 or 1, is the number of the slot.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/base/error.h"

namespace matex {

class SharedStore {
 public:
  // The result of `Begin`.
  enum Begun : int {
    kTaken = 0,  // this rank is to train `batch`
    kEnd = 1,    // the epoch has ended: all batches are trained or refused
    kNotYet = 2  // this rank waits for rank `behind`
  };

  // The sizes of the shared memory.
  struct Sizes {
    int64_t bytes = 0;    // of the shared numbers: the variables that the ranks train
    int64_t batches = 0;  // the maximum number of batches of an epoch
    int64_t parts = 0;    // the number of additions in a step
  };

  // The shared numbers begin as zeros. Collective. `made` is null on all ranks if they cannot share memory.
  static Error Make(const Sizes& sizes, std::shared_ptr<SharedStore>* made);
  ~SharedStore();
  SharedStore(const SharedStore&) = delete;
  SharedStore& operator=(const SharedStore&) = delete;

  // The address of the shared numbers, aligned to 64 bytes, at the same offset on all ranks.
  char* data() const { return data_; }
  bool Has(const void* address) const { return address >= data_ && address < data_ + sizes_.bytes; }

  // Deals batches `first` up to `count`, exclusive; earlier batches count as trained. Rank r begins with batch
  // `first` + r. One rank calls it, while no rank is between `Begin` and `End`.
  void Deal(int64_t first, int64_t count);

  // Takes the next batch, or the batch of a lost rank, and waits until it may be trained. After about `seconds` it
  // returns kNotYet, and the caller calls it again. `behind` becomes the rank with the oldest batch.
  Begun Begin(int64_t bound, double seconds, int64_t* batch, int* behind);

  // Marks the batch of `Begin` as trained; `version` is the slot with its metrics. Returns the number of batches that
  // other ranks have trained since `Begin`.
  int64_t End(int version);

  // Gives up this rank's batches, if any: they are refused, which means that no rank trains them or waits for them.
  // Also called if the data end before the batch that this rank has taken.
  void Leave();

  // No rank takes a batch any more.
  void Stop();

  // Marks a rank as lost: another rank takes over its batch, `batch` (-1: none). Returns whether this call marked it.
  bool Lose(int rank, int64_t* batch);
  bool IsLost(int rank) const;

  // The version that the rank gave to `End` for its last batch known to be trained; 1 if there is none.
  int VersionOf(int rank) const;

  // The number of trained batches of the epoch, by all ranks, including the batches before the `first` of `Deal`.
  int64_t CountTrained() const;

  // One addition of this rank's step, of `count` numbers or rows. The caller adds them from `first` on, because a lost
  // rank may have added the earlier ones, and calls `RecordProgress` after each block.
  class Addition {
   public:
    int64_t first = 0;
    // Records that numbers or rows 0 up to `added` are added.
    void RecordProgress(int64_t added) const { progress_->store(before_ + added, std::memory_order_release); }

   private:
    friend class SharedStore;
    std::atomic<int64_t>* progress_ = nullptr;  // in this rank's progress table
    int64_t before_ = 0;  // the numbers or rows of earlier runs of the same op in this step
  };

  // Returns false if this rank trains no batch now, or if `part` is not below Sizes::parts.
  bool BeginAddition(int64_t part, int64_t count, Addition* addition);

 private:
  struct Control;
  struct Line;

  SharedStore(void* memory, const Sizes& sizes, int rank, int size);
  // The bytes before the shared numbers, with `size` ranks.
  static int64_t HeadBytes(const Sizes& sizes, int size);
  // The bytes before the progress tables.
  static int64_t TablesAt(const Sizes& sizes, int size);
  // The bytes of the progress table of one rank.
  static int64_t TableBytes(const Sizes& sizes);
  // The numbers that all ranks write.
  Control& control() const;
  // The numbers that one rank writes.
  Line& LineOf(int rank) const;
  // The state of a batch: free, its holder, the rank that has trained it, or refused (constants in store.cc).
  std::atomic<int32_t>& StateOf(int64_t batch) const;
  // The progress table of a rank: one number for each part.
  std::atomic<int64_t>* TableOf(int rank) const;
  // The oldest batch that a rank holds and has not trained; Line::kNone if there is none.
  int64_t FindHeld(int rank) const;
  // Takes the next free batch into `reserved_`; false if there is none.
  bool ReserveNext();
  // Takes the batch of a lost rank into `batch_`; false if no such batch may be trained now.
  bool TakeOver(int64_t bound);
  // Begins this rank's progress table for a batch. `from`: the lost rank whose progress it starts with; -1: none.
  void SetProgress(int64_t batch, int from);
  // Whether all batches are trained or refused, or training has stopped and no rank holds a batch.
  bool IsOver();
  // The oldest batch that any rank holds or is about to take, and that rank. If none: kNone, and `rank` is unchanged.
  int64_t FindOldest(int* rank) const;

  void* const memory_;
  const Sizes sizes_;
  const int rank_;
  const int size_;
  char* data_;
  int64_t batch_ = -1;            // the batch that this rank trains; -1: none
  int64_t reserved_ = -1;         // the batch that this rank holds but does not train yet; -1: none
  int64_t trained_at_begin_ = 0;  // the number of batches that had been trained at `Begin`
  int64_t all_done_before_ = 0;   // for `IsOver`: all batches with a smaller number are trained or refused
  // Of each addition of the batch: the numbers or rows added by a lost rank, and the count of this rank's runs so far.
  std::vector<int64_t> inherited_;
  std::vector<std::atomic<int64_t>> counted_;
};

// The current store of this process; null if there is none. Kernels keep it alive by their shared pointer.
std::shared_ptr<SharedStore> TheStore();
void SetTheStore(std::shared_ptr<SharedStore> store);

}  // namespace matex
