#include "eval/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace farsight::eval {
namespace {

constexpr std::string_view kStatement = "The code for";
constexpr std::string_view kQuestion = "What is the code for";
constexpr int64_t kAnswerRoom = 40;  // tokens left free for an answer
constexpr int64_t kTurnRoom = 64;    // tokens of a question in a later turn and of the answer given to it
constexpr int kCopyWords = 24;

struct Fact {
  std::string key, value;  // key: words, each with the space before it
};

std::string Number(Random& random) {
  std::string digits;
  for (int i = 0; i < 7; ++i) digits.push_back(static_cast<char>('0' + random.Below(10)));
  return digits;
}

std::string Key(Random& random) {
  std::string key;
  for (int i = 0; i < 3; ++i) key += fmt::format(" {}", HeldOutWord(random));
  return key;
}

// The same key but for one of its words.
std::string SimilarKey(const std::string& key, Random& random) {
  std::vector<std::string> words;
  for (const char c : key) {
    if (c == ' ') words.emplace_back();
    words.back().push_back(c);
  }
  words[random.Below(words.size())] = fmt::format(" {}", HeldOutWord(random));
  std::string out;
  for (const auto& w : words) out += w;
  return out;
}

std::vector<Fact> Facts(int64_t count, bool similar, Random& random) {
  std::vector<Fact> facts;
  while (static_cast<int64_t>(facts.size()) < count) {
    std::string key = similar && !facts.empty() ? SimilarKey(facts[0].key, random) : Key(random);
    const auto same = [&key](const Fact& f) { return f.key == key; };
    if (std::none_of(facts.begin(), facts.end(), same)) facts.push_back({std::move(key), Number(random)});
  }
  return facts;
}

std::string Sentence(const Fact& f) { return fmt::format("{}{} is {}.", kStatement, f.key, f.value); }
std::string Statement(const Fact& f) { return fmt::format("\n{}\n", Sentence(f)); }

// Prompts that ask for each of `asked` in turn, the earlier answers given.
StatusOr<Sample> Ask(const PromptWriter& writer, Layout layout, const std::vector<Fact>& asked) {
  Sample sample;
  std::string before;  // kCompletion: earlier answers
  for (size_t i = 0; i < asked.size(); ++i) {
    const Fact& f = asked[i];
    if (writer.form() == Form::kCompletion) {
      layout.tail = before + writer.BeforeNumber(fmt::format("\n{}{} is", kStatement, f.key));
      before += fmt::format("\n{}", Sentence(f));
    } else {
      const std::string question = fmt::format("{}{}?", kQuestion, f.key);
      if (i == 0) {
        layout.tail = fmt::format("\n\n{}", question);
      } else {
        layout.later.push_back({"assistant", Sentence(asked[i - 1])});
        layout.later.push_back({"user", question});
      }
    }
    if (i == 0) {  // later questions find the same hay
      FS_ASSIGN_OR_RETURN(layout.hay_tokens, writer.HayThatFits(layout));
    }
    Query q;
    FS_ASSIGN_OR_RETURN(q.prompt, writer.Write(layout));
    q.expected = f.value;
    q.max_new_tokens = static_cast<int>(kAnswerRoom);
    sample.push_back(std::move(q));
  }
  return sample;
}

std::vector<Piece> Spread(const std::vector<Fact>& facts, Random& random) {
  std::vector<Piece> pieces;
  for (const auto& f : facts) pieces.push_back({random.Share(), Statement(f)});
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.depth < b.depth; });
  return pieces;
}

StatusOr<Sample> Needle(const PromptWriter& writer, Layout layout, int64_t depth, Random random) {
  const std::vector<Fact> facts = Facts(1, false, random);
  layout.pieces = {{static_cast<double>(depth) / 100, Statement(facts[0])}};
  return Ask(writer, std::move(layout), facts);
}

