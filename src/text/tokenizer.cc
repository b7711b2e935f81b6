#include "text/tokenizer.h"

#include <algorithm>

#include "text/unicode.h"

namespace farsight {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581, SentencePiece's visible space
// Pieces longer than this are not remembered within a text.
constexpr size_t kMaxRemembered = 64;
constexpr size_t kMaxRememberedPieces = size_t{1} << 16;

using Spec = Tokenizer::Spec;
using TokenType = Spec::TokenType;

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  size_t start = 0;
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, start)) {
    out.append(text.substr(start, at - start)).append(to);
    start = at + from.size();
  }
  return std::move(out.append(text.substr(start)));
}

// "<0xAB>" to its byte, or -1.
int ByteOf(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

size_t WhitespaceAtStart(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const Utf8Char c = DecodeUtf8(text, i);
    if (!c.valid || ClassOf(c.code) != CharClass::kSpace) break;
    i += c.size;
  }
  return i;
}

size_t WhitespaceAtEnd(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t start = end - 1;
    while (start > 0 && end - start < 3 && (static_cast<uint8_t>(text[start]) & 0xc0) == 0x80) --start;
    const Utf8Char c = DecodeUtf8(text, start);
    if (!c.valid || start + c.size != end || ClassOf(c.code) != CharClass::kSpace) break;
    end = start;
  }
  return text.size() - end;
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Build(Spec spec) {
  std::unique_ptr<Tokenizer> t(new Tokenizer(std::move(spec)));
  FS_RETURN_IF_ERROR(t->Index());
  return t;
}

Status Tokenizer::Index() {
  const auto n = spec_.tokens.size();
  if (n == 0) return DataLoss("the tokenizer has no tokens");
  if (n > size_t{1} << 24) return DataLoss("the tokenizer has " + std::to_string(n) + " tokens, more than 16 million");
  by_merges_ = spec_.kind == Spec::Kind::kByteLevel || spec_.scores.empty();
  if (spec_.types.size() != n || (!spec_.flags.empty() && spec_.flags.size() != n) ||
      (!by_merges_ && spec_.scores.size() != n)) {
    return DataLoss("the tokenizer has a different number of tokens, types or scores");
  }
  const auto outside = [n](int32_t id) { return id < -1 || id >= static_cast<int64_t>(n); };
  for (const int32_t id : {spec_.bos, spec_.eos, spec_.unknown}) {
    if (outside(id)) {
      return DataLoss("a special token id " + std::to_string(id) + " is outside the vocabulary of " +
                      std::to_string(n));
    }
  }
  std::erase_if(spec_.end_tokens, [&](int32_t id) { return id < 0 || outside(id); });
  FS_RETURN_IF_ERROR(IndexTokens());
  IndexEndTokens();
  FS_RETURN_IF_ERROR(IndexSpecials());
  return IndexMerges();
}

Status Tokenizer::IndexTokens() {
  const auto n = static_cast<int32_t>(spec_.tokens.size());
  const bool byte_level = spec_.kind == Spec::Kind::kByteLevel;
  ids_.reserve(spec_.tokens.size());
  text_ids_.reserve(spec_.tokens.size());
  std::fill(std::begin(byte_tokens_), std::end(byte_tokens_), -1);
  pieces_at_spaces_ = !byte_level;
  for (int32_t id = 0; id < n; ++id) {
    const std::string& token = spec_.tokens[static_cast<size_t>(id)];
    const TokenType type = spec_.types[static_cast<size_t>(id)];
    if (token.empty()) continue;
    ids_.emplace(token, id);  // the first of equals wins
    if (type == TokenType::kByte) {
      const int byte = ByteOf(token);
      if (byte < 0) return DataLoss("the byte token '" + ReplaceInvalidUtf8(token) + "' is not of the form <0xAB>");
      byte_tokens_[byte] = id;
    }
    if (type != TokenType::kNormal && type != TokenType::kUserDefined) continue;
    text_ids_.emplace(token, id);
    if (byte_level && token.size() == 1) byte_tokens_[static_cast<uint8_t>(token[0])] = id;
    for (size_t at = token.find(kSpaceMark, 1); pieces_at_spaces_ && at != token.npos;
         at = token.find(kSpaceMark, at)) {
      if (at < 3 || token.compare(at - 3, 3, kSpaceMark) != 0) pieces_at_spaces_ = false;
      at += kSpaceMark.size();
    }
  }
  return OkStatus();
}

