// Which page leaves memory when room is needed: books over slots, never a byte of KV.
#ifndef FARSIGHT_KV_TIER_RETENTION_H_
#define FARSIGHT_KV_TIER_RETENTION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace farsight {

enum class RetentionPolicy : uint8_t {
  kLru,  // the page used longest ago; blind to the layers' turns, so it drops what the next layer is about to need
  // Ages in turns of the page's own layer; among equals the page whose layer comes again last.
  kTurnLru,
  // As kTurnLru, but a page's age comes from all its uses, each worth half after half_life turns. The history outlives
  // eviction, so a page that keeps coming back stays.
  kFrequency,
};

struct RetentionOptions {
  RetentionPolicy policy = RetentionPolicy::kFrequency;
  double half_life = 8;  // turns
};

// One step gives every layer a turn, in ascending order. A score says when a page was worth one use, in turns.
class Retention {
 public:
  static constexpr double kNever = -1e18;

  Retention(int32_t num_slots, int32_t layers, const RetentionOptions& options);

  // The score after a use in turn `step` of `layer`, from the score before (kNever: none).
  double Used(double score, int64_t step, int32_t layer) const;

  // Makes a slot a candidate with this score, or no longer one. In O(log slots); allocates only until warm.
  void Offer(int32_t slot, int32_t layer, double score);
  void Hold(int32_t slot);
  bool Offered(int32_t slot) const { return places_[static_cast<size_t>(slot)] >= 0; }

  // The candidate to drop while `layer` has its turn in `step`; it is no candidate any more. -1: there is none.
  int32_t TakeVictim(int64_t step, int32_t layer);

 private:
  struct Entry {
    double score;
    int32_t slot;
  };
  using Heap = std::vector<Entry>;  // least score first, then least slot

  static bool Before(const Entry& a, const Entry& b) {
    return a.score < b.score || (a.score == b.score && a.slot < b.slot);
  }
  void SiftUp(Heap* heap, size_t i);
  void SiftDown(Heap* heap, size_t i);
  void Put(Heap* heap, size_t i, const Entry& e);

  RetentionOptions options_;
  int32_t layers_;
  std::vector<Heap> heaps_;      // of each layer
  std::vector<int32_t> places_;  // of each slot in its heap; -1: no candidate
  std::vector<int32_t> owners_;  // layer of each slot's page
};

}  // namespace farsight

#endif  // FARSIGHT_KV_TIER_RETENTION_H_
