#include "cli/common.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>

#include "io/env.h"

namespace farsight::cli {
namespace {

std::atomic<bool> interrupted{false};

void OnInterrupt(int) {
  if (interrupted.exchange(true)) _exit(kExitInterrupted);
}

}  // namespace

void HoldStandardStreams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) < 0) (void)open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

std::string OneLine(const std::string& text) {
  constexpr size_t kHead = 700, kTail = 300;  // a long name in the middle gives way
  const auto byte = [](const std::string& s, size_t i) { return i < s.size() ? static_cast<unsigned char>(s[i]) : 0; };
  std::string line = text;
  if (text.size() > kHead + kTail) {
    size_t head = kHead, tail = text.size() - kTail;
    while (head > 0 && (byte(text, head) & 0xc0) == 0x80) --head;
    while ((byte(text, tail) & 0xc0) == 0x80) ++tail;
    line = text.substr(0, head) + " ... " + text.substr(tail);
  }
  for (size_t i = 0; i < line.size(); ++i) {
    // Control characters of ASCII, and those beyond it, which are two bytes.
    if (byte(line, i) < 0x20 || byte(line, i) == 0x7f) line[i] = '?';
    if (byte(line, i) == 0xc2 && byte(line, i + 1) >= 0x80 && byte(line, i + 1) < 0xa0) line[i] = line[i + 1] = '?';
  }
  return line;
}

void Warn(const std::string& sentence) { Tell("farsight: {}\n", OneLine(sentence)); }

int Fail(const Status& status) {
  Warn(status.message());
  return status.code() == StatusCode::kCancelled ? kExitInterrupted : kExitError;
}

int FailUsage(const Status& status) {
  (void)Fail(status);
  return kExitUsage;
}

StatusOr<std::string> FindModel(const std::string& name) {
  if (name.empty()) return InvalidArgument("no model was named; give one with -m");
  if (FileExists(name)) return name;
  if (name.find('/') != std::string::npos) return NotFound("there is no model at '" + name + "'");
  std::vector<std::string> folders;
  if (const char* env = std::getenv("FARSIGHT_MODELS"); env != nullptr && *env != 0) folders.emplace_back(env);
  char self[4096];
  if (const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1); n > 0) {
    std::string dir(self, static_cast<size_t>(n));  // <repository>/build/<preset>/bin/farsight
    for (int up = 0; up < 4 && dir.find('/') != std::string::npos; ++up) dir.erase(dir.rfind('/'));
    folders.push_back(dir + "/models");
  }
  folders.emplace_back("models");
  std::string looked;
  for (const auto& folder : folders) {
    for (const char* suffix : {"", ".gguf"}) {
      if (const std::string path = folder + "/" + name + suffix; FileExists(path)) return path;
    }
    looked += (looked.empty() ? "" : ", ") + folder;
  }
  return NotFound("there is no model named '" + name + "': no such file, and not in " + looked);
}

StatusOr<std::shared_ptr<Model>> LoadModel(const ModelArgs& args) {
  FS_ASSIGN_OR_RETURN(const std::string path, FindModel(args.model));
  return Model::Load(path, {.threads = args.threads, .isa = args.isa, .reference = args.reference});
}

StatusOr<AttentionOptions> ToOptions(const AttentionArgs& args) {
  AttentionOptions o = args.values;
  FS_ASSIGN_OR_RETURN(o.policy, ParseAttentionPolicy(args.policy));
  if (args.phase == "all") {
    o.phase = SparsePhase::kAll;
  } else if (args.phase == "decode") {
    o.phase = SparsePhase::kDecode;
  } else if (!args.phase.empty()) {
    return InvalidArgument("unknown sparse phase '" + args.phase + "': expected decode or all");
  }
  FS_RETURN_IF_ERROR(Validate(o));
  return o;
}