StatusOr<Sample> MultiKey(const PromptWriter& writer, Layout layout, int64_t keys, Random random) {
  const std::vector<Fact> facts = Facts(keys, true, random);
  layout.pieces = Spread(facts, random);
  return Ask(writer, std::move(layout), {facts[random.Below(facts.size())]});
}

StatusOr<Sample> MultiNeedle(const PromptWriter& writer, Layout layout, int64_t needles, Random random) {
  std::vector<Fact> facts = Facts(needles, false, random);
  layout.pieces = Spread(facts, random);
  random.Shuffle(facts);
  layout.tokens -= kTurnRoom * (needles - 1);  // later questions and given answers
  if (layout.tokens < 1) return InvalidArgument("the prompts are too short for so many questions");
  return Ask(writer, std::move(layout), facts);
}

std::string Letters(int n, Random& random) {
  std::string s;
  for (int i = 0; i < n; ++i) s.push_back(static_cast<char>('a' + random.Below(26)));
  return s;
}

// Two chains of assignments, so that the newest value is not always the right one; the last name of one is asked for.
StatusOr<Sample> VarTrack(const PromptWriter& writer, Layout layout, int64_t hops, Random random) {
  std::vector<std::string> names;
  while (static_cast<int64_t>(names.size()) < 2 * (hops + 1)) {
    std::string name = Letters(2, random) + std::to_string(random.Below(100));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  }
  std::string wanted;
  for (int64_t chain = 0; chain < 2; ++chain) {
    std::string value = Letters(3 + static_cast<int>(random.Below(4)), random);
    std::vector<double> depths;
    for (int64_t i = 0; i <= hops; ++i) depths.push_back(random.Share());
    std::sort(depths.begin(), depths.end());
    for (int64_t i = 0; i <= hops; ++i) {
      const auto at = static_cast<size_t>(chain * (hops + 1) + i);
      layout.pieces.push_back({depths[static_cast<size_t>(i)],
                               fmt::format("\n{} = {}\n", names[at], i == 0 ? "'" + value + "'" : names[at - 1])});
    }
    if (chain == 0) wanted = std::move(value);
  }
  std::stable_sort(layout.pieces.begin(), layout.pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.depth < b.depth; });
  const std::string& name = names[static_cast<size_t>(hops)];
  layout.tail = writer.form() == Form::kCompletion
                    ? fmt::format("\nprint({})  # -> '", name)
                    : fmt::format("\n\nWhat is the value of {}? Answer with the value.", name);
  Query q;
  FS_ASSIGN_OR_RETURN(q.prompt, writer.Write(layout));
  q.expected = std::move(wanted);
  q.match = Match::kWord;
  q.max_new_tokens = static_cast<int>(kAnswerRoom);
  return Sample{std::move(q)};
}

// Always a completion: the first word of the line is given, the others are expected.
StatusOr<Sample> Copy(const PromptWriter& writer, Layout layout, int64_t gap, Random random) {
  std::string first(HeldOutWord(random));
  std::string rest;
  for (int i = 1; i < kCopyWords; ++i) rest += fmt::format(" {}", HeldOutWord(random));
  layout.hay_tokens = gap;
  layout.pieces = {{0, fmt::format("\n{}{}\n", first, rest)}};
  layout.tail = fmt::format("\n{}", first);
  Query q;
  FS_ASSIGN_OR_RETURN(q.prompt, writer.Write(layout));
  q.expected = rest.substr(1);
  q.match = Match::kWords;
  q.max_new_tokens = 4 * kCopyWords;
  return Sample{std::move(q)};
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The first run of three digits or more, and whether it has ended.
std::pair<std::string_view, bool> FirstNumber(std::string_view text) {
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = begin;
    while (end < text.size() && IsDigit(text[end])) ++end;
    if (end - begin >= 3) return {text.substr(begin, end - begin), end < text.size()};
    begin = end + 1;
  }
  return {{}, false};
}

std::vector<std::string_view> Words(std::string_view text) {
  std::vector<std::string_view> words;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = begin;
    while (end < text.size() && std::isspace(static_cast<unsigned char>(text[end])) == 0) ++end;
    if (end > begin) words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

}  // namespace

