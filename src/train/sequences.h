// Training text as sequences of one length, and the random choices of training: all of them functions of a seed and a
// counter, so that a resumed run makes the same ones.
#ifndef FARSIGHT_TRAIN_SEQUENCES_H_
#define FARSIGHT_TRAIN_SEQUENCES_H_

#include <cstdint>
#include <span>
#include <vector>

namespace farsight {

// SplitMix64.
class SeededRandom {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  uint64_t Below(uint64_t n);  // n > 0; unbiased
  double Uniform();            // [0, 1)

 private:
  uint64_t state_;
};

// Mixes a purpose and counters into one seed.
uint64_t MixSeed(uint64_t seed, uint64_t a, uint64_t b = 0);

// Documents one after another, each with `separator` before it (none where negative), cut into sequences. What is left
// at the end is dropped.
class PackedText {
 public:
  PackedText(std::span<const std::vector<int32_t>> documents, int32_t separator, int64_t sequence_tokens);

  int64_t size() const { return static_cast<int64_t>(tokens_.size()) / length_; }
  std::span<const int32_t> operator[](int64_t i) const {
    return std::span(tokens_).subspan(static_cast<size_t>(i * length_), static_cast<size_t>(length_));
  }
  // Takes the last n sequences away, for validation.
  PackedText SplitOff(int64_t n);

 private:
  PackedText(std::vector<int32_t> tokens, int64_t length) : length_(length), tokens_(std::move(tokens)) {}

  int64_t length_;
  std::vector<int32_t> tokens_;  // size() * length_
};

// The sequence that training sees as its n-th, of `count`: every one once an epoch, in an order of the epoch's own.
class SequenceOrder {
 public:
  SequenceOrder(int64_t count, uint64_t seed) : count_(count), seed_(seed) {}
  int64_t At(int64_t n);

 private:
  int64_t count_;
  uint64_t seed_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;  // of epoch_
};

// `wanted` ascending positions of [first, end), one drawn from each of as many equal parts; all of them where wanted is
// 0 or there are no more.
std::vector<int32_t> DrawRows(int64_t first, int64_t end, int64_t wanted, uint64_t seed);

}  // namespace farsight

#endif  // FARSIGHT_TRAIN_SEQUENCES_H_
