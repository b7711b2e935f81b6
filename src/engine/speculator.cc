#include "engine/speculator.h"

#include <algorithm>
#include <chrono>

#include "engine/draft_model.h"
#include "engine/profiler.h"

namespace farsight {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kShadowTokens = 8;
constexpr size_t kRehearsed = 96;  // last tokens of a text that lookups are tried on
constexpr int kRehearsedTokens = 16;
constexpr double kShadowDebt = 16;      // steps after which a watch that took too long is forgiven
constexpr double kShadowShare = 0.003;  // of the time of steps, that shadows may take

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

}  // namespace

StatusOr<EngineOptions> OtherDrafting(const EngineOptions& of, const EngineOptions& drafting, int room) {
  FS_RETURN_IF_ERROR(Validate(drafting));
  EngineOptions next = of;
  next.drafting = drafting.drafting;
  next.draft_max = drafting.draft_max;
  next.draft_tree = drafting.draft_tree;
  next.draft_group = drafting.draft_group;
  next.draft_breadth_first = drafting.draft_breadth_first;
  next.draft_model = drafting.draft_model;
  if (next.drafting == Drafting::kOff || next.draft_max <= room) return next;
  return InvalidArgument("the engine was made for drafts of at most " + std::to_string(room) + " tokens, not " +
                         std::to_string(next.draft_max));
}

int ForkBlocks(const TreeShape& shape, int block_tokens) {
  // Paths end in leaves. Of the children of a node all but one are a leaf more.
  int64_t leaves = 1;
  int widest = 1;
  for (const int width : shape.widths) {
    leaves = std::min<int64_t>(leaves * width, shape.max_nodes);
    widest = std::max(widest, width);
  }
  leaves = std::min<int64_t>(leaves, 1 + shape.max_nodes * (widest - 1) / widest);
  // The block of the root, of which each path has a copy, and those after it.
  const int depth = std::min(shape.max_depth(), shape.max_nodes);
  return static_cast<int>(leaves - 1) * (1 + (depth + block_tokens - 1) / block_tokens);
}

StatusOr<std::unique_ptr<Speculator>> Speculator::Create(const EngineOptions& options, const Model& target,
                                                         int64_t fork_blocks) {
  std::unique_ptr<Speculator> s;
  const Drafting asked = options.drafting;
  if (asked == Drafting::kOff) return s;
  s = std::make_unique<Speculator>();
  const bool any = asked == Drafting::kAuto;
  std::vector<DrafterKind> kinds;
  const auto add = [&](DrafterKind kind, StatusOr<std::unique_ptr<Drafter>> made) -> Status {
    FS_ASSIGN_OR_RETURN(s->drafters_[static_cast<size_t>(kind)], std::move(made));
    kinds.push_back(kind);
    return OkStatus();
  };
  if (any || asked == Drafting::kNgram) FS_RETURN_IF_ERROR(add(DrafterKind::kNgram, MakeNgramDrafter({})));
  if (any || asked == Drafting::kSuffix) FS_RETURN_IF_ERROR(add(DrafterKind::kSuffix, MakeSuffixDrafter({})));
  if ((any && options.draft_model != nullptr) || asked == Drafting::kModel) {
    FS_RETURN_IF_ERROR(add(DrafterKind::kModel, MakeModelDrafter(options.draft_model, target, options.max_sequences)));
  }
  Profile profile;
  if (!options.profile.empty()) {
    FS_ASSIGN_OR_RETURN(const Fingerprint of, ProfileFingerprint(target, options));
    auto read = ReadProfile(options.profile, of);
    if (read.ok()) {
      profile = std::move(*read);
    } else {
      s->profile_fault_ = read.status().message();
    }
  }
  std::vector<VerifyMode> approximate;
  for (const QualityRecord& q : profile.quality) {
    const bool fits = !q.mode.is_exact() && Allows(options.precision, q.mode) && QualityAllows(profile, q.mode);
    if (fits && std::find(approximate.begin(), approximate.end(), q.mode) == approximate.end()) {
      approximate.push_back(q.mode);
    }
  }
  if (options.precision != PrecisionClass::kStrict && approximate.empty() && s->profile_fault_.empty()) {
    s->profile_fault_ = std::string("no approximation of the class '") + PrecisionClassName(options.precision) +
                        "' was measured and found good enough, so drafts are verified exactly";
  }
  if (!any) {
    s->fixed_.drafter = kinds[0];
    s->fixed_.mode.group = options.draft_group;
    if (!approximate.empty()) s->fixed_.mode = approximate[0];
    s->fixed_.shape =
        options.draft_tree.empty() ? ChainShape(options.draft_max) : TreeShape{options.draft_tree, options.draft_max};
    const bool depth_first = !s->fixed_.shape.is_chain() && !options.draft_breadth_first;
    if (depth_first) s->fixed_.mode.order = NodeOrder::kDepthFirst;
    return s;
  }
  // As many rows together as there are, unless a profile says how fewer do. Trees run depth first, which keeps the rows
  // of a path side by side; they have a mode of their own also because forks copy blocks, which chains do not.
  std::vector<VerifyMode> modes(2);
  modes[0].group = modes[1].group = kMaxGroup;
  modes[1].order = NodeOrder::kDepthFirst;
  for (const VerifyTime& t : profile.verify) {
    if (t.mode.is_exact() && std::find(modes.begin(), modes.end(), t.mode) == modes.end()) modes.push_back(t.mode);
  }
  modes.insert(modes.end(), approximate.begin(), approximate.end());
  PlannerOptions p;
  p.precision = options.precision;
  for (Strategy& strategy : BuildMenu(kinds, options.draft_max, modes)) {
    const bool depth_first = strategy.mode.order == NodeOrder::kDepthFirst;
    const int forked = ForkBlocks(strategy.shape, options.attention.block_size);
    if (int64_t{options.max_sequences} * forked > fork_blocks) continue;
    if (strategy.shape.is_chain() != depth_first) p.menu.push_back(std::move(strategy));
  }
  FS_ASSIGN_OR_RETURN(s->planner_, Planner::Create(std::move(p), std::move(profile)));
  return s;
}

