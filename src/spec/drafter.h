// Drafters: what guesses the next tokens of a sequence. One object serves all sequences of an engine, so that one whose
// guesses cost a forward pass can make those of a step together.
//
// A step of the engine:
//   drafter.Propose(requests, &drafts)            one request a sequence
//   draft = Reorder(draft, strategy.order)        rows of the target's forward are the nodes, in this order
//   accepted = Verify(rule, draft, laws, ...)     spec/verify.h
//   commit accepted.path, emit accepted.tokens
//   drafter.Observe(sequence, accepted.tokens)
#ifndef FARSIGHT_SPEC_DRAFTER_H_
#define FARSIGHT_SPEC_DRAFTER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "farsight/sampling.h"
#include "farsight/status.h"
#include "spec/draft.h"

namespace farsight {

enum class DrafterKind : uint8_t { kOff, kNgram, kSuffix, kModel };
inline constexpr int kNumDrafterKinds = 4;
const char* DrafterKindName(DrafterKind kind);  // "off", "ngram", "suffix", "model"
StatusOr<DrafterKind> ParseDrafterKind(const std::string& name);

struct DraftRequest {
  uint64_t sequence = 0;
  TreeShape shape;
  // Drafted nodes at most, besides shape.max_nodes: what is left of the request and of the context. A draft must never
  // reach past either; 0 asks for none.
  int max_tokens = 0;
  // Of a drafter that draws from laws of its own: the settings and seed of the request, and the absolute position of
  // the root. Lookups ignore them. nullptr: greedy.
  const SamplingParams* sampling = nullptr;
  uint64_t root_position = 0;
};

// Errors are kInvalidArgument for a sequence that was not begun, or one begun twice, and whatever a model's forward may
// return. A drafter that has nothing to propose, or no room of its own left, gives a tree of the root alone.
class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual DrafterKind kind() const = 0;

  virtual Status Begin(uint64_t sequence) = 0;
  // Forgets the sequence; unknown ones are ignored.
  virtual void End(uint64_t sequence) = 0;
  // Tokens that the sequence now has beyond those seen: the prompt first, later what each step emitted. The last token
  // observed is the root of the next draft.
  virtual Status Observe(uint64_t sequence, std::span<const int32_t> tokens) = 0;
  // Keeps the first `length` observed tokens, as if no other had come.
  virtual Status Truncate(uint64_t sequence, int64_t length) = 0;
  // drafts: [requests]. Node 0 of each is the sequence's last observed token, which it must have. Changes nothing that
  // a later call could notice: what is drafted is not observed.
  virtual Status Propose(std::span<const DraftRequest> requests, std::span<Draft> drafts) = 0;
};

// Which continuation a lookup prefers where the same context was followed by several tokens.
enum class Continuation : uint8_t { kMostRecent, kMostFrequent };

// Prompt lookup: the last max_match tokens (then one fewer, down to min_match) are looked up in the sequence itself,
// and the tokens that followed the earlier places are the draft. Memory of a sequence: about 4 + 12 * (max_match -
// min_match + 1) bytes a token. Time: a few table reads a token observed, and at most max_matches * 8 + 64 comparisons
// of max_match tokens for each length looked up.
struct NgramOptions {
  int min_match = 2;     // tokens, at least 1
  int max_match = 5;     // tokens, at most 16
  int max_matches = 16;  // earlier places that vote, the latest first; at most 64
  Continuation continuation = Continuation::kMostRecent;
};
StatusOr<std::unique_ptr<Drafter>> MakeNgramDrafter(const NgramOptions& options);

// Suffix automaton: the longest suffix of the sequence that occurred before, of any length, and the tokens that
// followed it, with the number of times. A draft is cut where its probability by these counts falls below
// min_probability, or where it is longer than its match warrants. Memory of a sequence: 4 bytes a token, and at most
// 224 bytes a token of the last max_tokens.
struct SuffixOptions {
  int min_match = 2;             // tokens of context below which nothing is proposed, at least 1
  double min_probability = 0.1;  // of a node, the product along its path; 0: no limit
  double depth_per_match = 1;    // a draft is at most depth_per_match * match + depth_offset deep
  int depth_offset = 2;
  Continuation continuation = Continuation::kMostFrequent;
  int64_t max_tokens = 1 << 20;  // indexed tokens; older ones are forgotten, half of this at a time; at least 16
  int journal = 256;             // tokens that Truncate takes back one by one; further back it indexes anew
};
StatusOr<std::unique_ptr<Drafter>> MakeSuffixDrafter(const SuffixOptions& options);

// Share of positions of `tokens` whose last `gram` tokens occurred before: how much a text quotes itself. 0 for a text
// shorter than that.
double SelfMatchRate(std::span<const int32_t> tokens, int gram = 3);

}  // namespace farsight

#endif  // FARSIGHT_SPEC_DRAFTER_H_
