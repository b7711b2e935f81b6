// Text to token ids and back. Immutable once built, so any number of threads may share one.
#ifndef FARSIGHT_TEXT_TOKENIZER_H_
#define FARSIGHT_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/model_file.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"

namespace farsight {

struct EncodeOptions {
  bool add_bos = false;        // put the model's BOS first, where the model has one
  bool parse_control = false;  // recognise control tokens written out; never for text that a user typed
};

class Tokenizer {
 public:
  // The plain facts a tokenizer is built from; filled by the readers of each file format.
  struct Spec {
    enum class Kind { kByteLevel, kSentencePiece };
    enum class TokenType : uint8_t { kNormal, kControl, kUserDefined, kByte, kUnused };
    Kind kind = Kind::kByteLevel;
    PreTokenizer pre = PreTokenizer::kGpt2;
    bool nfc = false;                                         // normalise before splitting
    bool ignore_merges = false;                               // a piece that is a token is taken whole (Llama 3)
    bool space_prefix = false;                                // SentencePiece: a space before the text
    bool add_bos = false;                                     // the model wants BOS at the start of a text
    std::vector<std::string> tokens;                          // raw bytes; SentencePiece: with U+2581 for spaces
    std::vector<TokenType> types;                             // [tokens]
    std::vector<std::pair<std::string, std::string>> merges;  // kByteLevel, by rank
    std::vector<float> scores;                                // kSentencePiece: [tokens]
    int32_t bos = -1, eos = -1, unknown = -1;
    std::vector<int32_t> end_tokens;  // ids that end a generation
  };
  static StatusOr<std::unique_ptr<Tokenizer>> Build(Spec spec);

  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const;
  // Raw bytes of one token; control tokens as they are written. Empty for an id outside the vocabulary.
  std::string TokenBytes(int32_t id) const;
  std::string Decode(std::span<const int32_t> ids, bool skip_control) const;

  int64_t vocab_size() const { return static_cast<int64_t>(spec_.tokens.size()); }
  int32_t bos() const { return spec_.bos; }
  int32_t eos() const { return spec_.eos; }
  bool add_bos() const { return spec_.add_bos && spec_.bos >= 0; }
  bool IsEnd(int32_t id) const;
  bool IsControl(int32_t id) const;
  int32_t Find(std::string_view token) const;  // -1 when there is none
  std::string Describe() const;                // one line

 private:
  explicit Tokenizer(Spec spec) : spec_(std::move(spec)) {}
  Status Index();
  void EncodeText(std::string_view text, std::vector<int32_t>* out) const;
  void EncodeByteLevel(std::string_view text, std::vector<int32_t>* out) const;
  void EncodeSentencePiece(std::string_view text, std::vector<int32_t>* out) const;

  Spec spec_;
  TokenMap ids_;
  MergeMap merges_;
  int32_t byte_tokens_[256];
  std::vector<int32_t> special_by_length_;  // control and user-defined ids, longest first
  bool special_starts_[256] = {};           // first bytes of those
};

// kUnimplemented names a tokenizer model or pre-tokenizer that we do not know.
StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromGguf(const ModelFile& file);

}  // namespace farsight

#endif  // FARSIGHT_TEXT_TOKENIZER_H_
