#include "ops/cpu/isa.h"

#include <cstdlib>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace farsight {
namespace {

#if defined(__x86_64__)
// What the processor says of itself, for features without a name in every compiler's __builtin_cpu_supports.
struct Cpuid {
  unsigned a = 0, b = 0, c = 0, d = 0;  // zeros where the processor knows no such leaf
  explicit Cpuid(unsigned leaf) { __get_cpuid_count(leaf, 0, &a, &b, &c, &d); }
};

bool HasF16c() { return (Cpuid(1).c & (1u << 29)) != 0; }

bool HasAvx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

#if defined(__linux__)
// The state of tiles is large, so a process asks for it, once and before the threads that use it are started.
bool AskForTiles() {
  constexpr unsigned kTiles = 3u << 24;  // AMX-TILE, AMX-INT8
  constexpr unsigned kOsXsave = 1u << 27;
  constexpr unsigned kTileState = 3u << 17;  // configuration and data
  constexpr int kRequest = 0x1023;           // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  if ((Cpuid(7).d & kTiles) != kTiles || (Cpuid(1).c & kOsXsave) == 0) return false;
  unsigned enabled = 0;
  unsigned above = 0;
  __asm__ volatile("xgetbv" : "=a"(enabled), "=d"(above) : "c"(0));
  return (enabled & kTileState) == kTileState && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}
#else
bool AskForTiles() { return false; }
#endif

bool HasAmx() {
  static const bool has = HasAvx512() && AskForTiles();
  return has;
}
#else
bool HasAvx2() { return false; }
bool HasAvx512() { return false; }
bool HasAmx() { return false; }
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
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

StatusOr<Isa> ParseIsa(std::string_view name) {
  for (const Isa isa : {Isa::kBest, Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (name == IsaName(isa)) return isa;
  }
  return InvalidArgument("expected an instruction set of best, scalar, avx2, avx512 or amx, got '" + std::string(name) +
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
    case Isa::kAmx:
      return HasAmx();
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
    if (HasAmx()) return Isa::kAmx;
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
