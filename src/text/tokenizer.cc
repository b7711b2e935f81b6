#include "text/tokenizer.h"

#include <algorithm>
#include <cmath>

#include "text/unicode.h"

namespace farsight {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581, SentencePiece's visible space
using TokenType = Tokenizer::Spec::TokenType;

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (text.substr(i, from.size()) == from) {
      out.append(to);
      i += from.size();
    } else {
      out.push_back(text[i++]);
    }
  }
  return out;
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

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Build(Spec spec) {
  std::unique_ptr<Tokenizer> t(new Tokenizer(std::move(spec)));
  FS_RETURN_IF_ERROR(t->Index());
  return t;
}

Status Tokenizer::Index() {
  const auto n = static_cast<int32_t>(spec_.tokens.size());
  if (n == 0) return DataLoss("the tokenizer has no tokens");
  for (const int32_t id : {spec_.bos, spec_.eos, spec_.unknown}) {
    if (id < -1 || id >= n)
      return DataLoss("a special token id " + std::to_string(id) + " is outside the vocabulary of " +
                      std::to_string(n));
  }
  ids_.reserve(spec_.tokens.size());
  for (int32_t id = 0; id < n; ++id)
    ids_.emplace(spec_.tokens[static_cast<size_t>(id)], id);  // the first of equals wins
  std::fill(std::begin(byte_tokens_), std::end(byte_tokens_), -1);
  for (int32_t id = 0; id < n; ++id) {
    const std::string& token = spec_.tokens[static_cast<size_t>(id)];
    const TokenType type = spec_.types[static_cast<size_t>(id)];
    if (spec_.kind == Spec::Kind::kByteLevel) {
      if (token.size() == 1 && type == TokenType::kNormal) byte_tokens_[static_cast<uint8_t>(token[0])] = id;
    } else if (type == TokenType::kByte) {
      const int byte = ByteOf(token);
      if (byte < 0) return DataLoss("the byte token '" + ReplaceInvalidUtf8(token) + "' is not of the form <0xAB>");
      byte_tokens_[byte] = id;
    }
    if ((type == TokenType::kControl || type == TokenType::kUserDefined) && !token.empty()) {
      special_by_length_.push_back(id);
      special_starts_[static_cast<uint8_t>(token[0])] = true;
    }
  }
  std::stable_sort(special_by_length_.begin(), special_by_length_.end(), [&](int32_t a, int32_t b) {
    return spec_.tokens[static_cast<size_t>(a)].size() > spec_.tokens[static_cast<size_t>(b)].size();
  });
  if (spec_.kind == Spec::Kind::kByteLevel) {
    merges_.reserve(spec_.merges.size());
    int64_t rank = 0;
    for (const auto& [left, right] : spec_.merges) {
      const int32_t a = Find(left);
      const int32_t b = Find(right);
      const int32_t ab = Find(left + right);
      if (a < 0 || b < 0 || ab < 0) {
        return DataLoss("merge " + std::to_string(rank) +
                        " of the tokenizer names a token that is not in the vocabulary");
      }
      merges_.emplace(PairKey(a, b), Merge{rank++, ab});
    }
    spec_.merges.clear();
    for (int b = 0; b < 256; ++b) {
      if (byte_tokens_[b] < 0 && spec_.unknown < 0) spec_.unknown = 0 <= spec_.eos ? spec_.eos : 0;
    }
  }
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

std::vector<int32_t> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> out;
  if (options.add_bos && spec_.bos >= 0) out.push_back(spec_.bos);
  size_t start = 0;  // of the text not yet encoded
  for (size_t i = 0; i < text.size();) {
    int32_t found = -1;
    if (special_starts_[static_cast<uint8_t>(text[i])]) {
      for (const int32_t id : special_by_length_) {
        const auto at = static_cast<size_t>(id);
        if (spec_.types[at] == TokenType::kControl && !options.parse_control) continue;
        if (text.substr(i, spec_.tokens[at].size()) == spec_.tokens[at]) {
          found = id;
          break;
        }
      }
    }
    if (found < 0) {
      ++i;
      continue;
    }
    EncodeText(text.substr(start, i - start), &out);
    out.push_back(found);
    i += spec_.tokens[static_cast<size_t>(found)].size();
    start = i;
  }
  EncodeText(text.substr(start), &out);
  return out;
}

void Tokenizer::EncodeText(std::string_view text, std::vector<int32_t>* out) const {
  if (text.empty()) return;
  std::string normalised;
  if (spec_.nfc) {
    normalised = NormaliseNfc(text);
    text = normalised;
  }
  if (spec_.kind == Spec::Kind::kByteLevel) {
    EncodeByteLevel(text, out);
  } else {
    EncodeSentencePiece(text, out);
  }
}

