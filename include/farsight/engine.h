// The library's front door: load a model, make an engine, submit requests, step.
//
//   auto model = farsight::Model::Load("smollm2.gguf", {});
//   auto engine = farsight::Engine::Create(model.value(), {});
//   farsight::Request request{.prompt = model.value()->Tokenize("Once upon a time")};
//   auto done = engine.value()->Generate(std::move(request));
//
// Threads: a Model is immutable and may be shared. An Engine is used from one thread at a time, and engines that share
// a Model must not step at the same time (they share its worker threads).
#ifndef FARSIGHT_ENGINE_H_
#define FARSIGHT_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "farsight/options.h"
#include "farsight/request.h"
#include "farsight/status.h"

namespace farsight {

struct TensorInfo {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

// Facts about a loaded model.
struct ModelInfo {
  std::string path;
  std::string name;          // what the file calls itself, may be empty
  std::string architecture;  // "llama", "qwen2", ...
  std::string backend;       // "cpu/avx2", "reference"
  int64_t parameters = 0;
  int64_t weight_bytes = 0;        // in memory
  int64_t weight_bytes_token = 0;  // read for one decoded token
  int layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  int kv_sets = 1;  // keys and values of a token and KV head: 3 where NSA branches have their own
  int64_t vocab = 0;
  int64_t context = 0;
  std::string rope;       // one line
  std::string tokenizer;  // one line
  bool has_chat_template = false;
  std::string chat_template_error;     // why the file's own template cannot be used; "" when it can or there is none
  AttentionOptions trained_attention;  // policy kDense unless the model was trained sparse
  std::vector<TensorInfo> tensors;
};

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", ...
  std::string content;
};

class Model {
 public:
  // A GGUF file, or a directory with config.json, tokenizer.json and safetensors.
  static StatusOr<std::shared_ptr<Model>> Load(const std::string& path, const ModelOptions& options);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelInfo& info() const;
  int threads() const;
  void SetThreads(int threads);  // no engine of this model may be stepping

  // Plain text: control tokens in it stay text. With the model's BOS where it asks for one.
  std::vector<int32_t> Tokenize(std::string_view text) const;
  // As Tokenize; `special` also recognises control tokens written out.
  std::vector<int32_t> Tokenize(std::string_view text, bool bos, bool special) const;
  std::string TokenText(int32_t token) const;  // raw bytes of one token, control tokens as they are written
  std::string Detokenize(std::span<const int32_t> tokens) const;
  bool IsEndToken(int32_t token) const;
  // The model's chat template over the conversation, ready for the assistant's answer. Content is never parsed for
  // control tokens. kUnimplemented when the model has no template.
  StatusOr<std::vector<int32_t>> ApplyChatTemplate(std::span<const ChatMessage> messages) const;

  struct Impl;
  const Impl& impl() const { return *impl_; }
  Impl& impl() { return *impl_; }

 private:
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Keys and values of one layer in memory and in the file; a page is those of one block and KV head.
struct KvTierStats {
  int64_t selected = 0;  // pages that attention asked for
  int64_t hit = 0;       // of them: in memory, or on their way already
  int64_t missed = 0;    // of them: read from the file
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  double waited_seconds = 0;  // the step stood still
  double hidden_seconds = 0;  // reads were under way while it computed
};

// A way to guess tokens and check them, by name ("off", "suffix chain:7 bfs group:1"), and the steps that went so.
struct StrategyUse {
  std::string strategy;
  int64_t steps = 0;
};

// What approximate steps did to the model's word, over the rows of those that were also run exactly.
struct ApproximationError {
  int64_t rows = 0;
  double flip_rate = 0;          // of the most probable token
  double kl_mean = 0;            // nats
  double substitution_mean = 0;  // of a block list: the most that it can move a row's attention weights, 0 to 1
  double substitution_p99 = 0;
};

// Counters since the engine was made.
struct EngineStats {
  int64_t steps = 0;
  int64_t rows = 0;
  int64_t preemptions = 0;
  int64_t blocks_total = 0;  // of the pool
  int64_t blocks_free = 0;
  int64_t kv_bytes = 0;               // the pool's size, summaries included
  int64_t kv_memory = 0;              // for keys and values, where a file holds the others; else 0
  std::string kv_file;                // how the file is read, for people
  int64_t session_tokens = 0;         // in the session file
  std::vector<KvTierStats> kv_tiers;  // by layer, where there is a file
  AttentionOptions attention;         // resolved
  double select_seconds = 0;          // spent choosing blocks, the products of Forecasts included
  bool forecast = false;              // blocks are chosen by Forecast projections
  int64_t context_tokens = 0;
  std::vector<StrategyUse> strategies;  // where drafts were asked for; those of most steps first
  std::string profile_fault;            // why EngineOptions::profile is not used, one sentence; empty: it is
  ApproximationError approximation;     // of a precision class other than strict
};

class Engine {
 public:
  static StatusOr<std::unique_ptr<Engine>> Create(std::shared_ptr<Model> model, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  using Id = uint64_t;
  using DoneFn = std::function<void(Completion)>;

  // Checks the request and queues it; `done` runs inside a later Step. A prompt that does not fit the context, an id
  // outside the vocabulary or a bad setting is refused here, with both numbers in the message.
  StatusOr<Id> Submit(Request request, DoneFn done);
  // Ends a request at the next step boundary (kCancelled). Unknown ids are ignored: it may just have finished.
  void Cancel(Id id);
  bool HasWork() const;
  // One step: a chunk of waiting prompts beside one token of every running sequence. A failure of one request goes to
  // its Completion; a Status here is the engine's own.
  Status Step();

  // Submit and step until this request is done.
  StatusOr<Completion> Generate(Request request);

  // Makes the sequence of the request that finished last the content of EngineOptions::session: prompt and answer, but
  // for the last token of it, which was never computed. On an error the file is as it was. Nothing to do: OK.
  Status SaveSession();

  // Forgets the caches of finished sequences, which later requests with the same beginning would reuse.
  void DropCaches();
  // Other attention for the requests to come; weights and buffers stay. Of the caches of finished sequences the
  // beginning that attended to everything is kept, with summaries made anew, so answers are those of a new engine, bit
  // for bit. kInvalidArgument while a request is under way and for another block size. On an error nothing changes.
  Status SetAttention(const AttentionOptions& attention);
  // Another way of drafting for the requests to come: what `options` says of it (drafting, draft_max, draft_tree,
  // draft_group, draft_breadth_first, draft_model); the caches stay. kInvalidArgument while a request is under way,
  // where keys and values lie in a file, and for longer drafts than the engine was made for. On an error nothing
  // changes.
  Status SetDrafting(const EngineOptions& options);
  EngineStats stats() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace farsight

#endif  // FARSIGHT_ENGINE_H_
