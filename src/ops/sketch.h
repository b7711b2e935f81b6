// The token sketch: how a centred key becomes a few bits a channel and one scale. One definition for every backend.
//
// Codes are integers c in [0, 2^bits); the level of a code is c - (2^bits - 1) / 2, so 1 bit gives -1/2, 1/2, 2 bits
// give -3/2 .. 3/2. A key x is approximated by scale * level(code).
#ifndef FARSIGHT_OPS_SKETCH_H_
#define FARSIGHT_OPS_SKETCH_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace farsight {

inline float SketchLevel(int code, int bits) {
  return static_cast<float>(code) - 0.5f * static_cast<float>((1 << bits) - 1);
}

// Step between levels in units of the key's root mean square: the least squared error for a Gaussian.
inline float SketchStep(int bits) { return bits == 1 ? 1.5958f : bits == 2 ? 0.9957f : 0.3352f; }

// Writes n codes and returns the scale (the step). A zero key gets scale 0.
inline float SketchToken(const float* x, int n, int bits, int8_t* codes) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  const float step = SketchStep(bits) * std::sqrt(sum / static_cast<float>(n));
  const float inverse = step > 0 ? 1.0f / step : 0.0f;
  const float half = 0.5f * static_cast<float>((1 << bits) - 1);
  const float top = static_cast<float>((1 << bits) - 1);
  for (int i = 0; i < n; ++i) {
    codes[i] =
        static_cast<int8_t>(std::clamp(x[i] * inverse + half + 0.5f, 0.0f, top));  // truncates what is not negative
  }
  return step;
}

}  // namespace farsight

#endif  // FARSIGHT_OPS_SKETCH_H_
