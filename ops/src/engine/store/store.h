// Weights that all ranks of one node train in the same memory, and whose turn it is: batches are taken by number, each
// by one rank, and a rank begins one only while the oldest under way is at most `bound` behind it.
//
// Nobody holds a lock. Each batch has a word that says who has it, so that what a lost rank had begun is taken over from
// it, once; and each rank tells how far it is with each addition of its step, so that whoever takes over adds the rest.
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
  // What `Begin` comes to.
  enum Begun : int {
    kTaken = 0,  // this rank is to train batch `ticket`
    kEnd = 1,    // there is none left, and none under way
    kNotYet = 2  // it waits for rank `behind`
  };

  // What ranks have in common.
  struct Sizes {
    int64_t bytes = 0;    // of what is shared
    int64_t batches = 0;  // of an epoch, at most
    int64_t parts = 0;    // the additions of a step
  };

  // All zeros. All ranks call it together. `made` is null on all where they have no memory in common.
  static Error Make(const Sizes& sizes, std::shared_ptr<SharedStore>* made);
  ~SharedStore();
  SharedStore(const SharedStore&) = delete;
  SharedStore& operator=(const SharedStore&) = delete;

  // Where what is shared lies, at a multiple of 64 bytes; the same place from the start on all ranks.
  char* data() const { return data_; }
  bool Has(const void* place) const { return place >= data_ && place < data_ + sizes_.bytes; }

  // Deal batches `first` to `count`, those before being trained; one rank calls it, while no other is between `Begin` and
  // `End`. Rank r begins with batch `first` + r.
  void Deal(int64_t first, int64_t count);

  // Get a batch and wait until it may be trained, but not for much longer than `seconds`; then call it again. It is the
  // next, or one that a lost rank had.
  Begun Begin(int64_t bound, double seconds, int64_t* ticket, int* behind);

  // What `Begin` gave is trained; `version` is for `VersionOf`. How many batches others have trained since it gave it.
  int64_t End(int version);

  // Give back what was begun, if anything: nobody trains it, and nobody waits for this rank any more. A batch that is not
  // there is given back, too.
  void Leave();

  // Nobody takes a batch any more.
  void Stop();

  // That rank is lost: others train what it had. Whether nobody has said so before; `ticket` is what it had begun last,
  // -1 if it is trained.
  bool Lose(int rank, int64_t* ticket);
  bool IsLost(int rank) const;

  // What that rank gave `End` of the last batch that is known to be trained; 1 if there is none. 0 and 1 alternate.
  int VersionOf(int rank) const;

  // How many batches were trained since they were dealt, by whomever.
  int64_t CountTrained() const;

  // One of the additions of the step of this rank's batch, of `count` numbers or rows: those from `first` on are to be
  // added, and `Tell` says how far that is. What is before a lost rank has added.
  class Addition {
   public:
    int64_t first = 0;
    void Tell(int64_t added) const { progress_->store(before_ + added, std::memory_order_release); }

   private:
    friend class SharedStore;
    std::atomic<int64_t>* progress_ = nullptr;
    int64_t before_ = 0;  // of `count`, where the same op has run before in this step
  };

  // False if no batch is under way, or a step has fewer additions.
  bool BeginAddition(int64_t part, int64_t count, Addition* addition);

 private:
  struct Control;
  struct Line;

  SharedStore(void* memory, const Sizes& sizes, int rank, int size);
  static int64_t HeadBytes(const Sizes& sizes, int size);
  static int64_t TablesAt(const Sizes& sizes, int size);
  static int64_t TableBytes(const Sizes& sizes);
  Control& control() const;
  Line& LineOf(int rank) const;
  std::atomic<int32_t>& WordOf(int64_t batch) const;
  std::atomic<int64_t>* TableOf(int rank) const;
  int64_t FindHeld(int rank) const;
  bool Take();
  bool TakeOver(int64_t bound);
  void SetProgress(int64_t ticket, int from);
  bool IsOver();
  int64_t Oldest(int* rank) const;

  void* const memory_;
  const Sizes sizes_;
  const int rank_;
  const int size_;
  char* data_;
  int64_t ticket_ = -1;    // the batch that this rank trains; -1 if it trains none
  int64_t reserved_ = -1;  // the batch that it has taken, and may not train yet
  int64_t seen_ = 0;       // the batches that had been trained when it began
  int64_t done_ = 0;       // batches before it are trained, or refused
  std::vector<int64_t> inherited_;             // of each addition, what a lost rank has made of it
  std::vector<std::atomic<int64_t>> counted_;  // of each addition, what this rank has come to of it
};

// The store of this process, of which there is one at a time; null if there is none.
std::shared_ptr<SharedStore> TheStore();
void SetTheStore(std::shared_ptr<SharedStore> store);

}  // namespace matex