const char* TaskName(Task task) {
  static constexpr std::array<const char*, 5> kNames = {"needle", "multikey", "multineedle", "vartrack", "copy"};
  return kNames[static_cast<size_t>(task)];
}

const char* AxisName(Task task) {
  static constexpr std::array<const char*, 5> kNames = {"depth", "keys", "needles", "hops", "gap"};
  return kNames[static_cast<size_t>(task)];
}

StatusOr<Task> ParseTask(std::string_view name) {
  for (const Task t : {Task::kNeedle, Task::kMultiKey, Task::kMultiNeedle, Task::kVarTrack, Task::kCopy}) {
    if (name == TaskName(t)) return t;
  }
  return InvalidArgument("unknown task '" + std::string(name) + "'");
}

Score Judge(const Query& query, std::string_view answer) {
  if (query.match == Match::kNumber) {
    const bool right = FirstNumber(answer).first == query.expected;
    return {right, right ? 1.0 : 0.0};
  }
  if (query.match == Match::kWord) {
    for (size_t at = answer.find(query.expected); at != std::string_view::npos;
         at = answer.find(query.expected, at + 1)) {
      const size_t end = at + query.expected.size();
      if ((at == 0 || !IsWord(answer[at - 1])) && (end == answer.size() || !IsWord(answer[end]))) return {true, 1};
    }
    return {};
  }
  const auto expected = Words(query.expected);
  const auto words = Words(answer);
  size_t same = 0;
  while (same < expected.size() && same < words.size() && expected[same] == words[same]) ++same;
  return {same == expected.size(), static_cast<double>(same) / static_cast<double>(expected.size())};
}

bool Decided(const Query& query, std::string_view answer) {
  if (query.match == Match::kNumber) return FirstNumber(answer).second;
  if (query.match == Match::kWord) return answer.find('\n', answer.find_first_not_of('\n')) != std::string_view::npos;
  // The last word may still grow.
  const auto expected = Words(query.expected);
  auto words = Words(answer);
  if (!answer.empty() && std::isspace(static_cast<unsigned char>(answer.back())) == 0 && !words.empty())
    words.pop_back();
  for (size_t i = 0; i < words.size() && i < expected.size(); ++i) {
    if (words[i] != expected[i]) return true;
  }
  return words.size() >= expected.size();
}

StatusOr<Sample> MakeSample(const PromptWriter& writer, const TaskSpec& spec) {
  const auto number = [](int64_t v) { return static_cast<uint64_t>(v); };
  Layout layout;
  layout.tokens = spec.length - kAnswerRoom;
  layout.hay_start = Random({spec.seed, number(spec.length), number(spec.sample)}).Next();
  if (layout.tokens < 1 && spec.task != Task::kCopy) {
    return InvalidArgument("prompts need at least " + std::to_string(kAnswerRoom + 1) + " tokens, not " +
                           std::to_string(spec.length));
  }
  const Random random({spec.seed, number(spec.length), number(spec.sample), number(spec.axis), 1});
  if (spec.axis < 0 || (spec.axis < 1 && (spec.task == Task::kMultiKey || spec.task == Task::kMultiNeedle))) {
    return InvalidArgument(std::string("there can't be ") + std::to_string(spec.axis) + " " + AxisName(spec.task));
  }
  switch (spec.task) {
    case Task::kNeedle:
      return Needle(writer, std::move(layout), std::min<int64_t>(spec.axis, 100), random);
    case Task::kMultiKey:
      return MultiKey(writer, std::move(layout), spec.axis, random);
    case Task::kMultiNeedle:
      return MultiNeedle(writer, std::move(layout), spec.axis, random);
    case Task::kVarTrack:
      return VarTrack(writer, std::move(layout), spec.axis, random);
    case Task::kCopy:
      return Copy(writer, std::move(layout), spec.axis, random);
  }
  return Internal("a task without a case");
}

}  // namespace farsight::eval
