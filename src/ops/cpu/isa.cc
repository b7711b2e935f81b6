#include "ops/cpu/isa.h"

#include <cstdlib>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace farsight {
namespace {

#if defined(__x86_64__)
// F16C has no name in every compiler's __builtin_cpu_supports.
bool HasF16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1u << 29)) != 0;
}

bool HasAvx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}
#else
bool HasAvx2() { return false; }
bool HasAvx512() { return false; }
#endif

}  // namespace

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kBest:
      return "best";
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "?";
}

StatusOr<Isa> ParseIsa(std::string_view name) {
  for (const Isa isa : {Isa::kBest, Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (name == IsaName(isa)) return isa;
  }
  return InvalidArgument("expected an instruction set of best, scalar, avx2 or avx512, got '" + std::string(name) +
                         "'");
}

bool IsaAvailable(Isa isa) {
  switch (isa) {
    case Isa::kBest:
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return HasAvx2();
    case Isa::kAvx512:
      return HasAvx512();
  }
  return false;
}

StatusOr<Isa> ResolveIsa(Isa isa) {
  if (isa == Isa::kBest) {
    const char* forced = std::getenv("FARSIGHT_ISA");
    if (forced != nullptr && forced[0] != '\0') {
      StatusOr<Isa> parsed = ParseIsa(forced);
      if (!parsed.ok()) return InvalidArgument("FARSIGHT_ISA: " + parsed.status().message());
      isa = *parsed;
    }
  }
  if (isa == Isa::kBest) {
    if (HasAvx512()) return Isa::kAvx512;
    return HasAvx2() ? Isa::kAvx2 : Isa::kScalar;
  }
  if (!IsaAvailable(isa)) {
    return Unimplemented(std::string("the instruction set ") + IsaName(isa) +
                         " was asked for, but this processor does not have it");
  }
  return isa;
}

}  // namespace farsight
