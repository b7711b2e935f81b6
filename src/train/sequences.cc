#include "train/sequences.h"

#include <numeric>

#include "base/check.h"

namespace farsight {

uint64_t SeededRandom::Next() {
  state_ += 0x9e3779b97f4a7c15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

uint64_t SeededRandom::Below(uint64_t n) {
  FS_DCHECK(n > 0, "there is a number to draw");
  const uint64_t limit = n * (UINT64_MAX / n);  // draws past it would favour small numbers
  uint64_t x = Next();
  while (x >= limit) x = Next();
  return x % n;
}

double SeededRandom::Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

uint64_t MixSeed(uint64_t seed, uint64_t a, uint64_t b) {
  return SeededRandom(SeededRandom(SeededRandom(seed).Next() ^ a).Next() ^ b).Next();
}

PackedText::PackedText(std::span<const std::vector<int32_t>> documents, int32_t separator, int64_t sequence_tokens)
    : length_(sequence_tokens) {
  FS_CHECK(sequence_tokens > 0, "a sequence has tokens");
  for (const auto& d : documents) {
    if (separator >= 0) tokens_.push_back(separator);
    tokens_.insert(tokens_.end(), d.begin(), d.end());
  }
  tokens_.resize(tokens_.size() / static_cast<size_t>(length_) * static_cast<size_t>(length_));
}

PackedText PackedText::SplitOff(int64_t n) {
  FS_CHECK(n >= 0 && n <= size(), "there are that many sequences");
  const auto cut = tokens_.end() - static_cast<std::ptrdiff_t>(n * length_);
  PackedText out(std::vector<int32_t>(cut, tokens_.end()), length_);
  tokens_.erase(cut, tokens_.end());
  return out;
}

int64_t SequenceOrder::At(int64_t n) {
  const int64_t epoch = n / count_;
  if (epoch != epoch_) {
    epoch_ = epoch;
    order_.resize(static_cast<size_t>(count_));
    std::iota(order_.begin(), order_.end(), 0);
    SeededRandom random(MixSeed(seed_, 0x6f72646572, static_cast<uint64_t>(epoch)));
    for (size_t i = order_.size() - 1; i > 0; --i) std::swap(order_[i], order_[random.Below(i + 1)]);
  }
  return order_[static_cast<size_t>(n % count_)];
}

std::vector<int32_t> DrawRows(int64_t first, int64_t end, int64_t wanted, uint64_t seed) {
  std::vector<int32_t> out;
  const int64_t available = std::max<int64_t>(end - first, 0);
  if (wanted <= 0 || wanted >= available) {
    for (int64_t p = first; p < end; ++p) out.push_back(static_cast<int32_t>(p));
    return out;
  }
  SeededRandom random(seed);
  for (int64_t i = 0; i < wanted; ++i) {
    const int64_t from = first + available * i / wanted;
    const int64_t to = first + available * (i + 1) / wanted;
    out.push_back(static_cast<int32_t>(from + static_cast<int64_t>(random.Below(static_cast<uint64_t>(to - from)))));
  }
  return out;
}

}  // namespace farsight
