// The few statistics the evaluations report.
#ifndef FARSIGHT_EVAL_STATISTICS_H_
#define FARSIGHT_EVAL_STATISTICS_H_

#include <cstdint>
#include <span>

namespace farsight::eval {

struct Interval {
  double low = 0, high = 1;
};

// Wilson's 95 % interval of a share; [0, 1] when nothing was counted.
Interval Wilson(int64_t hits, int64_t n);

// Logarithm of the sum of exponentials: what the log-softmax subtracts. `logits` is not empty.
double LogSum(std::span<const float> logits);

// KL(softmax(a) || softmax(b)) in nats; both have the same size.
double Divergence(std::span<const float> a, std::span<const float> b);

// Mean and standard error of a stream of values.
class Mean {
 public:
  void Add(double value) {
    ++n_;
    sum_ += value;
    squares_ += value * value;
  }
  int64_t n() const { return n_; }
  double mean() const { return n_ > 0 ? sum_ / static_cast<double>(n_) : 0; }
  double error() const;

 private:
  int64_t n_ = 0;
  double sum_ = 0, squares_ = 0;
};

}  // namespace farsight::eval

#endif  // FARSIGHT_EVAL_STATISTICS_H_
