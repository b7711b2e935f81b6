// From a draft and the target's laws to the tokens that are emitted.
//
// Every rule but the typical one emits tokens whose law is exactly the target's, after all sampler settings. They
// differ in what they may assume of the draft and in how much of it they accept.
//
// | rule   | draft it takes                  | accepts after a node                                     | text | |
// ------ | ------------------------------- | -------------------------------------------------------- | ---------------
// | | match  | any tree                        | the child that plain decoding would draw, if drafted     | plain
// decoding's | | greedy | any tree                        | the same, for laws of temperature 0; draws nothing       |
// plain decoding's | | token  | drawn chain, lookups too        | each with min(1, p / q); Leviathan et al. 2023,
// 2211.17192 | its own        | | block  | drawn chain, lookups too        | the longest prefix by joint test; Sun et
// al. 2403.10444  | its own         | | wor    | tree drawn without replacement  | children in turn, p and q without
// those rejected         | its own         | | iid    | tree drawn independently        | children in turn, p without
// those rejected               | its own         | | typical| any tree                        | what is probable
// enough; LOSSY, only by name             | another law     |
//
// "Plain decoding's" text is the very text that Sample() gives with the same seed, whatever was drafted, in whatever
// batch: the draw after a node is keyed by the position of the token alone, and a child is accepted if the draw is that
// child. It is the exact rule for drafts without chance of their own (each child wins with its probability under the
// target, whatever the order), and remains exact for any other, since the draft never touches what is emitted. The
// rules with a text of their own accept more of a drawn draft; their draws are keyed by the position of the step's
// root, so their text depends on where steps began, never on the batch or on what was rolled back.
#ifndef FARSIGHT_SPEC_VERIFY_H_
#define FARSIGHT_SPEC_VERIFY_H_

#include <cstdint>
#include <string>

#include "farsight/status.h"
#include "spec/draft.h"
#include "spec/target_laws.h"
#include "spec/token_tree.h"

namespace farsight {

enum class VerifyRule : uint8_t { kMatch, kGreedy, kToken, kBlock, kWithoutReplacement, kIndependent, kTypical };
const char* VerifyRuleName(VerifyRule rule);  // "match", "greedy", "token", "block", "wor", "iid", "typical"
StatusOr<VerifyRule> ParseVerifyRule(const std::string& name);
bool IsLossless(VerifyRule rule);

// Typical acceptance (Cai et al., "Medusa", 2401.10774): a token passes if p >= min(epsilon, delta * exp(-entropy)).
struct TypicalParams {
  double epsilon = 0.09;
  double delta = 0.3;
};

struct VerifyParams {
  VerifyRule rule = VerifyRule::kMatch;
  uint64_t seed = 0;           // of the request
  uint64_t root_position = 0;  // absolute position of the root; the first emitted token stands one after it
  TypicalParams typical = {};
};

// kInvalidArgument where the draft is broken or not of the kind that the rule takes, kInternal where a drafted token
// has no chance under the law it is said to come from; otherwise the errors of `target`, which has one law a node.
// Token ids of the draft are taken to be below the vocabulary's size.
StatusOr<Accepted> Verify(const VerifyParams& params, const Draft& draft, TargetLaws* target);

}  // namespace farsight

#endif  // FARSIGHT_SPEC_VERIFY_H_