void Tokenizer::EncodeByteLevel(std::string_view text, std::vector<int32_t>* out) const {
  std::vector<std::string_view> pieces;
  SplitText(spec_.pre, text, &pieces);
  std::vector<int32_t> word;
  for (const std::string_view piece : pieces) {
    if (spec_.ignore_merges) {
      if (const int32_t id = Find(piece); id >= 0 && spec_.types[static_cast<size_t>(id)] == TokenType::kNormal) {
        out->push_back(id);
        continue;
      }
    }
    word.clear();
    for (const char c : piece) {
      const int32_t id = byte_tokens_[static_cast<uint8_t>(c)];
      word.push_back(id >= 0 ? id : spec_.unknown);
    }
    ApplyMerges(merges_, &word);
    out->insert(out->end(), word.begin(), word.end());
  }
}

// Characters merge by the score of the token they form, the best first; what no token covers becomes bytes.
void Tokenizer::EncodeSentencePiece(std::string_view text, std::vector<int32_t>* out) const {
  std::string prefixed;
  if (spec_.space_prefix) prefixed.push_back(' ');
  prefixed.append(text);
  const std::string marked = ReplaceAll(prefixed, " ", kSpaceMark);
  struct Symbol {
    size_t start, size;
    int64_t prev, next;
  };
  struct Candidate {
    float score;
    int64_t left;
    size_t size;
    bool operator<(const Candidate& o) const { return score != o.score ? score < o.score : left > o.left; }
  };
  std::vector<Symbol> symbols;
  for (size_t i = 0; i < marked.size();) {
    const size_t size = DecodeUtf8(marked, i).size;
    const auto at = static_cast<int64_t>(symbols.size());
    symbols.push_back({i, size, at - 1, at + 1});
    i += size;
  }
  symbols.back().next = -1;
  std::vector<Candidate> heap;
  const auto consider = [&](int64_t left) {
    if (left < 0 || symbols[static_cast<size_t>(left)].next < 0) return;
    const Symbol& a = symbols[static_cast<size_t>(left)];
    const size_t size = a.size + symbols[static_cast<size_t>(a.next)].size;
    const int32_t id = Find(std::string_view(marked).substr(a.start, size));
    if (id < 0) return;
    heap.push_back({spec_.scores[static_cast<size_t>(id)], left, size});
    std::push_heap(heap.begin(), heap.end());
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) consider(static_cast<int64_t>(i));
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate c = heap.back();
    heap.pop_back();
    Symbol& left = symbols[static_cast<size_t>(c.left)];
    if (left.size == 0 || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (left.size + right.size != c.size) continue;
    left.size = c.size;
    right.size = 0;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].prev = c.left;
    consider(left.prev);
    consider(c.left);
  }
  for (int64_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    const Symbol& s = symbols[static_cast<size_t>(i)];
    const std::string_view piece = std::string_view(marked).substr(s.start, s.size);
    if (const int32_t id = Find(piece); id >= 0) {
      out->push_back(id);
      continue;
    }
    for (const char c : piece) {
      const int32_t id = byte_tokens_[static_cast<uint8_t>(c)];
      if (id >= 0) {
        out->push_back(id);
      } else if (spec_.unknown >= 0) {
        out->push_back(spec_.unknown);
        break;
      }
    }
  }
}

std::string Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  const std::string& token = spec_.tokens[static_cast<size_t>(id)];
  if (spec_.kind == Spec::Kind::kByteLevel) return token;
  if (spec_.types[static_cast<size_t>(id)] == TokenType::kByte) {
    return std::string(1, static_cast<char>(ByteOf(token)));
  }
  return ReplaceAll(token, kSpaceMark, " ");
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_control) const {
  std::string out;
  for (const int32_t id : ids) {
    if (skip_control && IsControl(id)) continue;
    out += TokenBytes(id);
  }
  // The space put before the text is not part of it.
  if (spec_.kind == Spec::Kind::kSentencePiece && spec_.space_prefix && !out.empty() && out[0] == ' ') out.erase(0, 1);
  return out;
}

std::string Tokenizer::Describe() const {
  const std::string n = std::to_string(vocab_size()) + " tokens";
  if (spec_.kind == Spec::Kind::kSentencePiece) return "SentencePiece BPE, " + n;
  return std::string("byte-level BPE (") + PreTokenizerName(spec_.pre) + "), " + n;
}

}  // namespace farsight