void Tokenizer::IndexEndTokens() {
  // Chat models end a turn with a token of their own, which many files do not name as an end.
  for (const char* name :
       {"<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "<end_of_turn>"}) {
    if (const int32_t id = Find(name); IsControl(id)) spec_.end_tokens.push_back(id);
  }
  std::sort(spec_.end_tokens.begin(), spec_.end_tokens.end());
  spec_.end_tokens.erase(std::unique(spec_.end_tokens.begin(), spec_.end_tokens.end()), spec_.end_tokens.end());
}

Status Tokenizer::IndexSpecials() {
  for (size_t id = 0; id < spec_.tokens.size(); ++id) {
    const bool control = spec_.types[id] == TokenType::kControl;
    if ((!control && spec_.types[id] != TokenType::kUserDefined) || spec_.tokens[id].empty()) continue;
    const bool normalised = !spec_.flags.empty() && (spec_.flags[id] & Spec::kNormalised) != 0;
    const std::string pattern = normalised ? Normalise(spec_.tokens[id], true) : spec_.tokens[id];
    auto& specials = normalised ? normalised_specials_ : raw_specials_;
    FS_RETURN_IF_ERROR(specials.Add(pattern, static_cast<int32_t>(id), control));
  }
  return OkStatus();
}

Status Tokenizer::IndexMerges() {
  if (!by_merges_) return OkStatus();
  merges_.Reserve(spec_.merges.size());
  const auto n = static_cast<int64_t>(spec_.tokens.size());
  int64_t rank = 0;
  for (const auto& [left, right] : spec_.merges) {
    if (left < 0 || right < 0 || left >= n || right >= n) {
      return DataLoss("merge " + std::to_string(rank) + " of the tokenizer names a token outside the vocabulary");
    }
    const std::string joined = spec_.tokens[static_cast<size_t>(left)] + spec_.tokens[static_cast<size_t>(right)];
    const int32_t id = Find(joined);
    if (id < 0) {
      return DataLoss("merge " + std::to_string(rank) + " of the tokenizer makes '" + ReplaceInvalidUtf8(joined) +
                      "', which is not in the vocabulary");
    }
    // A merge that would make a control token out of plain text is left out.
    if (const auto it = text_ids_.find(joined); it != text_ids_.end()) merges_.Insert(left, right, {rank, it->second});
    ++rank;
  }
  spec_.merges = {};
  return OkStatus();
}

int32_t Tokenizer::Find(std::string_view token) const {
  const auto it = ids_.find(token);
  return it == ids_.end() ? -1 : it->second;
}

bool Tokenizer::IsEnd(int32_t id) const {
  return std::find(spec_.end_tokens.begin(), spec_.end_tokens.end(), id) != spec_.end_tokens.end();
}

bool Tokenizer::IsControl(int32_t id) const {
  return id >= 0 && id < vocab_size() && spec_.types[static_cast<size_t>(id)] == TokenType::kControl;
}

std::vector<int32_t> Tokenizer::EncodePieces(std::span<const TextPiece> pieces) const {
  std::vector<int32_t> out;
  std::string plain;
  const auto flush = [&] {
    const auto ids = Encode(plain, {});
    out.insert(out.end(), ids.begin(), ids.end());
    plain.clear();
  };
  for (const TextPiece& piece : pieces) {
    if (!piece.scaffold) {
      plain += piece.text;
      continue;
    }
    for (size_t i = 0; i < piece.text.size();) {
      const SpecialMatcher::Match match = raw_specials_.At(piece.text, i, true);
      if (match.id < 0 || !IsControl(match.id)) {
        plain.push_back(piece.text[i++]);
        continue;
      }
      flush();
      out.push_back(match.id);
      i += match.size;
    }
  }
  flush();
  return out;
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> out;
  if (options.add_bos && spec_.bos >= 0) out.push_back(spec_.bos);
  SplitAt(raw_specials_, text, options.parse_control, &out, [&](std::string_view part) {
    const std::string normalised = Normalise(part, part.data() == text.data());
    SplitAt(normalised_specials_, normalised, options.parse_control, &out,
            [&](std::string_view plain) { EncodePart(plain, &out); });
  });
  if (options.add_eos && spec_.eos >= 0) out.push_back(spec_.eos);
  return out;
}

// Gives what lies between special tokens to on_text, and the tokens' ids to `out`, in order.
template <typename OnText>
void Tokenizer::SplitAt(const SpecialMatcher& specials, std::string_view text, bool control, std::vector<int32_t>* out,
                        OnText on_text) const {
  size_t start = 0;  // of the text not yet given
  for (size_t i = 0; !specials.empty() && i < text.size();) {
    const SpecialMatcher::Match match = specials.At(text, i, control);
    if (match.id < 0) {
      ++i;
      continue;
    }
    std::string_view before = text.substr(start, i - start);
    i += match.size;
    const uint8_t flags = spec_.flags.empty() ? uint8_t{0} : spec_.flags[static_cast<size_t>(match.id)];
    if ((flags & Spec::kStripLeft) != 0) before.remove_suffix(WhitespaceAtEnd(before));
    if ((flags & Spec::kStripRight) != 0) i += WhitespaceAtStart(text.substr(i));
    if (!before.empty()) on_text(before);
    out->push_back(match.id);
    start = i;
  }
  if (start < text.size()) on_text(text.substr(start));
}

std::string Tokenizer::Normalise(std::string_view text, bool first) const {
  std::string out = spec_.nfc ? NormaliseNfc(text) : std::string(text);
  const bool prefix =
      spec_.space_prefix == Spec::SpacePrefix::kEach || (spec_.space_prefix == Spec::SpacePrefix::kFirst && first);
  const bool spaced = out.starts_with(' ') || out.starts_with(kSpaceMark);
  if (prefix && (spec_.prefix_always || !spaced)) out.insert(0, 1, ' ');
  return spec_.kind == Spec::Kind::kSentencePiece ? ReplaceAll(out, " ", kSpaceMark) : out;
}

// Texts repeat their words, so a piece met before copies its tokens from where they stand in `out`.
void Tokenizer::EncodePart(std::string_view text, std::vector<int32_t>* out) const {
  struct Place {
    size_t start, size;
  };
  std::vector<std::string_view> pieces;
  if (spec_.kind == Spec::Kind::kByteLevel) {
    SplitText(spec_.pre, text, &pieces);
  } else {
    SplitSentencePiece(text, &pieces);
  }
  std::unordered_map<std::string_view, Place> known;
  std::vector<int32_t> word;
  for (const std::string_view piece : pieces) {
    const bool remember = piece.size() <= kMaxRemembered;
    if (remember) {
      if (const auto it = known.find(piece); it != known.end()) {
        const auto [start, size] = it->second;
        for (size_t i = 0; i < size; ++i) out->push_back((*out)[start + i]);
        continue;
      }
    }
    word.clear();
    EncodePiece(piece, &word);
    if (remember && known.size() < kMaxRememberedPieces) known.emplace(piece, Place{out->size(), word.size()});
    out->insert(out->end(), word.begin(), word.end());
  }
}

void Tokenizer::EncodePiece(std::string_view piece, std::vector<int32_t>* word) const {
  if (spec_.ignore_merges) {
    if (const auto it = text_ids_.find(piece); it != text_ids_.end()) {
      word->push_back(it->second);
      return;
    }
  }
  if (!by_merges_) {
    EncodeByScore(piece, word);
    return;
  }
  const bool byte_level = spec_.kind == Spec::Kind::kByteLevel;
  bool after_unknown = false;
  for (size_t i = 0; i < piece.size();) {
    const size_t size = byte_level ? 1 : DecodeUtf8(piece, i).size;
    const std::string_view character = piece.substr(i, size);
    i += size;
    const auto it = byte_level ? text_ids_.end() : text_ids_.find(character);
    if (it != text_ids_.end()) {
      word->push_back(it->second);
      after_unknown = false;
      continue;
    }
    const bool known = std::all_of(character.begin(), character.end(),
                                   [&](char c) { return byte_tokens_[static_cast<uint8_t>(c)] >= 0; });
    if (known) {
      for (const char c : character) word->push_back(byte_tokens_[static_cast<uint8_t>(c)]);
    } else if (!byte_level && spec_.unknown >= 0 && !(after_unknown && spec_.fuse_unknown)) {
      word->push_back(spec_.unknown);
    }
    after_unknown = !known;
  }
  ApplyMerges(merges_, word);
}

// Characters merge by the score of the token they form; what no token covers becomes bytes.
void Tokenizer::EncodeByScore(std::string_view piece, std::vector<int32_t>* word) const {
  std::vector<std::string_view> parts;
  MergeByScore(piece, text_ids_, spec_.scores, &parts);
  for (const std::string_view part : parts) {
    if (const auto it = text_ids_.find(part); it != text_ids_.end()) {
      word->push_back(it->second);
      continue;
    }
    for (const char c : part) {
      const int32_t id = byte_tokens_[static_cast<uint8_t>(c)];
      if (id >= 0) {
        word->push_back(id);
      } else if (spec_.unknown >= 0) {
        word->push_back(spec_.unknown);
        break;
      }
    }
  }
}

// Before the first space mark of each run, where the vocabulary allows it: such pieces cannot merge with each other.
void Tokenizer::SplitSentencePiece(std::string_view text, std::vector<std::string_view>* pieces) const {
  size_t start = 0;
  for (size_t at = text.find(kSpaceMark, 1); pieces_at_spaces_ && at != text.npos; at = text.find(kSpaceMark, at)) {
    if (at < 3 || text.substr(at - 3, 3) != kSpaceMark) {
      pieces->push_back(text.substr(start, at - start));
      start = at;
    }
    at += kSpaceMark.size();
  }
  pieces->push_back(text.substr(start));
}

std::string Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  const std::string& token = spec_.tokens[static_cast<size_t>(id)];
  if (spec_.kind == Spec::Kind::kByteLevel) return token;
  if (spec_.types[static_cast<size_t>(id)] == TokenType::kByte) return std::string(1, static_cast<char>(ByteOf(token)));
  return ReplaceAll(token, kSpaceMark, " ");
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_control) const {
  std::string out;
  bool first = true;  // of the tokens that are text
  for (const int32_t id : ids) {
    if (IsControl(id)) {
      if (!skip_control) out += TokenBytes(id);
      continue;
    }
    const std::string bytes = TokenBytes(id);
    const bool prefixed = first && HasSpacePrefix() && bytes.starts_with(' ');
    out.append(bytes, prefixed ? 1 : 0);
    first = first && bytes.empty();
  }
  return out;
}

std::string Tokenizer::Describe() const {
  const std::string n = std::to_string(vocab_size()) + " tokens";
  if (spec_.kind == Spec::Kind::kSentencePiece) return "SentencePiece BPE, " + n;
  return std::string("byte-level BPE (") + PreTokenizerName(spec_.pre) + "), " + n;
}

}  // namespace farsight
