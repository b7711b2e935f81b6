// The drafters that look a sequence up in itself: one index a sequence behind the common interface.
#include <array>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "spec/drafter.h"
#include "spec/ngram_index.h"
#include "spec/suffix_index.h"

namespace farsight {
namespace {

constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

std::string Number(int64_t n) { return std::to_string(n); }

template <typename Index, typename Options, DrafterKind kKind>
class LookupDrafter final : public Drafter {
 public:
  explicit LookupDrafter(const Options& options) : options_(options) {}

  DrafterKind kind() const override { return kKind; }

  Status Begin(uint64_t sequence) override {
    if (!indexes_.try_emplace(sequence, options_).second) {
      return InvalidArgument("sequence " + std::to_string(sequence) + " was begun twice");
    }
    return OkStatus();
  }

  void End(uint64_t sequence) override { indexes_.erase(sequence); }

  Status Observe(uint64_t sequence, std::span<const int32_t> tokens) override {
    FS_ASSIGN_OR_RETURN(Index * index, Find(sequence));
    if (static_cast<uint64_t>(kMaxTokens - index->size()) < tokens.size()) {
      return ResourceExhausted("a drafter indexes at most " + Number(kMaxTokens) + " tokens of a sequence");
    }
    for (int32_t token : tokens) {
      if (token < 0) return InvalidArgument("a drafter was shown the token " + Number(token));
    }
    index->Append(tokens);
    return OkStatus();
  }

  Status Truncate(uint64_t sequence, int64_t length) override {
    FS_ASSIGN_OR_RETURN(Index * index, Find(sequence));
    if (length < 0 || length > index->size()) {
      return InvalidArgument("a drafter that saw " + Number(index->size()) + " tokens was to keep " + Number(length));
    }
    index->Truncate(length);
    return OkStatus();
  }

  Status Propose(std::span<const DraftRequest> requests, std::span<Draft> drafts) override {
    if (requests.size() != drafts.size()) {
      return InvalidArgument(std::to_string(requests.size()) + " drafts were asked for with room for " +
                             std::to_string(drafts.size()));
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      FS_ASSIGN_OR_RETURN(const Index* index, Find(requests[i].sequence));
      FS_RETURN_IF_ERROR(Validate(requests[i].shape));
      if (index->size() == 0) {
        return InvalidArgument("sequence " + std::to_string(requests[i].sequence) + " has no token to draft after");
      }
      drafts[i].drawing = Drawing::kDeterministic;
      drafts[i].laws.clear();
      drafts[i].tree = index->Propose(requests[i].shape, requests[i].max_tokens);
      drafts[i].match = index->match_length();
    }
    return OkStatus();
  }

 private:
  StatusOr<Index*> Find(uint64_t sequence) {
    const auto at = indexes_.find(sequence);
    if (at == indexes_.end()) return InvalidArgument("a drafter does not know sequence " + std::to_string(sequence));
    return &at->second;
  }

  Options options_;
  std::unordered_map<uint64_t, Index> indexes_;
};

constexpr std::array<const char*, kNumDrafterKinds> kKindNames = {"off", "ngram", "suffix", "model"};

}  // namespace

const char* DrafterKindName(DrafterKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

StatusOr<DrafterKind> ParseDrafterKind(const std::string& name) {
  for (size_t i = 0; i < kKindNames.size(); ++i) {
    if (name == kKindNames[i]) return static_cast<DrafterKind>(i);
  }
  return InvalidArgument("unknown drafter '" + name + "': expected off, ngram, suffix or model");
}

StatusOr<std::unique_ptr<Drafter>> MakeNgramDrafter(const NgramOptions& o) {
  if (o.min_match < 1 || o.max_match < o.min_match || o.max_match > 16) {
    return InvalidArgument("n-gram lookup needs 1 <= shortest <= longest match <= 16 tokens, not " +
                           Number(o.min_match) + " and " + Number(o.max_match));
  }
  if (o.max_matches < 1 || o.max_matches > 64) {
    return InvalidArgument("n-gram lookup compares 1 to 64 earlier places, not " + Number(o.max_matches));
  }
  return std::unique_ptr<Drafter>(std::make_unique<LookupDrafter<NgramIndex, NgramOptions, DrafterKind::kNgram>>(o));
}

StatusOr<std::unique_ptr<Drafter>> MakeSuffixDrafter(const SuffixOptions& o) {
  if (o.min_match < 1) return InvalidArgument("suffix lookup needs a match of 1 token, not " + Number(o.min_match));
  if (!(o.min_probability >= 0 && o.min_probability <= 1)) {
    return InvalidArgument("the least probability of a drafted token must be from 0 to 1, not " +
                           std::to_string(o.min_probability));
  }
  if (!(o.depth_per_match >= 0 && o.depth_per_match <= 1e6) || o.depth_offset < 0) {
    return InvalidArgument("the depth of a draft must grow by 0 to 1e6 a matched token from 0 or more, not by " +
                           std::to_string(o.depth_per_match) + " from " + Number(o.depth_offset));
  }
  // The automaton counts states and edges in 32 bits: less than 2 and 3 a token.
  if (o.max_tokens < 16 || o.max_tokens > kMaxTokens / 4 || o.journal < 0) {
    return InvalidArgument("suffix lookup indexes 16 to " + Number(kMaxTokens / 4) + " tokens, not " +
                           Number(o.max_tokens) + ", with a journal of 0 or more, not " + Number(o.journal));
  }
  return std::unique_ptr<Drafter>(std::make_unique<LookupDrafter<SuffixIndex, SuffixOptions, DrafterKind::kSuffix>>(o));
}

double SelfMatchRate(std::span<const int32_t> tokens, int gram) {
  if (gram < 1 || tokens.size() < static_cast<size_t>(gram)) return 0;
  std::unordered_set<uint64_t> seen;
  size_t hits = 0;
  const size_t places = tokens.size() - static_cast<size_t>(gram) + 1;
  for (size_t i = 0; i < places; ++i) {
    uint64_t h = 0;
    for (int32_t token : tokens.subspan(i, static_cast<size_t>(gram))) {
      h = (h ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
      h ^= h >> 29;
    }
    hits += seen.insert(h).second ? 0 : 1;
  }
  return static_cast<double>(hits) / static_cast<double>(places);
}

}  // namespace farsight