std::string FindForecast(const AttentionArgs& args, const Model& model) {
  if (args.policy != AttentionPolicyName(AttentionPolicy::kSparda) || !args.forecast.empty()) return args.forecast;
  std::string beside = model.info().path;
  if (beside.size() > 5 && beside.substr(beside.size() - 5) == ".gguf") beside.resize(beside.size() - 5);
  beside += ".forecast.safetensors";
  if (FileExists(beside)) return beside;
  Warn("no Forecast for this model ('" + beside + "' does not exist): its own queries choose the blocks");
  return "";
}

StatusOr<int64_t> ParseSize(const std::string& text, const std::string& flag) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  const double bytes = shift < 0 ? 0 : number * static_cast<double>(int64_t{1} << shift);
  if (end == text.c_str() || !(bytes >= 1 && bytes < 9e18)) {
    return InvalidArgument(flag + " takes a size such as 64M or 1.5G, not '" + text + "'");
  }
  return static_cast<int64_t>(bytes);
}

Status SetKv(const KvArgs& args, EngineOptions* options) {
  if (!args.memory.empty()) {
    FS_ASSIGN_OR_RETURN(options->kv_memory, ParseSize(args.memory, "--kv-memory"));
  } else if (!args.file.empty()) {
    return InvalidArgument("--kv-file needs a --kv-memory: without one every key and value stays in memory");
  }
  options->kv_file = args.file;
  options->lookahead = !args.no_lookahead;
  return OkStatus();
}

StatusOr<Completion> Drive(Engine& engine, Request request) {
  std::optional<Completion> out;
  FS_ASSIGN_OR_RETURN(const Engine::Id id,
                      engine.Submit(std::move(request), [&](Completion c) { out = std::move(c); }));
  while (!out) {
    if (Interrupted()) engine.Cancel(id);
    FS_RETURN_IF_ERROR(engine.Step());
  }
  if (out->finish_reason == FinishReason::kError) return out->status;
  return std::move(*out);
}

StatusOr<std::string> ReadText(const std::string& path) {
  if (Interrupted()) return Cancelled("interrupted");
  return ReadFileToString(path, size_t{1} << 30);
}

ProgressBar::ProgressBar(std::string label) : label_(std::move(label)), terminal_(isatty(STDERR_FILENO) != 0) {}

void ProgressBar::Update(int64_t done, int64_t total) {
  if (!terminal_) return;
  const double now = Now();
  if (!drawn_) started_ = now;
  if (drawn_ && now - last_ < 0.1 && done < total) return;
  last_ = now;
  drawn_ = true;
  winsize size = {};
  const int width = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1.0;
  const double speed = now > started_ ? static_cast<double>(done) / (now - started_) : 0;
  const std::string tail = speed > 0 ? fmt::format(" {}/{}  {:.0f} tok/s  {:.0f} s left", done, total, speed,
                                                   static_cast<double>(total - done) / speed)
                                     : fmt::format(" {}/{}", done, total);
  const int room = width - static_cast<int>(label_.size() + tail.size()) - 4;
  const int cells = std::max(0, std::min(40, room));
  const int full = static_cast<int>(share * cells);
  Tell("\r\x1b[K{} [{}{}]{}", label_, std::string(static_cast<size_t>(full), '#'),
       std::string(static_cast<size_t>(cells - full), ' '), tail);
  std::fflush(stderr);
}

void ProgressBar::Clear() {
  if (!drawn_) return;
  Tell("\r\x1b[K");
  std::fflush(stderr);
  drawn_ = false;
}

void CatchInterrupt() {
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  sigaction(SIGINT, &action, nullptr);
}
bool Interrupted() { return interrupted.load(); }

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string HumanBytes(int64_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (bytes < 1024) return fmt::format("{} B", bytes);
  if (bytes < (1 << 20)) return fmt::format("{:.1f} KiB", b / 1024);
  if (bytes < (1 << 30)) return fmt::format("{:.1f} MiB", b / (1 << 20));
  return fmt::format("{:.2f} GiB", b / (1 << 30));
}

}  // namespace farsight::cli
