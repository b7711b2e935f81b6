// farsight profile: what the planner of drafts should know of this model on this machine.
#include "spec/profile.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "cli/commands.h"
#include "engine/profiler.h"
#include "io/hash.h"

namespace farsight::cli {
namespace {

// Makes the folders on the way to a file; what cannot be made shows when the file is written.
void MakeFolders(const std::string& path) {
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
    (void)mkdir(path.substr(0, at).c_str(), 0755);
  }
}

void Print(const farsight::Profile& p) {
  Say("model    {}\nmachine  {}\n", p.of.model, p.of.machine);
  for (const VerifyTime& t : p.verify) {
    const auto one = std::find_if(p.verify.begin(), p.verify.end(),
                                  [&](const VerifyTime& o) { return o.rows == 1 && o.context == t.context; });
    Say("context {:>7}  rows {:>3}  {:>9.0f} us  {:>5.2f} of one row, {:>3.0f} % of blocks in common, {}\n", t.context,
        t.rows, t.median_us, t.median_us / one->median_us, 100 * t.overlap, VerifyModeName(t.mode));
  }
  for (const QualityRecord& q : p.quality) {
    Say("context {:>7}  {}: {:.2f} % other best tokens, KL {:.2g} (p99 {:.2g}), lists off by {:.3f} (p99), copies "
        "{:.1f} points worse: {}\n",
        q.context, VerifyModeName(q.mode), 100 * q.flip_rate, q.kl_mean, q.kl_p99, q.substitution_p99,
        100 * q.task_drop, Passes(q) ? "good enough" : "not good enough");
  }
  for (const AcceptancePrior& a : p.acceptance) {
    Say("context {:>7}  {} has a guess {:.0f} % of the time; right at depth 1, 2, ...:", a.context,
        DrafterKindName(a.drafter), 100 * a.available_first);
    for (const auto& ranks : a.rates) Say(" {:.2f}", ranks[0]);
    Say("\n");
  }
}

}  // namespace

std::string DefaultProfile(const Model& model, const EngineOptions& options) {
  std::string folder;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != 0) {
    folder = cache;
  } else if (const char* home = std::getenv("HOME"); home != nullptr && *home != 0) {
    folder = std::string(home) + "/.cache";
  }
  const auto of = ProfileFingerprint(model, options);
  if (folder.empty() || !of.ok()) return "";
  const std::string text = of->model + "\n" + of->machine;
  return fmt::format("{}/farsight/{:016x}.profile.json", folder, Checksum(std::as_bytes(std::span(text))));
}

int Profile(const ProfileArgs& args) {
  EngineOptions options;
  auto kv = ParseKvType(args.kv_type);
  auto attention = ToOptions(args.attention);
  auto precision = ParsePrecisionClass(args.precision);
  for (const Status& s : {kv.status(), attention.status(), precision.status()}) {
    if (s.ok()) continue;
    return FailUsage(s);
  }
  options.kv_type = *kv;
  options.attention = *attention;
  options.precision = *precision;
  auto model = LoadModel(args.model);
  if (!model.ok()) return Fail(model.status());
  if (!args.draft.empty()) {
    ModelArgs draft = args.model;
    draft.model = args.draft;
    draft.threads = 1;  // as run --draft model:NAME does
    auto loaded = LoadModel(draft);
    if (!loaded.ok()) return Fail(loaded.status());
    options.draft_model = *loaded;
  }
  auto text = ReadText(args.file);
  if (!text.ok()) return Fail(text.status());
  const std::string path = args.output.empty() ? DefaultProfile(**model, options) : args.output;
  if (path.empty()) return Fail(InvalidArgument("there is no cache folder ($HOME is not set); name a file with -o"));
  ProfilerOptions how;
  how.contexts = args.contexts;
  how.repeat = args.repeat;
  how.progress = [](const std::string& words) { Tell("{}\n", words); };
  auto profile = MeasureProfile(*model, options, (*model)->Tokenize(*text), how);
  if (!profile.ok()) return Fail(profile.status());
  Print(*profile);
  MakeFolders(path);
  if (const Status s = WriteProfile(path, *profile); !s.ok()) return Fail(s);
  Tell("written to {}\n", path);
  return kExitOk;
}

}  // namespace farsight::cli
