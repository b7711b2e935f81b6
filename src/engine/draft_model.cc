#include "engine/draft_model.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/model_impl.h"
#include "kv/sequence_cache.h"

namespace farsight {
namespace {

constexpr int kChunk = 256;  // rows of a step that reads what the drafter has not seen

class ModelDrafter final : public Drafter {
 public:
  ModelDrafter(std::shared_ptr<Model> model, int max_sequences, int context)
      : model_(std::move(model)), max_sequences_(max_sequences), context_(context) {}

  Status Prepare() {
    const ModelConfig& config = model_->impl().config;
    RunnerOptions r;
    FS_ASSIGN_OR_RETURN(r.plan, MakeAttentionPlan({}, config.attention, config.layers));
    const int block = r.plan.options.block_size;
    const int blocks = (context_ + block - 1) / block;
    pool_ = std::make_unique<BlockPool>(blocks * max_sequences_);
    block_tokens_ = block;
    selects_ = r.plan.Selects();
    r.context_tokens = context_;
    r.max_rows = std::max(kChunk, max_sequences_);
    r.max_seqs = max_sequences_;
    r.max_logit_rows = max_sequences_;
    r.num_blocks = blocks * max_sequences_;
    FS_ASSIGN_OR_RETURN(runner_, model_->impl().loaded->NewRunner(r));
    return OkStatus();
  }

  DrafterKind kind() const override { return DrafterKind::kModel; }

  Status Begin(uint64_t sequence) override {
    if (!states_.try_emplace(sequence, pool_.get(), block_tokens_).second) {
      return InvalidArgument("sequence " + std::to_string(sequence) + " was begun twice");
    }
    return OkStatus();
  }
  void End(uint64_t sequence) override { states_.erase(sequence); }

  Status Observe(uint64_t sequence, std::span<const int32_t> tokens) override {
    FS_ASSIGN_OR_RETURN(State * s, Find(sequence));
    s->tokens.insert(s->tokens.end(), tokens.begin(), tokens.end());
    return OkStatus();
  }

  Status Truncate(uint64_t sequence, int64_t length) override {
    FS_ASSIGN_OR_RETURN(State * s, Find(sequence));
    s->tokens.resize(std::min(s->tokens.size(), static_cast<size_t>(length)));
    return OkStatus();
  }

  Status Propose(std::span<const DraftRequest> requests, std::span<Draft> drafts) override {
    std::vector<Work> work;
    for (size_t i = 0; i < requests.size(); ++i) {
      FS_ASSIGN_OR_RETURN(State * s, Find(requests[i].sequence));
      if (s->tokens.empty()) return InvalidArgument("a draft needs a token to start from");
      drafts[i] = {};
      drafts[i].tree.Add(-1, s->tokens.back());
      Work w;
      w.state = s;
      w.request = &requests[i];
      w.draft = &drafts[i];
      w.depth =
          std::min({requests[i].shape.max_depth(), requests[i].shape.max_nodes, requests[i].max_tokens, context_ / 4});
      if (w.depth < 1) continue;
      Align(&w);
      work.push_back(w);
    }
    while (!work.empty()) {
      FS_RETURN_IF_ERROR(Step(&work));
      std::erase_if(work, [](const Work& w) { return w.depth == 0; });
    }
    return OkStatus();
  }

 private:
  struct State {
    State(BlockPool* pool, int block_tokens) : cache(pool, block_tokens) {}
    std::vector<int32_t> tokens;  // observed
    int64_t start = 0;            // the model reads from here on
    SequenceCache cache;          // of tokens[start ..], then of earlier guesses
  };
  struct Work {
    State* state = nullptr;
    const DraftRequest* request = nullptr;
    Draft* draft = nullptr;
    int depth = 0;                // still to draft
    int node = 0;                 // the newest of the chain
    std::vector<int32_t> unread;  // tokens the model has to read before it can guess on
  };

  StatusOr<State*> Find(uint64_t sequence) {
    const auto it = states_.find(sequence);
    if (it == states_.end()) return InvalidArgument("sequence " + std::to_string(sequence) + " was not begun");
    return &it->second;
  }

  // Keeps of the cache what is still true of the text, and restarts it where the context would overflow.
  void Align(Work* w) {
    State& s = *w->state;
    const auto size = static_cast<int64_t>(s.tokens.size());
    if (s.start > size - 1 || size - s.start + w->depth > context_) {
      s.start = std::max<int64_t>(0, size - context_ / 2);
      s.cache.Truncate(0);
    }
    const std::span<const int32_t> seen(s.tokens.data() + s.start, static_cast<size_t>(size - s.start));
    const auto cached = s.cache.tokens();
    const auto limit = static_cast<std::ptrdiff_t>(std::min(cached.size(), seen.size() - 1));
    const auto same = std::mismatch(cached.begin(), cached.begin() + limit, seen.begin()).first - cached.begin();
    s.cache.Truncate(same);
    w->unread.assign(seen.begin() + same, seen.end());
  }