Status Speculator::Begin(uint64_t sequence, std::span<const int32_t> tokens) {
  if (planner_) planner_->StartRequest(static_cast<int64_t>(tokens.size()), SelfMatchRate(tokens));
  for (const auto& d : drafters_) {
    if (d == nullptr) continue;
    FS_RETURN_IF_ERROR(d->Begin(sequence));
    const auto rehearsed = planner_ && d->kind() != DrafterKind::kModel
                               ? tokens.last(std::min(kRehearsed, tokens.size() / 2))
                               : std::span<const int32_t>();
    FS_RETURN_IF_ERROR(d->Observe(sequence, tokens.first(tokens.size() - rehearsed.size())));
    FS_RETURN_IF_ERROR(Rehearse(sequence, rehearsed, d.get()));
  }
  if (Of(DrafterKind::kModel) != nullptr) {  // reads the text now, so that its first guess costs what the others will
    DraftRequest r;
    r.sequence = sequence;
    r.shape = ChainShape(1);
    r.max_tokens = 1;
    Draft unused;
    FS_RETURN_IF_ERROR(Of(DrafterKind::kModel)->Propose(std::span(&r, 1), std::span(&unused, 1)));
  }
  shadows_.erase(sequence);
  return OkStatus();
}

// The end of the text as if it were the answer, in steps as they would have been: what comes next is likely to be as
// predictable, and guessing what is known costs nothing.
Status Speculator::Rehearse(uint64_t sequence, std::span<const int32_t> tokens, Drafter* drafter) {
  while (!tokens.empty()) {
    DraftRequest request;
    request.sequence = sequence;
    request.shape = ChainShape(kRehearsedTokens);
    request.max_tokens = kRehearsedTokens;
    Draft draft;
    FS_RETURN_IF_ERROR(drafter->Propose(std::span(&request, 1), std::span(&draft, 1)));
    const auto levels = ShadowOutcomeOf(draft.tree, tokens, request.shape, request.max_tokens);
    planner_->ObserveShadow(drafter->kind(), levels);
    planner_->ObserveMatch(drafter->kind(), draft.match, levels);
    size_t right = 0;
    for (const LevelOutcome& level : levels) right += level.hit >= 0 ? 1 : 0;
    const size_t step = std::min(right + 1, tokens.size());
    FS_RETURN_IF_ERROR(drafter->Observe(sequence, tokens.first(step)));
    tokens = tokens.subspan(step);
  }
  return OkStatus();
}

