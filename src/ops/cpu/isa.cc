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

#if defined(__linux__)
// The state of tiles is large, so a process asks for it, once and before the threads that use it are started.
bool AskForTiles() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  constexpr unsigned kTile = 1u << 24;
  constexpr unsigned kInt8 = 1u << 25;
  constexpr unsigned kOsXsave = 1u << 27;
  constexpr unsigned kTileState = 3u << 17;  // configuration and data
  constexpr int kRequest = 0x1023;           // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTile) == 0 || (d & kInt8) == 0) return false;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsXsave) == 0) return false;
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return (a & kTileState) == kTileState && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
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
