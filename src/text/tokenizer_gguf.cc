// A tokenizer from the metadata of a GGUF file.
#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "text/tokenizer.h"
#include "text/unicode.h"

namespace farsight {
namespace {

using TokenType = Tokenizer::Spec::TokenType;

template <typename T>
StatusOr<const std::vector<T>*> Array(const ModelFile& file, const std::string& key) {
  const auto it = file.metadata().find(key);
  if (it == file.metadata().end())
    return DataLoss("'" + file.path() + "' lacks the required metadata key '" + key + "'");
  const auto* v = std::get_if<std::vector<T>>(&it->second);
  if (v == nullptr) return DataLoss("metadata key '" + key + "' of '" + file.path() + "' has the wrong type");
  return v;
}

// Byte-level vocabularies write each byte as a printable character: the printable Latin-1 characters as themselves, the
// others as U+0100 and up, in order.
std::unordered_map<uint32_t, char> ByteAlphabet() {
  std::unordered_map<uint32_t, char> out;
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae);
    out.emplace(printable ? b : next++, static_cast<char>(b));
  }
  return out;
}

// Characters outside the alphabet stay as they are (control tokens are written plainly).
std::string FromByteAlphabet(const std::unordered_map<uint32_t, char>& alphabet, std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text, i);
    const auto it = c.valid ? alphabet.find(c.code) : alphabet.end();
    if (it != alphabet.end()) {
      out.push_back(it->second);
    } else {
      out.append(text.substr(i, c.size));
    }
    i += c.size;
  }
  return out;
}

TokenType TypeOf(int64_t gguf_type) {
  switch (gguf_type) {
    case 3:
      return TokenType::kControl;
    case 2:
      return TokenType::kControl;  // the unknown token is never produced from text
    case 4:
      return TokenType::kUserDefined;
    case 5:
      return TokenType::kUnused;
    case 6:
      return TokenType::kByte;
    default:
      return TokenType::kNormal;
  }
}

Status ReadMerges(const ModelFile& file, const std::unordered_map<uint32_t, char>& alphabet, Tokenizer::Spec* spec) {
  FS_ASSIGN_OR_RETURN(const auto* merges, Array<std::string>(file, "tokenizer.ggml.merges"));
  if (merges->size() > spec->tokens.size() * 4)
    return DataLoss("the tokenizer has more merges than its vocabulary explains");
  for (const std::string& m : *merges) {
    const size_t space = m.find(' ', 1);  // a merge is never empty on the left
    if (space == std::string::npos)
      return DataLoss("the tokenizer merge '" + ReplaceInvalidUtf8(m) + "' is not a pair");
    spec->merges.emplace_back(FromByteAlphabet(alphabet, std::string_view(m).substr(0, space)),
                              FromByteAlphabet(alphabet, std::string_view(m).substr(space + 1)));
  }
  return OkStatus();
}