void Speculator::End(uint64_t sequence) {
  for (const auto& d : drafters_) {
    if (d != nullptr) d->End(sequence);
  }
  shadows_.erase(sequence);
}

Status Speculator::Observe(uint64_t sequence, std::span<const int32_t> tokens) {
  for (const auto& d : drafters_) {
    if (d != nullptr) FS_RETURN_IF_ERROR(d->Observe(sequence, tokens));
  }
  return OkStatus();
}

Status Speculator::Propose(std::span<const Ask> asks, bool pure, std::vector<Draft>* drafts) {
  drafts->assign(asks.size(), {});
  mode_ = nullptr;
  planned_ = planner_.has_value() && pure;
  if (planner_ && !pure) {
    shadows_.clear();  // they would miss this step's tokens
    return OkStatus();
  }
  const Strategy* strategy = &fixed_;
  if (planned_) {
    report_ = {};
    report_.batch = static_cast<int>(asks.size());
    for (const Ask& a : asks) report_.context = std::max(report_.context, a.length);
    report_.strategy = planner_->Choose(report_.context, report_.batch).strategy;
    strategy = &planner_->menu()[static_cast<size_t>(report_.strategy)];
    report_.tokens = 0;
    sequences_.clear();
    trees_.assign(asks.size(), {});
    uncut_.assign(asks.size(), {});
    for (const Ask& a : asks) sequences_.push_back(a.sequence);
  }
  if (planned_) FS_RETURN_IF_ERROR(CastShadows(asks, strategy->drafter));
  ++steps_;
  if (!strategy->drafts()) return OkStatus();
  const auto started = Clock::now();
  mode_ = &strategy->mode;
  requests_.clear();
  for (const Ask& a : asks) {
    DraftRequest r;
    r.sequence = a.sequence;
    r.shape = planned_ ? planner_->ShapeToPropose(report_.strategy) : strategy->shape;
    r.max_tokens = a.room;
    requests_.push_back(std::move(r));
  }
  FS_RETURN_IF_ERROR(Of(strategy->drafter)->Propose(requests_, *drafts));
  if (!strategy->shape.is_chain()) {
    for (Draft& draft : *drafts) draft = Reorder(std::move(draft), strategy->mode.order);
  }
  if (!planned_) return OkStatus();
  const bool cuts = strategy->shape.is_chain() && strategy->drafter != DrafterKind::kModel;
  for (size_t i = 0; cuts && i < asks.size(); ++i) {
    Draft& draft = (*drafts)[i];
    uncut_[i] = draft;
    const int nodes = draft.tree.num_drafted();
    const int kept = planner_->Cut(report_.strategy, draft.match, nodes, report_.context, report_.batch);
    if (kept < nodes) {
      const std::span<const int32_t> tokens = uncut_[i].tree.tokens;
      draft.tree = MakeChain(tokens[0], tokens.subspan(1, static_cast<size_t>(kept)));
    }
  }
  report_.draft_us = MicrosecondsSince(started);
  for (size_t i = 0; i < asks.size(); ++i) {
    trees_[i] = (*drafts)[i].tree;
    report_.drafted += trees_[i].num_drafted();
    report_.rows = std::max(report_.rows, trees_[i].size());
  }
  return OkStatus();
}

// Only lookups are watched: what a model would have guessed costs a forward pass.
Status Speculator::CastShadows(std::span<const Ask> asks, DrafterKind used) {
  shadow_us_ = 0;
  const auto started = Clock::now();
  for (const DrafterKind kind : {DrafterKind::kNgram, DrafterKind::kSuffix}) {
    for (const Ask& ask : asks) {
      Shadow& shadow = shadows_[ask.sequence][static_cast<size_t>(kind)];
      if (kind == used) shadow.tree = {};
      if (kind == used || shadow.tree.size() > 0 || shadow_left_us_ < 0 || Of(kind) == nullptr) continue;
      DraftRequest request;
      request.sequence = ask.sequence;
      request.shape = ChainShape(kShadowTokens);
      request.max_tokens = ask.room;
      Draft draft;
      FS_RETURN_IF_ERROR(Of(kind)->Propose(std::span(&request, 1), std::span(&draft, 1)));
      shadow = {std::move(draft.tree), draft.match, ask.room, {}};
    }
  }
  shadow_us_ = MicrosecondsSince(started);
  shadow_left_us_ -= shadow_us_;
  return OkStatus();
}

