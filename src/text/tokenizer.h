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
#include "text/special_matcher.h"

namespace farsight {

struct EncodeOptions {
  bool add_bos = false;        // put the model's BOS first, where the model has one
  bool add_eos = false;        // and its EOS last
  bool parse_control = false;  // recognise control tokens written out; never for text that a user typed
};

class Tokenizer {
 public:
  // The plain facts a tokenizer is built from; filled by the readers of each file format.
  struct Spec {
    enum class Kind { kByteLevel, kSentencePiece };
    enum class TokenType : uint8_t { kNormal, kControl, kUserDefined, kByte, kUnused };
    // Where a space is put before the text: never, at its start, or before each part between special tokens.
    enum class SpacePrefix { kNever, kFirst, kEach };
    // How a special token is looked for; bits.
    enum Flags : uint8_t { kStripLeft = 1, kStripRight = 2, kNormalised = 4 };

    Kind kind = Kind::kByteLevel;
    PreTokenizer pre = PreTokenizer::kGpt2;  // kByteLevel
    bool nfc = false;                        // normalise before splitting
    bool ignore_merges = false;              // a piece that is a token is taken whole (Llama 3)
    SpacePrefix space_prefix = SpacePrefix::kNever;
    bool prefix_always = true;  // false: no prefix where the text starts with a space already
    bool fuse_unknown = false;  // kSentencePiece: neighbours without a token give one `unknown`
    bool add_bos = false;       // the model wants BOS at the start of a text
    bool add_eos = false;
    std::vector<std::string> tokens;                  // raw bytes; SentencePiece: with U+2581 for spaces
    std::vector<TokenType> types;                     // [tokens]
    std::vector<uint8_t> flags;                       // [tokens] or empty
    std::vector<std::pair<int32_t, int32_t>> merges;  // by rank; where none, `scores` decide
    std::vector<float> scores;                        // [tokens], kSentencePiece without merges
    int32_t bos = -1, eos = -1, unknown = -1;
    std::vector<int32_t> end_tokens;  // ids that end a generation
  };
  // kDataLoss when the facts contradict each other.
  static StatusOr<std::unique_ptr<Tokenizer>> Build(Spec spec);

  // Takes any bytes and never fails: what is not UTF-8 becomes byte tokens. Bytes that the vocabulary cannot write (the
  // makers of some vocabularies left rare ones out) are dropped, or become the unknown token where SentencePiece has
  // one. Without parse_control no control token comes out of the text.
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const;
  // A conversation in pieces: control tokens are recognised in scaffold pieces only, and plain text merges across the
  // borders of pieces as it would in one text. No BOS is added.
  struct TextPiece {
    std::string_view text;
    bool scaffold = false;
  };
  std::vector<int32_t> EncodePieces(std::span<const TextPiece> pieces) const;
  // Raw bytes of one token; control tokens as they are written. Empty for an id outside the vocabulary.
  std::string TokenBytes(int32_t id) const;
  // The bytes of all tokens, without the space that Encode puts before a text.
  std::string Decode(std::span<const int32_t> ids, bool skip_control) const;
  // True when the first token of a whole text carries a space that is not part of it.
  bool HasSpacePrefix() const { return spec_.space_prefix != Spec::SpacePrefix::kNever; }

  int64_t vocab_size() const { return static_cast<int64_t>(spec_.tokens.size()); }
  int32_t bos() const { return spec_.bos; }
  int32_t eos() const { return spec_.eos; }
  bool add_bos() const { return spec_.add_bos && spec_.bos >= 0; }
  bool add_eos() const { return spec_.add_eos && spec_.eos >= 0; }
  const std::vector<int32_t>& end_tokens() const { return spec_.end_tokens; }
  bool IsEnd(int32_t id) const;
  bool IsControl(int32_t id) const;
  int32_t Find(std::string_view token) const;  // -1 when there is none
  std::string Describe() const;                // one line

 private:
  explicit Tokenizer(Spec spec) : spec_(std::move(spec)) {}
  Status Index();
  Status IndexTokens();
  void IndexEndTokens();
  Status IndexSpecials();
  Status IndexMerges();
  std::string Normalise(std::string_view text, bool first) const;
  template <typename OnText>
  void SplitAt(const SpecialMatcher& specials, std::string_view text, bool control, std::vector<int32_t>* out,
               OnText on_text) const;
  void EncodePart(std::string_view text, std::vector<int32_t>* out) const;
  void EncodePiece(std::string_view piece, std::vector<int32_t>* word) const;
  void EncodeByScore(std::string_view piece, std::vector<int32_t>* word) const;
  void SplitSentencePiece(std::string_view text, std::vector<std::string_view>* pieces) const;

  Spec spec_;
  TokenMap ids_;       // every token
  TokenMap text_ids_;  // those that text may become
  MergeMap merges_;
  bool by_merges_ = true;
  bool pieces_at_spaces_ = false;  // no token of a SentencePiece vocabulary reaches over the start of a word
  int32_t byte_tokens_[256];
  SpecialMatcher raw_specials_;         // looked for in the text as it came
  SpecialMatcher normalised_specials_;  // and in the normalised text
};

// From the metadata of a GGUF file. kUnimplemented names a tokenizer model or pre-tokenizer that we do not know.
StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromGguf(const ModelFile& file);

// The tokenizer of a safetensors directory and what its configuration says beside it.
struct JsonTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  std::string chat_template;  // empty when there is none
};
// From the texts of tokenizer.json and tokenizer_config.json (empty: none); `name` is for errors. `end_jsons` are texts
// whose "eos_token_id", an id or a list of ids, also ends a generation (generation_config.json, config.json).
// kUnimplemented names the part that we do not know, kDataLoss says what is broken.
StatusOr<JsonTokenizer> TokenizerFromJson(std::string_view tokenizer_json, std::string_view config_json,
                                          const std::string& name, std::span<const std::string> end_jsons = {});
// From tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json and config.json of a
// directory; only the first must exist.
StatusOr<JsonTokenizer> TokenizerFromDirectory(const std::string& directory);

}  // namespace farsight

#endif  // FARSIGHT_TEXT_TOKENIZER_H_
