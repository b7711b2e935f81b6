#include "spec/verify.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace farsight {
namespace {

constexpr std::array<const char*, 7> kRuleNames = {"match", "greedy", "token", "block", "wor", "iid", "typical"};

double ProbabilityOf(const Distribution& law, int32_t token) {
  const auto at = std::lower_bound(law.ids.begin(), law.ids.end(), token);
  return at != law.ids.end() && *at == token ? law.probs[static_cast<size_t>(at - law.ids.begin())] : 0;
}

// max(scale * p - q, 0) with its sum in *mass; not scaled to 1.
Distribution Excess(const Distribution& p, double scale, const Distribution& q, double* mass) {
  Distribution out;
  *mass = 0;
  size_t j = 0;
  for (size_t i = 0; i < p.ids.size(); ++i) {
    while (j < q.ids.size() && q.ids[j] < p.ids[i]) ++j;
    const double taken = j < q.ids.size() && q.ids[j] == p.ids[i] ? q.probs[j] : 0;
    const double left = scale * p.probs[i] - taken;
    if (!(left > 0)) continue;
    out.ids.push_back(p.ids[i]);
    out.probs.push_back(left);
    *mass += left;
  }
  return out;
}

// The law after a rejection. Where rounding left nothing (p and q are equal but for their last bits, and a rejection
// had next to no chance) the target's own law stands in.
Distribution Residual(const Distribution& p, double scale, const Distribution& q) {
  double mass = 0;
  Distribution out = Excess(p, scale, q, &mass);
  if (!(mass > 0)) return p;
  for (double& x : out.probs) x /= mass;
  return out;
}

Distribution OneHot(int32_t token) { return {{token}, {1}}; }

class Verifier {
 public:
  Verifier(const VerifyParams& params, const Draft& draft, TargetLaws* target)
      : params_(params), draft_(draft), target_(*target), children_(ChildrenOf(draft.tree)) {}

  StatusOr<Accepted> Match();
  StatusOr<Accepted> Token();
  StatusOr<Accepted> Block();
  StatusOr<Accepted> Siblings(bool replace);
  StatusOr<Accepted> Typical();

 private:
  int32_t TokenOf(int node) const { return draft_.tree.tokens[static_cast<size_t>(node)]; }
  double Draw(uint32_t trial) const { return Uniform({params_.seed, params_.root_position, trial}); }
  double AcceptDraw(int node) const { return Draw(kAcceptTrial + static_cast<uint32_t>(node)); }
  // What plain decoding draws after `node`.
  int32_t PlainDraw(int node, const Distribution& law) const {
    if (law.ids.size() == 1) return law.ids[0];
    const auto depth = static_cast<uint64_t>(draft_.tree.depths[static_cast<size_t>(node)]);
    return Pick(law, Uniform({params_.seed, params_.root_position + depth + 1, 0}));
  }
  // The law that the only child of `node` was drawn from; that of a lookup is all on the child.
  Distribution ChainLaw(int node) const {
    if (draft_.drawing != Drawing::kDeterministic) return draft_.laws[static_cast<size_t>(node)];
    return OneHot(TokenOf(node + 1));
  }
  void Accept(int node) {
    if (node > 0) accepted_.tokens.push_back(TokenOf(node));
    accepted_.path.push_back(node);
  }
  Accepted Finish(int32_t token) {
    accepted_.tokens.push_back(token);
    return std::move(accepted_);
  }