  // One pass over as many unread tokens as fit; sequences that have read all of theirs get their next guess.
  Status Step(std::vector<Work>* work) {
    batch_.Clear();
    const auto width = static_cast<size_t>(runner_->max_blocks());
    int room = std::max(kChunk, max_sequences_);
    std::vector<Work*> ready;
    for (Work& w : *work) {
      const int count = std::min<int>(room, static_cast<int>(w.unread.size()));
      if (count == 0) break;
      room -= count;
      SequenceCache& cache = w.state->cache;
      const int64_t first = cache.length();
      if (!cache.Append(std::span(w.unread).first(static_cast<size_t>(count)), &batch_.copies)) {
        return Internal("the draft model's cache is full");
      }
      for (int i = 0; i < count; ++i) {
        batch_.tokens.push_back(w.unread[static_cast<size_t>(i)]);
        batch_.positions.push_back(static_cast<int32_t>(first + i));
        batch_.row_seq.push_back(batch_.num_seqs);
        batch_.selects.push_back(selects_ ? 1 : 0);
      }
      w.unread.erase(w.unread.begin(), w.unread.begin() + count);
      const auto blocks = cache.blocks();
      batch_.block_tables.resize(static_cast<size_t>(batch_.num_seqs + 1) * width, -1);
      std::copy(
          blocks.begin(), blocks.end(),
          batch_.block_tables.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(batch_.num_seqs) * width));
      ++batch_.num_seqs;
      if (w.unread.empty()) {
        batch_.logit_rows.push_back(batch_.num_rows() - 1);
        ready.push_back(&w);
      }
    }
    FS_RETURN_IF_ERROR(runner_->Step(batch_, &result_));
    const auto vocab = static_cast<size_t>(model_->impl().config.vocab);
    for (size_t i = 0; i < ready.size(); ++i) Guess(result_.logits.subspan(i * vocab, vocab), ready[i]);
    return OkStatus();
  }

  // The best tokens become children of the chain's newest node, and the chain goes on from the best.
  void Guess(std::span<const float> logits, Work* w) {
    const TokenTree& tree = w->draft->tree;
    const int depth = tree.depths[static_cast<size_t>(w->node)];
    const int spare =
        std::min(w->request->shape.max_nodes, w->request->max_tokens) - tree.num_drafted() - (w->depth - 1);
    const int children = std::max(1, std::min(w->request->shape.widths[static_cast<size_t>(depth)], spare));
    order_.resize(logits.size());
    for (size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<int32_t>(i);
    std::partial_sort(order_.begin(), order_.begin() + children, order_.end(), [&](int32_t a, int32_t b) {
      const float x = logits[static_cast<size_t>(a)];
      const float y = logits[static_cast<size_t>(b)];
      return x != y ? x > y : a < b;
    });
    const int parent = w->node;
    for (int i = 0; i < children; ++i) {
      const int node = w->draft->tree.Add(parent, order_[static_cast<size_t>(i)]);
      if (i == 0) w->node = node;
    }
    if (--w->depth > 0) w->unread = {order_[0]};
  }

  std::shared_ptr<Model> model_;
  int max_sequences_;
  int context_;
  int block_tokens_ = 64;
  bool selects_ = false;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<ModelRunner> runner_;
  std::map<uint64_t, State> states_;  // after pool_: caches give their blocks back
  Batch batch_;
  StepResult result_;
  std::vector<int32_t> order_;
};

}  // namespace

StatusOr<std::unique_ptr<Drafter>> MakeModelDrafter(std::shared_ptr<Model> draft, const Model& target,
                                                    int max_sequences, int context) {
  const int64_t vocab = target.info().vocab;
  if (draft->info().vocab != vocab) {
    return InvalidArgument("the draft model '" + draft->info().path + "' has " + std::to_string(draft->info().vocab) +
                           " tokens, but the model has " + std::to_string(vocab));
  }
  for (int32_t t = 0; t < vocab; ++t) {
    if (draft->TokenText(t) != target.TokenText(t)) {
      return InvalidArgument("the draft model '" + draft->info().path + "' has another tokenizer: token " +
                             std::to_string(t) + " differs");
    }
  }
  auto made = std::make_unique<ModelDrafter>(std::move(draft), max_sequences, context);
  FS_RETURN_IF_ERROR(made->Prepare());
  return std::unique_ptr<Drafter>(std::move(made));
}

}  // namespace farsight
