// A tokenizer from the metadata of a GGUF file.
#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "text/byte_alphabet.h"
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

Status ReadMerges(const ModelFile& file, const ByteAlphabet& alphabet, Tokenizer::Spec* spec) {
  FS_ASSIGN_OR_RETURN(const auto* merges, Array<std::string>(file, "tokenizer.ggml.merges"));
  if (merges->size() > spec->tokens.size() * 4) {
    return DataLoss("the tokenizer has more merges than its vocabulary explains");
  }
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t i = 0; i < spec->tokens.size(); ++i) {
    if (spec->types[i] == TokenType::kNormal || spec->types[i] == TokenType::kUserDefined) {
      ids.emplace(spec->tokens[i], static_cast<int32_t>(i));
    }
  }
  for (const std::string& m : *merges) {
    const size_t space = m.find(' ', 1);  // a merge is never empty on the left
    if (space == std::string::npos) {
      return DataLoss("the tokenizer merge '" + ReplaceInvalidUtf8(m) + "' is not a pair");
    }
    const auto left = ids.find(alphabet.ToBytes(std::string_view(m).substr(0, space)));
    const auto right = ids.find(alphabet.ToBytes(std::string_view(m).substr(space + 1)));
    if (left == ids.end() || right == ids.end()) {
      return DataLoss("the tokenizer merge '" + ReplaceInvalidUtf8(m) +
                      "' names a token that is not in the vocabulary");
    }
    spec->merges.emplace_back(left->second, right->second);
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
  return OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromGguf(const ModelFile& file) {
  Tokenizer::Spec spec;
  FS_ASSIGN_OR_RETURN(const std::string model, file.GetString("tokenizer.ggml.model"));
  FS_ASSIGN_OR_RETURN(const auto* tokens, Array<std::string>(file, "tokenizer.ggml.tokens"));
  const bool byte_level = model == "gpt2";
  if (!byte_level && model != "llama") {
    return Unimplemented("the tokenizer '" + ReplaceInvalidUtf8(model) + "' of '" + file.path() +
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
    const ByteAlphabet alphabet;
    spec.kind = Tokenizer::Spec::Kind::kByteLevel;
    FS_ASSIGN_OR_RETURN(const std::string pre, file.OptString("tokenizer.ggml.pre", "(none)"));
    const auto rule = PreTokenizerByName(pre);
    if (!rule) {
      return Unimplemented("the pre-tokenizer '" + ReplaceInvalidUtf8(pre) + "' of '" + file.path() +
                           "' is not supported (gpt-2, smollm, llama-bpe and qwen2 are)");
    }
    spec.pre = *rule;
    spec.nfc = *rule == PreTokenizer::kQwen2;
    spec.ignore_merges = *rule == PreTokenizer::kLlama3;
    for (size_t i = 0; i < tokens->size(); ++i) {
      const bool plain = spec.types[i] == TokenType::kNormal;
      spec.tokens.push_back(plain ? alphabet.ToBytes((*tokens)[i]) : (*tokens)[i]);
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
    FS_ASSIGN_OR_RETURN(const bool prefix, file.OptBool("tokenizer.ggml.add_space_prefix", true));
    spec.space_prefix = prefix ? Tokenizer::Spec::SpacePrefix::kEach : Tokenizer::Spec::SpacePrefix::kNever;
    FS_ASSIGN_OR_RETURN(spec.add_bos, file.OptBool("tokenizer.ggml.add_bos_token", true));
  }
  FS_ASSIGN_OR_RETURN(spec.add_eos, file.OptBool("tokenizer.ggml.add_eos_token", false));
  FS_RETURN_IF_ERROR(ReadSpecialIds(file, &spec));
  return Tokenizer::Build(std::move(spec));
}

}  // namespace farsight
