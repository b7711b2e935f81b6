#include "spec/suffix_automaton.h"

#include <algorithm>

#include "base/check.h"

namespace farsight {
namespace {
constexpr size_t kFirstSlots = 64;
}  // namespace

SuffixAutomaton::SuffixAutomaton(int journal) : journal_(std::max(journal, 0)), states_(1), slots_(kFirstSlots, -1) {}

size_t SuffixAutomaton::Slot(int32_t state, int32_t token) const {
  uint64_t h =
      (static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32 | static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
  h ^= h >> 32;
  const size_t mask = slots_.size() - 1;
  for (size_t i = static_cast<size_t>(h) & mask;; i = (i + 1) & mask) {
    const int32_t e = slots_[i];
    if (e < 0) return i;
    const Edge& edge = edges_[static_cast<size_t>(e)];
    if (edge.state == state && edge.token == token) return i;
  }
}

int32_t SuffixAutomaton::Next(int32_t state, int32_t token) const {
  const int32_t e = Find(state, token);
  return e < 0 ? -1 : edges_[static_cast<size_t>(e)].target;
}

void SuffixAutomaton::GrowSlots() {
  slots_.assign(slots_.size() * 2, -1);
  for (size_t e = 0; e < edges_.size(); ++e) {
    slots_[Slot(edges_[e].state, edges_[e].token)] = static_cast<int32_t>(e);
  }
}

void SuffixAutomaton::AddEdge(int32_t state, int32_t token, int32_t target) {
  if ((edges_.size() + 1) * 2 > slots_.size()) GrowSlots();
  const auto e = static_cast<int32_t>(edges_.size());
  slots_[Slot(state, token)] = e;
  edges_.push_back({state, token, target, At(state).first_edge});
  At(state).first_edge = e;
}

// Edges leave in the reverse of the order in which they came, also after the table was rebuilt, which inserts them in
// that order. So no edge that stays was ever probed past the slot of the one that leaves, and the slot may be cleared.
void SuffixAutomaton::PopEdge() {
  const Edge& edge = edges_.back();
  slots_[Slot(edge.state, edge.token)] = -1;
  At(edge.state).first_edge = edge.next;
  edges_.pop_back();
}

int32_t SuffixAutomaton::Split(int32_t p, int32_t token, Record* record) {
  const int32_t q = Next(p, token);
  if (At(p).length + 1 == At(q).length) return q;
  const int32_t copy = num_states();
  states_.push_back(At(q));
  At(copy).length = At(p).length + 1;
  At(copy).first_edge = -1;
  // The copy's edges in the order of the original's, which its list gives latest first.
  std::vector<int32_t> inherited;
  for (int32_t e = At(q).first_edge; e >= 0; e = EdgeAt(e).next) inherited.push_back(e);
  for (auto e = inherited.rbegin(); e != inherited.rend(); ++e) AddEdge(copy, EdgeAt(*e).token, EdgeAt(*e).target);
  record->split = q;
  for (; p >= 0; p = At(p).link) {
    const int32_t e = Find(p, token);
    if (e < 0 || EdgeAt(e).target != q) break;
    EdgeAt(e).target = copy;
    undo_.push_back(e);
    ++record->redirected;
  }
  At(q).link = copy;
  return copy;
}

void SuffixAutomaton::CountPath(int32_t state, Record* record) {
  for (; state > 0 && record->counted < kCountedContexts; state = At(state).link) {
    undo_.push_back(At(state).latest_end);
    ++record->counted;
    ++At(state).count;
    At(state).latest_end = size_;
  }
}

void SuffixAutomaton::Append(int32_t token) {
  Record record{last_, num_states(), num_edges(), -1, 0, 0};
  const int32_t current = num_states();
  states_.emplace_back();
  At(current).length = At(last_).length + 1;
  int32_t p = last_;
  for (; p >= 0 && Find(p, token) < 0; p = At(p).link) AddEdge(p, token, current);
  At(current).link = p < 0 ? 0 : Split(p, token, &record);
  CountPath(current, &record);
  last_ = current;
  ++size_;
  records_.push_back(record);
  if (records_.size() > static_cast<size_t>(journal_)) DropOldRecord();
}

void SuffixAutomaton::DropOldRecord() {
  const auto count = static_cast<std::ptrdiff_t>(records_.front().redirected + records_.front().counted);
  undo_.erase(undo_.begin(), undo_.begin() + count);
  records_.pop_front();
}

void SuffixAutomaton::Undo() {
  FS_CHECK(CanUndo(), "a token is taken back only while the journal holds it");
  const Record record = records_.back();
  records_.pop_back();
  std::vector<int32_t> path;
  for (int32_t s = last_; static_cast<int32_t>(path.size()) < record.counted; s = At(s).link) path.push_back(s);
  for (auto s = path.rbegin(); s != path.rend(); ++s) {
    --At(*s).count;
    At(*s).latest_end = undo_.back();
    undo_.pop_back();
  }
  if (record.split >= 0) At(record.split).link = At(At(record.split).link).link;  // what the copy had taken over
  for (int32_t i = 0; i < record.redirected; ++i) {
    EdgeAt(undo_.back()).target = record.split;
    undo_.pop_back();
  }
  while (num_edges() > record.num_edges) PopEdge();
  states_.resize(static_cast<size_t>(record.num_states));
  last_ = record.last;
  --size_;
}

size_t SuffixAutomaton::bytes() const {
  return states_.capacity() * sizeof(State) + edges_.capacity() * sizeof(Edge) + slots_.capacity() * sizeof(int32_t) +
         records_.size() * sizeof(Record) + undo_.size() * sizeof(int32_t);
}

}  // namespace farsight
