// Which instruction set the CPU kernels use. Each set is a complete implementation; a test can force any that exists.
#ifndef FARSIGHT_OPS_CPU_ISA_H_
#define FARSIGHT_OPS_CPU_ISA_H_

#include <string_view>

#include "farsight/status.h"

namespace farsight {

enum class Isa {
  kBest,    // the best of the following that this processor has
  kScalar,  // plain C++
  kAvx2,    // AVX2, FMA, F16C
  kAvx512,  // AVX-512 F/BW/VL/DQ with VNNI; BF16 where present
  kAmx,     // AVX-512 with products of many rows by tiles: AMX INT8, where the kernel grants it
};

const char* IsaName(Isa isa);                   // "scalar", "avx2", "avx512", "amx"
StatusOr<Isa> ParseIsa(std::string_view name);  // also "best"
bool IsaAvailable(Isa isa);                     // on this processor, under this system, in this build
// Turns kBest into a concrete set and refuses one that this processor lacks. The environment variable FARSIGHT_ISA,
// the only one the library reads, forces a set where the caller asked for kBest.
StatusOr<Isa> ResolveIsa(Isa isa);

}  // namespace farsight

#endif  // FARSIGHT_OPS_CPU_ISA_H_