void Speculator::FollowShadows(uint64_t sequence, std::span<const int32_t> tokens) {
  const auto it = shadows_.find(sequence);
  if (it == shadows_.end()) return;
  for (int k = 0; k < kNumDrafterKinds; ++k) {
    Shadow& shadow = it->second[static_cast<size_t>(k)];
    if (shadow.tree.size() == 0) continue;
    shadow.emitted.insert(shadow.emitted.end(), tokens.begin(), tokens.end());
    const auto levels = ShadowOutcomeOf(shadow.tree, shadow.emitted, ChainShape(kShadowTokens), shadow.room);
    const bool failed = !levels.empty() && levels.back().hit < 0;
    if (!failed && static_cast<int>(shadow.emitted.size()) < std::min(kShadowTokens, shadow.room)) continue;
    planner_->ObserveShadow(static_cast<DrafterKind>(k), levels);
    planner_->ObserveMatch(static_cast<DrafterKind>(k), shadow.match, levels);
    shadow.tree = {};
  }
}

StatusOr<Accepted> Speculator::Judge(const Draft& draft, std::span<const float> logits, const SamplingParams& sampling,
                                     std::span<const int32_t> history, SamplerScratch* scratch) {
  TargetLaws laws(draft.tree, logits, sampling, history, scratch);
  VerifyParams params;
  params.rule = VerifyRule::kMatch;
  params.seed = sampling.seed;
  params.root_position = history.size() - 1;
  return Verify(params, draft, &laws);
}

void Speculator::Record(uint64_t sequence, const Accepted& accepted) {
  if (!planned_) return;
  FollowShadows(sequence, accepted.tokens);
  const auto it = std::find(sequences_.begin(), sequences_.end(), sequence);
  if (it == sequences_.end()) return;
  report_.tokens += static_cast<int>(accepted.tokens.size());
  const auto i = static_cast<size_t>(it - sequences_.begin());
  if (trees_[i].size() == 0) return;
  if (uncut_[i].tree.size() > 0) {
    // What was cut off is judged by the token that came after what was verified.
    const auto levels = ShadowOutcomeOf(uncut_[i].tree, accepted.tokens, requests_[i].shape, requests_[i].max_tokens);
    planner_->ObserveMatch(planner_->menu()[static_cast<size_t>(report_.strategy)].drafter, uncut_[i].match, levels);
  }
  report_.outcomes.push_back(OutcomeOf(trees_[i], accepted, requests_[i].shape, requests_[i].max_tokens));
}

void Speculator::FinishStep(double forward_us, double step_us) {
  if (!planned_) return;
  planned_ = false;
  report_.verify_us = forward_us;
  report_.fixed_us = std::max(0.0, step_us - forward_us - report_.draft_us - shadow_us_);
  // A watch that the machine stalled in must not end all watching.
  const double share = kShadowShare * step_us;
  shadow_left_us_ = std::clamp(shadow_left_us_ + share, -kShadowDebt * share, 100 * share);
  report_.tokens = std::max(report_.tokens, 1);
  planner_->Observe(report_);
}

std::vector<StrategyUse> Speculator::Used() const {
  std::vector<StrategyUse> used;
  if (!planner_) return {{StrategyName(fixed_), steps_}};
  for (size_t i = 0; i < planner_->menu().size(); ++i) {
    const int64_t steps = planner_->summary().steps_of[i];
    if (steps > 0) used.push_back({StrategyName(planner_->menu()[i]), steps});
  }
  std::stable_sort(used.begin(), used.end(), [](const auto& a, const auto& b) { return a.steps > b.steps; });
  return used;
}

}  // namespace farsight
