#include <sched.h>

#include <algorithm>
#include <thread>

#include "engine/model_impl.h"
#include "io/env.h"
#include "io/gguf.h"
#include "io/safetensors.h"

namespace farsight {
namespace {

constexpr size_t kMaxConfigBytes = size_t{16} << 20;

// Processors this process may run on, which in a container is fewer than the machine has.
int AvailableProcessors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::string DescribeRope(const RopeConfig& r) {
  std::string s =
      "theta " + std::to_string(static_cast<int64_t>(r.theta)) + ", " + std::to_string(r.dims) + " channels";
  switch (r.scaling) {
    case RopeScaling::kNone:
      return s;
    case RopeScaling::kLinear:
      return s + ", linear scaling";
    case RopeScaling::kFactors:
    case RopeScaling::kLlama3:
      return s + ", Llama 3 scaling";
    case RopeScaling::kLongRope:
      return s + ", LongRoPE";
    case RopeScaling::kYarn:
      return s + ", YaRN";
  }
  return s;
}

void Describe(const ModelFile& file, Model::Impl* m) {
  ModelInfo& info = m->info;
  const ModelConfig& c = m->config;
  info.path = file.path();
  info.name = c.name;
  info.architecture = c.architecture;
  info.backend = m->loaded->backend_name();
  info.weight_bytes = m->loaded->weight_bytes();
  info.weight_bytes_token = m->loaded->weight_bytes_token();
  info.layers = c.layers;
  info.hidden = c.hidden;
  info.heads = c.heads;
  info.kv_heads = c.kv_heads;
  info.kv_sets = std::max(1, c.nsa.kv_sets);
  info.head_dim = c.head_dim;
  info.ffn = c.ffn;
  info.vocab = c.vocab;
  info.context = c.context;
  info.rope = DescribeRope(c.rope);
  info.tokenizer = m->tokenizer->Describe();
  info.has_chat_template = m->chat_template.has_value();
  info.trained_attention = c.attention;
  for (const auto& t : file.tensors()) {
    info.parameters += t.num_elements();
    info.tensors.push_back({t.name, InfoOf(t.dtype).name, t.shape, static_cast<int64_t>(t.data.size())});
  }
}

}  // namespace

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

StatusOr<std::shared_ptr<Model>> Model::Load(const std::string& path, const ModelOptions& options) {
  if (options.threads < 0 || options.threads > 1024) {
    return InvalidArgument("the number of threads must be between 0 (automatic) and 1024, not " +
                           std::to_string(options.threads));
  }
  if (!FileExists(path)) return NotFound("there is no model at '" + path + "'");
  auto m = std::make_unique<Impl>();
  std::string chat_template;
  const bool directory = IsDirectory(path);
  std::shared_ptr<const ModelFile> file;
  if (directory) {
    FS_ASSIGN_OR_RETURN(const std::string config, ReadFileToString(path + "/config.json", kMaxConfigBytes));
    FS_ASSIGN_OR_RETURN(m->config, ConfigFromJson(config, path + "/config.json"));
    FS_ASSIGN_OR_RETURN(auto read, TokenizerFromDirectory(path));
    m->tokenizer = std::move(read.tokenizer);
    chat_template = std::move(read.chat_template);
    FS_ASSIGN_OR_RETURN(file, OpenSafetensors(path));
  } else {
    FS_ASSIGN_OR_RETURN(file, OpenGguf(path));
    FS_ASSIGN_OR_RETURN(m->config, ConfigFromGguf(*file));
    FS_ASSIGN_OR_RETURN(m->tokenizer, TokenizerFromGguf(*file));
    FS_ASSIGN_OR_RETURN(chat_template, file->OptString("tokenizer.chat_template", ""));
  }
  // Embeddings are often padded past the vocabulary; the other way round a token would have no embedding.
  if (m->tokenizer->vocab_size() > m->config.vocab) {
    return DataLoss("'" + path + "' has " + std::to_string(m->tokenizer->vocab_size()) + " tokens but embeddings for " +
                    std::to_string(m->config.vocab));
  }
  if (!chat_template.empty()) {
    // A template outside our subset leaves a model that still completes text.
    auto parsed = ChatTemplate::Parse(chat_template);
    if (parsed.ok()) {
      m->chat_template = std::move(parsed).value();
    } else {
      m->info.chat_template_error = parsed.status().message();
    }
  }
  const WeightNames names = directory ? WeightNames::kHuggingFace : WeightNames::kGguf;
  if (options.reference) {
    FS_ASSIGN_OR_RETURN(m->loaded, LoadOnReference(*file, m->config, names));
  } else {
    const int threads = options.threads > 0 ? options.threads : AvailableProcessors();
    FS_ASSIGN_OR_RETURN(m->loaded, LoadOnCpu(*file, m->config, names, threads, options.isa));
  }
  Describe(*file, m.get());
  return std::shared_ptr<Model>(new Model(std::move(m)));
}

const ModelInfo& Model::info() const { return impl_->info; }
int Model::threads() const { return impl_->loaded->threads(); }
void Model::SetThreads(int threads) { impl_->loaded->SetThreads(threads); }

std::vector<int32_t> Model::Tokenize(std::string_view text) const {
  return Tokenize(text, impl_->tokenizer->add_bos(), false);
}
std::vector<int32_t> Model::Tokenize(std::string_view text, bool bos, bool special) const {
  return impl_->tokenizer->Encode(text, {.add_bos = bos, .parse_control = special});
}
std::string Model::TokenText(int32_t token) const { return impl_->tokenizer->TokenBytes(token); }
std::string Model::Detokenize(std::span<const int32_t> tokens) const { return impl_->tokenizer->Decode(tokens, false); }
bool Model::IsEndToken(int32_t token) const { return impl_->tokenizer->IsEnd(token); }

StatusOr<std::vector<int32_t>> Model::ApplyChatTemplate(std::span<const ChatMessage> messages) const {
  if (!impl_->chat_template) {
    const std::string& why = impl_->info.chat_template_error;
    return Unimplemented("the model '" + impl_->info.path + "' has no chat template that can be used" +
                         (why.empty() ? "" : ": " + why));
  }
  const Tokenizer& t = *impl_->tokenizer;
  ChatTemplateOptions options;
  if (t.bos() >= 0) options.bos_token = t.TokenBytes(t.bos());
  if (t.eos() >= 0) options.eos_token = t.TokenBytes(t.eos());
  std::vector<ChatTurn> turns;
  for (const auto& m : messages) turns.push_back({m.role, m.content});
  FS_ASSIGN_OR_RETURN(const auto pieces, impl_->chat_template->Render(turns, options));
  std::vector<Tokenizer::TextPiece> parts;
  parts.reserve(pieces.size());
  for (const auto& piece : pieces) parts.push_back({piece.text, !piece.is_user_text});
  std::vector<int32_t> ids = t.EncodePieces(parts);
  if (t.add_bos() && (ids.empty() || ids[0] != t.bos())) ids.insert(ids.begin(), t.bos());
  return ids;
}

}  // namespace farsight
