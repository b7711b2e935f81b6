#include "kv/tier_retention.h"

#include <cmath>

#include "base/check.h"

namespace farsight {

Retention::Retention(int32_t num_slots, int32_t layers, const RetentionOptions& options)
    : options_(options),
      layers_(layers),
      heaps_(static_cast<size_t>(layers)),
      places_(static_cast<size_t>(num_slots), -1),
      owners_(static_cast<size_t>(num_slots), 0) {}

double Retention::Used(double score, int64_t step, int32_t layer) const {
  const auto now = static_cast<double>(step);
  switch (options_.policy) {
    case RetentionPolicy::kLru:
      return now + static_cast<double>(layer) / static_cast<double>(layers_);
    case RetentionPolicy::kTurnLru:
      return now;
    case RetentionPolicy::kFrequency:
      break;
  }
  // Uses at turns t weigh 2^(t / half_life); the score is the turn whose weight is their sum. No clock has to be kept:
  // the order of scores does not change with time.
  return now + options_.half_life * std::log2(1.0 + std::exp2((score - now) / options_.half_life));
}

void Retention::Put(Heap* heap, size_t i, const Entry& e) {
  (*heap)[i] = e;
  places_[static_cast<size_t>(e.slot)] = static_cast<int32_t>(i);
}

void Retention::SiftUp(Heap* heap, size_t i) {
  const Entry e = (*heap)[i];
  while (i > 0 && Before(e, (*heap)[(i - 1) / 2])) {
    Put(heap, i, (*heap)[(i - 1) / 2]);
    i = (i - 1) / 2;
  }
  Put(heap, i, e);
}

void Retention::SiftDown(Heap* heap, size_t i) {
  const Entry e = (*heap)[i];
  for (;;) {
    size_t child = 2 * i + 1;
    if (child >= heap->size()) break;
    if (child + 1 < heap->size() && Before((*heap)[child + 1], (*heap)[child])) ++child;
    if (!Before((*heap)[child], e)) break;
    Put(heap, i, (*heap)[child]);
    i = child;
  }
  Put(heap, i, e);
}

void Retention::Offer(int32_t slot, int32_t layer, double score) {
  FS_CHECK(!Offered(slot), "a slot is offered once");
  owners_[static_cast<size_t>(slot)] = layer;
  Heap& heap = heaps_[static_cast<size_t>(layer)];
  heap.push_back({score, slot});
  SiftUp(&heap, heap.size() - 1);
}

void Retention::Hold(int32_t slot) {
  auto& place = places_[static_cast<size_t>(slot)];
  if (place < 0) return;
  Heap& heap = heaps_[static_cast<size_t>(owners_[static_cast<size_t>(slot)])];
  const auto i = static_cast<size_t>(place);
  place = -1;
  const Entry last = heap.back();
  heap.pop_back();
  if (i == heap.size()) return;
  Put(&heap, i, last);
  SiftUp(&heap, i);
  SiftDown(&heap, static_cast<size_t>(places_[static_cast<size_t>(last.slot)]));
}

int32_t Retention::TakeVictim(int64_t step, int32_t layer) {
  int32_t best = -1;
  double best_value = 0;
  for (int32_t l = 0; l < layers_; ++l) {
    const Heap& heap = heaps_[static_cast<size_t>(l)];
    if (heap.empty()) continue;
    double value = heap[0].score;
    if (options_.policy != RetentionPolicy::kLru) {
      const int64_t last_turn = l <= layer ? step : step - 1;
      const auto until_next = static_cast<double>((l - layer - 1 + layers_) % layers_ + 1);
      value -= static_cast<double>(last_turn) + 0.5 * until_next / static_cast<double>(layers_);
    }
    if (best < 0 || value < best_value) {
      best = heap[0].slot;
      best_value = value;
    }
  }
  if (best >= 0) Hold(best);
  return best;
}

}  // namespace farsight