  const VerifyParams& params_;
  const Draft& draft_;
  TargetLaws& target_;
  const TreeChildren children_;
  Accepted accepted_;
};

StatusOr<Accepted> Verifier::Match() {
  for (int node = 0;;) {
    Accept(node);
    FS_ASSIGN_OR_RETURN(const Distribution* law, target_.At(node));
    const int32_t token = PlainDraw(node, *law);
    const auto next = children_.Of(node);
    const auto hit = std::find_if(next.begin(), next.end(), [&](int32_t c) { return TokenOf(c) == token; });
    if (hit == next.end()) return Finish(token);
    node = *hit;
  }
}

StatusOr<Accepted> Verifier::Token() {
  const int last = draft_.tree.size() - 1;
  for (int node = 0;; ++node) {
    Accept(node);
    FS_ASSIGN_OR_RETURN(const Distribution* p, target_.At(node));
    if (node == last) return Finish(PlainDraw(node, *p));
    const Distribution q = ChainLaw(node);
    const int32_t token = TokenOf(node + 1);
    if (AcceptDraw(node + 1) * ProbabilityOf(q, token) < ProbabilityOf(*p, token)) continue;
    return Finish(Pick(Residual(*p, 1, q), Draw(kResidualTrial)));
  }
}

// joint[i] bounds how much of the target's joint probability of the first i tokens the draft has not used up. Whether a
// prefix of i tokens is kept is one draw each, and the longest kept prefix wins.
StatusOr<Accepted> Verifier::Block() {
  const int last = draft_.tree.size() - 1;
  double joint = 1, joint_kept = 1;
  int kept = 0;
  for (int i = 0; i <= last; ++i) {
    FS_ASSIGN_OR_RETURN(const Distribution* p, target_.At(i));
    double keep = joint;
    if (i < last) {
      double excess = 0;
      const Distribution q = ChainLaw(i);
      Excess(*p, joint, q, &excess);
      const double total = excess + 1 - joint;
      keep = total > 0 ? excess / total : 1;
    }
    if (i > 0 && AcceptDraw(i) < keep) {
      kept = i;
      joint_kept = joint;
    }
    if (i == last) break;
    const int32_t token = TokenOf(i + 1);
    joint = std::min(joint * ProbabilityOf(*p, token) / ProbabilityOf(ChainLaw(i), token), 1.0);
  }
  for (int node = 0; node <= kept; ++node) Accept(node);
  FS_ASSIGN_OR_RETURN(const Distribution* p, target_.At(kept));
  if (kept == last) return Finish(PlainDraw(kept, *p));
  return Finish(Pick(Residual(*p, joint_kept, ChainLaw(kept)), Draw(kResidualTrial)));
}

StatusOr<Accepted> Verifier::Siblings(bool replace) {
  for (int node = 0;;) {
    Accept(node);
    FS_ASSIGN_OR_RETURN(const Distribution* law, target_.At(node));
    const auto next = children_.Of(node);
    if (next.empty()) return Finish(PlainDraw(node, *law));
    Distribution p = *law;
    Distribution q = draft_.laws[static_cast<size_t>(node)];
    int hit = -1;
    for (int32_t child : next) {
      const int32_t token = TokenOf(child);
      if (AcceptDraw(child) * ProbabilityOf(q, token) < ProbabilityOf(p, token)) {
        hit = child;
        break;
      }
      p = Residual(p, 1, q);
      if (!replace) RemoveToken(token, &q);
    }
    if (hit < 0) return Finish(Pick(p, Draw(kResidualTrial)));
    node = hit;
  }
}

StatusOr<Accepted> Verifier::Typical() {
  std::vector<bool> passed(draft_.tree.tokens.size(), false);
  passed[0] = true;
  int deepest = 0;
  for (int node = 0; node < draft_.tree.size(); ++node) {
    if (!passed[static_cast<size_t>(node)]) continue;
    if (draft_.tree.depths[static_cast<size_t>(node)] > draft_.tree.depths[static_cast<size_t>(deepest)]) {
      deepest = node;
    }
    if (children_.Of(node).empty()) continue;
    FS_ASSIGN_OR_RETURN(const Distribution* p, target_.At(node));
    double entropy = 0;
    for (double x : p->probs) entropy -= x * std::log(x);
    const double bar = std::min(params_.typical.epsilon, params_.typical.delta * std::exp(-entropy));
    for (int32_t child : children_.Of(node)) {
      passed[static_cast<size_t>(child)] = ProbabilityOf(*p, TokenOf(child)) >= bar;
    }
  }
  for (int32_t node : PathTo(draft_.tree, deepest)) Accept(node);
  FS_ASSIGN_OR_RETURN(const Distribution* p, target_.At(deepest));
  return Finish(PlainDraw(deepest, *p));
}

Status CheckRule(VerifyRule rule, const Draft& draft) {
  const std::string name = std::string("the rule ") + VerifyRuleName(rule);
  switch (rule) {
    case VerifyRule::kToken:
    case VerifyRule::kBlock:
      if (!IsChain(draft.tree)) return InvalidArgument(name + " takes a chain, not a tree that forks");
      break;
    case VerifyRule::kWithoutReplacement:
      if (draft.drawing == Drawing::kWithoutReplacement) break;
      return InvalidArgument(name + " takes a draft that was drawn without replacement");
    case VerifyRule::kIndependent:
      if (draft.drawing == Drawing::kIndependent) break;
      return InvalidArgument(name + " takes a draft whose siblings were drawn independently");
    case VerifyRule::kMatch:
    case VerifyRule::kGreedy:
    case VerifyRule::kTypical:
      break;
  }
  return OkStatus();
}

}  // namespace

const char* VerifyRuleName(VerifyRule rule) { return kRuleNames[static_cast<size_t>(rule)]; }

StatusOr<VerifyRule> ParseVerifyRule(const std::string& name) {
  for (size_t i = 0; i < kRuleNames.size(); ++i) {
    if (name == kRuleNames[i]) return static_cast<VerifyRule>(i);
  }
  return InvalidArgument("unknown verification rule '" + name +
                         "': expected match, greedy, token, block, wor, iid or typical");
}

bool IsLossless(VerifyRule rule) { return rule != VerifyRule::kTypical; }

StatusOr<Accepted> Verify(const VerifyParams& params, const Draft& draft, TargetLaws* target) {
  FS_RETURN_IF_ERROR(Validate(draft, int64_t{std::numeric_limits<int32_t>::max()} + 1));
  FS_RETURN_IF_ERROR(CheckRule(params.rule, draft));
  if (target->size() != draft.tree.size()) {
    return InvalidArgument("a draft of " + std::to_string(draft.tree.size()) + " nodes was to be verified with " +
                           std::to_string(target->size()) + " laws of the target");
  }
  Verifier verifier(params, draft, target);
  switch (params.rule) {
    case VerifyRule::kGreedy: {
      FS_ASSIGN_OR_RETURN(const Distribution* law, target->At(0));
      if (law->ids.size() != 1) {
        return InvalidArgument("the rule greedy takes laws of temperature 0, not one over " +
                               std::to_string(law->ids.size()) + " tokens");
      }
      return verifier.Match();
    }
    case VerifyRule::kMatch:
      return verifier.Match();
    case VerifyRule::kToken:
      return verifier.Token();
    case VerifyRule::kBlock:
      return verifier.Block();
    case VerifyRule::kWithoutReplacement:
      return verifier.Siblings(false);
    case VerifyRule::kIndependent:
      return verifier.Siblings(true);
    case VerifyRule::kTypical:
      return verifier.Typical();
  }
  return Internal("no such verification rule");
}

}  // namespace farsight