Status ReadSpecialIds(const ModelFile& file, Tokenizer::Spec* spec) {
  const auto n = static_cast<int64_t>(spec->tokens.size());
  const auto read = [&](const char* key, int32_t* out) -> Status {
    FS_ASSIGN_OR_RETURN(const int64_t id, file.OptInt(std::string("tokenizer.ggml.") + key, -1));
    if (id >= n) {
      return DataLoss(std::string("tokenizer.ggml.") + key + " is " + std::to_string(id) +
                      ", outside the vocabulary of " + std::to_string(n));
    }
    *out = id < 0 ? -1 : static_cast<int32_t>(id);
    return OkStatus();
  };
  int32_t eot = -1;
  FS_RETURN_IF_ERROR(read("bos_token_id", &spec->bos));
  FS_RETURN_IF_ERROR(read("eos_token_id", &spec->eos));
  FS_RETURN_IF_ERROR(read("unknown_token_id", &spec->unknown));
  FS_RETURN_IF_ERROR(read("eot_token_id", &eot));
  for (const int32_t id : {spec->eos, eot}) {
    if (id >= 0) spec->end_tokens.push_back(id);
  }
  // Chat models end a turn with a token of their own, which many files do not name in their metadata.
  for (const char* name : {"<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>"}) {
    const auto it = std::find(spec->tokens.begin(), spec->tokens.end(), name);
    if (it == spec->tokens.end()) continue;
    const auto id = static_cast<int32_t>(it - spec->tokens.begin());
    if (spec->types[static_cast<size_t>(id)] == TokenType::kControl &&
        std::find(spec->end_tokens.begin(), spec->end_tokens.end(), id) == spec->end_tokens.end()) {
      spec->end_tokens.push_back(id);
    }
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromGguf(const ModelFile& file) {
  Tokenizer::Spec spec;
  FS_ASSIGN_OR_RETURN(const std::string model, file.GetString("tokenizer.ggml.model"));
  FS_ASSIGN_OR_RETURN(const auto* tokens, Array<std::string>(file, "tokenizer.ggml.tokens"));
  const bool byte_level = model == "gpt2";
  if (!byte_level && model != "llama") {
    return Unimplemented("the tokenizer '" + model + "' of '" + file.path() +
                         "' is not supported (gpt2 and llama are)");
  }
  spec.types.assign(tokens->size(), TokenType::kNormal);
  if (file.Has("tokenizer.ggml.token_type")) {
    FS_ASSIGN_OR_RETURN(const auto* types, Array<int64_t>(file, "tokenizer.ggml.token_type"));
    if (types->size() != tokens->size()) {
      return DataLoss("the tokenizer has " + std::to_string(tokens->size()) + " tokens but " +
                      std::to_string(types->size()) + " token types");
    }
    for (size_t i = 0; i < types->size(); ++i) spec.types[i] = TypeOf((*types)[i]);
  }
  if (byte_level) {
    const auto alphabet = ByteAlphabet();
    spec.kind = Tokenizer::Spec::Kind::kByteLevel;
    FS_ASSIGN_OR_RETURN(const std::string pre, file.OptString("tokenizer.ggml.pre", ""));
    const auto rule = PreTokenizerByName(pre);
    if (!rule) {
      return Unimplemented("the pre-tokenizer '" + pre + "' of '" + file.path() +
                           "' is not supported (gpt-2, smollm, llama-bpe and qwen2 are)");
    }
    spec.pre = *rule;
    spec.nfc = *rule == PreTokenizer::kQwen2;
    spec.ignore_merges = *rule == PreTokenizer::kLlama3;
    for (size_t i = 0; i < tokens->size(); ++i) {
      const bool plain = spec.types[i] == TokenType::kNormal;
      spec.tokens.push_back(plain ? FromByteAlphabet(alphabet, (*tokens)[i]) : (*tokens)[i]);
    }
    FS_RETURN_IF_ERROR(ReadMerges(file, alphabet, &spec));
    FS_ASSIGN_OR_RETURN(spec.add_bos, file.OptBool("tokenizer.ggml.add_bos_token", *rule == PreTokenizer::kLlama3));
  } else {
    spec.kind = Tokenizer::Spec::Kind::kSentencePiece;
    spec.tokens = *tokens;
    FS_ASSIGN_OR_RETURN(const auto* scores, Array<double>(file, "tokenizer.ggml.scores"));
    if (scores->size() != tokens->size()) return DataLoss("the tokenizer has a different number of tokens and scores");
    for (const double s : *scores) {
      if (!std::isfinite(s)) return DataLoss("a score of the tokenizer is not finite");
      spec.scores.push_back(static_cast<float>(s));
    }
    FS_ASSIGN_OR_RETURN(spec.space_prefix, file.OptBool("tokenizer.ggml.add_space_prefix", true));
    FS_ASSIGN_OR_RETURN(spec.add_bos, file.OptBool("tokenizer.ggml.add_bos_token", true));
  }
  FS_RETURN_IF_ERROR(ReadSpecialIds(file, &spec));
  return Tokenizer::Build(std::move(spec));
}

}  // namespace farsight
