// A tokenizer from the tokenizer.json of a safetensors directory. Every part of that file is either understood exactly
// or refused by name: a part that is skipped would give other ids than the model was trained on.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <unordered_map>

#include "io/env.h"
#include "io/json.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace farsight {
namespace {

using Spec = Tokenizer::Spec;
using TokenType = Spec::TokenType;

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";
constexpr size_t kMaxFileBytes = size_t{64} << 20;
constexpr size_t kMaxConfigBytes = size_t{16} << 20;
constexpr int64_t kMaxSparseIds = 65536;  // ids that no token has, at most

std::string Shown(std::string_view s) {
  return std::string("'").append(ReplaceInvalidUtf8(s.substr(0, 100))).append("'");
}

// Typed members; a member that is absent or null is "not there", one of another type is an error.
class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  Status Broken(const std::string& what) const {
    return DataLoss(std::string("'").append(name_).append("': ").append(what));
  }
  Status Unknown(const std::string& what) const {
    return Unimplemented(std::string("'").append(name_).append("': ").append(what));
  }

  const Json* Member(const Json& object, const char* key) const {
    if (!object.is_object()) return nullptr;
    const auto it = object.find(key);
    return it == object.end() || it->is_null() ? nullptr : &*it;
  }
  StatusOr<std::string> String(const Json& object, const char* key, const std::string& fallback) const {
    const Json* v = Member(object, key);
    if (v == nullptr) return fallback;
    if (!v->is_string()) return Broken(std::string("\"") + key + "\" is not a string");
    return v->get<std::string>();
  }
  StatusOr<bool> Bool(const Json& object, const char* key, bool fallback) const {
    const Json* v = Member(object, key);
    if (v == nullptr) return fallback;
    if (!v->is_boolean()) return Broken(std::string("\"") + key + "\" is not true or false");
    return v->get<bool>();
  }
  StatusOr<const Json*> Array(const Json& object, const char* key) const {
    const Json* v = Member(object, key);
    if (v == nullptr || !v->is_array()) return Broken(std::string("\"") + key + "\" is not a list");
    return v;
  }
  StatusOr<int32_t> Id(const Json& value, std::string_view of) const {
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() ? value.get<uint64_t>() > (1u << 24) : value.get<int64_t>() < 0)) {
      return Broken("the id of the token " + Shown(of) + " is not a whole number from 0 to 16777216");
    }
    return value.get<int32_t>();
  }

 private:
  const std::string& name_;
};

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;
  uint8_t flags = 0;
};

// The members of a "Sequence" under `list`, or the part itself.
StatusOr<std::vector<const Json*>> Parts(const Reader& r, const Json* part, const char* list) {
  std::vector<const Json*> out;
  if (part == nullptr) return out;
  FS_ASSIGN_OR_RETURN(const std::string type, r.String(*part, "type", ""));
  if (type != "Sequence") {
    out.push_back(part);
    return out;
  }
  FS_ASSIGN_OR_RETURN(const Json* items, r.Array(*part, list));
  for (const Json& item : *items) out.push_back(&item);
  return out;
}

StatusOr<std::vector<AddedToken>> ReadAdded(const Reader& r, const Json& root) {
  std::vector<AddedToken> out;
  if (r.Member(root, "added_tokens") == nullptr) return out;
  FS_ASSIGN_OR_RETURN(const Json* list, r.Array(root, "added_tokens"));
  for (const Json& item : *list) {
    AddedToken t;
    FS_ASSIGN_OR_RETURN(t.content, r.String(item, "content", ""));
    const Json* id = r.Member(item, "id");
    if (t.content.empty() || id == nullptr) return r.Broken("an added token lacks its content or its id");
    FS_ASSIGN_OR_RETURN(t.id, r.Id(*id, t.content));
    FS_ASSIGN_OR_RETURN(t.special, r.Bool(item, "special", false));
    FS_ASSIGN_OR_RETURN(const bool word, r.Bool(item, "single_word", false));
    FS_ASSIGN_OR_RETURN(const bool left, r.Bool(item, "lstrip", false));
    FS_ASSIGN_OR_RETURN(const bool right, r.Bool(item, "rstrip", false));
    FS_ASSIGN_OR_RETURN(const bool normalised, r.Bool(item, "normalized", !t.special));
    if (word) return r.Unknown("the added token " + Shown(t.content) + " asks for single_word, which is not supported");
    t.flags = static_cast<uint8_t>((left ? Spec::kStripLeft : 0) | (right ? Spec::kStripRight : 0) |
                                   (normalised ? Spec::kNormalised : 0));
    out.push_back(std::move(t));
  }
  return out;
}

// Tokens by id as the file writes them, and their types. Ids that no token has become unused.
Status ReadVocabulary(const Reader& r, const Json& model, const std::vector<AddedToken>& added, Spec* spec) {
  const Json* vocab = r.Member(model, "vocab");
  if (vocab == nullptr || !vocab->is_object()) return r.Broken("\"vocab\" of the model is not an object");
  int64_t last = -1;
  for (const auto& [token, value] : vocab->items()) {
    FS_ASSIGN_OR_RETURN(const int32_t id, r.Id(value, token));
    last = std::max<int64_t>(last, id);
  }
  for (const AddedToken& t : added) last = std::max<int64_t>(last, t.id);
  const auto count = static_cast<int64_t>(vocab->size() + added.size());
  if (last < 0) return r.Broken("the vocabulary is empty");
  if (last >= count + kMaxSparseIds) {
    return r.Broken("the largest token id is " + std::to_string(last) + ", but there are only " +
                    std::to_string(count) + " tokens");
  }
  spec->tokens.resize(static_cast<size_t>(last) + 1);
  spec->types.assign(spec->tokens.size(), TokenType::kUnused);
  spec->flags.assign(spec->tokens.size(), 0);
  for (const auto& [token, value] : vocab->items()) {
    const auto id = static_cast<size_t>(value.get<int32_t>());
    if (spec->types[id] != TokenType::kUnused) return r.Broken("two tokens have the id " + std::to_string(id));
    spec->tokens[id] = token;
    spec->types[id] = TokenType::kNormal;
  }
  return OkStatus();
}

void ApplyAdded(const std::vector<AddedToken>& added, Spec* spec) {
  for (const AddedToken& t : added) {
    const auto id = static_cast<size_t>(t.id);
    spec->tokens[id] = t.content;
    spec->types[id] = t.special ? TokenType::kControl : TokenType::kUserDefined;
    spec->flags[id] = t.flags;
  }
}

Status ReadMerges(const Reader& r, const Json& model, Spec* spec) {
  FS_ASSIGN_OR_RETURN(const Json* merges, r.Array(model, "merges"));
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t i = 0; i < spec->tokens.size(); ++i) {
    if (spec->types[i] != TokenType::kUnused) ids.emplace(spec->tokens[i], static_cast<int32_t>(i));
  }
  for (const Json& m : *merges) {
    std::array<std::string_view, 2> pair;
    if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {
      pair = {m[0].get_ref<const std::string&>(), m[1].get_ref<const std::string&>()};
    } else if (m.is_string()) {
      const std::string_view s = m.get_ref<const std::string&>();
      const size_t space = s.find(' ', 1);
      if (space == s.npos) return r.Broken("the merge " + Shown(s) + " is not a pair");
      pair = {s.substr(0, space), s.substr(space + 1)};
    } else {
      return r.Broken("a merge is neither a string nor a pair of strings");
    }
    const auto left = ids.find(pair[0]);
    const auto right = ids.find(pair[1]);
    if (left == ids.end() || right == ids.end()) {
      return r.Broken("the merge of " + Shown(pair[0]) + " and " + Shown(pair[1]) +
                      " names a token that is not in the vocabulary");
    }
    spec->merges.emplace_back(left->second, right->second);
  }
  return OkStatus();
}

Status ReadNormalizers(const Reader& r, const Json& root, bool byte_level, Spec* spec) {
  FS_ASSIGN_OR_RETURN(const auto parts, Parts(r, r.Member(root, "normalizer"), "normalizers"));
  bool marks = false;  // spaces become U+2581
  for (const Json* part : parts) {
    FS_ASSIGN_OR_RETURN(const std::string type, r.String(*part, "type", ""));
    if (type == "NFC" && !marks && spec->space_prefix == Spec::SpacePrefix::kNever) {
      spec->nfc = true;
    } else if (type == "Prepend" && !byte_level && !marks) {
      FS_ASSIGN_OR_RETURN(const std::string prepend, r.String(*part, "prepend", ""));
      if (prepend != kSpaceMark) return r.Unknown("the normalizer prepends " + Shown(prepend) + ", not a space mark");
      spec->space_prefix = Spec::SpacePrefix::kEach;
    } else if (type == "Replace" && !byte_level) {
      const Json* pattern = r.Member(*part, "pattern");
      const Json* from = pattern == nullptr ? nullptr : r.Member(*pattern, "String");
      FS_ASSIGN_OR_RETURN(const std::string to, r.String(*part, "content", ""));
      if (from == nullptr || *from != " " || to != kSpaceMark) {
        return r.Unknown("the normalizer replaces something else than spaces by space marks");
      }
      marks = true;
    } else {
      return r.Unknown("the normalizer " + Shown(type) + " is not supported here (NFC, Prepend and Replace are)");
    }
  }
  if (!byte_level && !marks && r.Member(root, "pre_tokenizer") == nullptr) {
    return r.Unknown("a BPE vocabulary that is neither byte-level nor marks its spaces is not supported");
  }
  return OkStatus();
}

// Metaspace: the newer way of writing SentencePiece's marks.
Status ReadMetaspace(const Reader& r, const Json& part, Spec* spec) {
  FS_ASSIGN_OR_RETURN(const std::string mark, r.String(part, "replacement", ""));
  FS_ASSIGN_OR_RETURN(const bool split, r.Bool(part, "split", true));
  FS_ASSIGN_OR_RETURN(const std::string scheme, r.String(part, "prepend_scheme", "always"));
  if (mark != kSpaceMark || split) {
    return r.Unknown("a Metaspace pre-tokenizer that splits or has another mark than U+2581 is not supported");
  }
  if (scheme == "first") {
    spec->space_prefix = Spec::SpacePrefix::kFirst;
  } else if (scheme == "always") {
    spec->space_prefix = Spec::SpacePrefix::kEach;
  } else if (scheme != "never") {
    return r.Unknown("the prepend_scheme " + Shown(scheme) + " of Metaspace is not supported");
  }
  spec->prefix_always = false;
  return OkStatus();
}

StatusOr<PreTokenizer> ReadSplit(const Reader& r, const Json& part) {
  const Json* pattern = r.Member(part, "pattern");
  const Json* regex = pattern == nullptr ? nullptr : r.Member(*pattern, "Regex");
  FS_ASSIGN_OR_RETURN(const std::string behavior, r.String(part, "behavior", ""));
  FS_ASSIGN_OR_RETURN(const bool invert, r.Bool(part, "invert", false));
  if (regex == nullptr || !regex->is_string() || behavior != "Isolated" || invert) {
    return r.Unknown("a Split pre-tokenizer other than an isolating regular expression is not supported");
  }
  const auto rule = PreTokenizerByPattern(regex->get_ref<const std::string&>());
  if (!rule) {
    return r.Unknown("the pre-tokenizer's regular expression " + Shown(regex->get_ref<const std::string&>()) +
                     " is none of the known ones (gpt-2, smollm, llama-bpe, qwen2)");
  }
  return *rule;
}

// Exactly one of: ByteLevel; Digits, ByteLevel; Split, ByteLevel without its own expression.
Status ReadBytePreTokenizers(const Reader& r, const std::vector<const Json*>& parts, Spec* spec) {
  std::optional<PreTokenizer> split;
  bool digits = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json& part = *parts[i];
    FS_ASSIGN_OR_RETURN(const std::string type, r.String(part, "type", ""));
    if (type == "Split" && i == 0) {
      FS_ASSIGN_OR_RETURN(split, ReadSplit(r, part));
    } else if (type == "Digits" && i == 0) {
      FS_ASSIGN_OR_RETURN(digits, r.Bool(part, "individual_digits", false));
      if (!digits) return r.Unknown("a Digits pre-tokenizer that keeps digits together is not supported");
    } else if (type == "ByteLevel" && i + 1 == parts.size()) {
      FS_ASSIGN_OR_RETURN(const bool regex, r.Bool(part, "use_regex", true));
      FS_ASSIGN_OR_RETURN(const bool prefix, r.Bool(part, "add_prefix_space", true));
      if (prefix) return r.Unknown("a ByteLevel pre-tokenizer with add_prefix_space is not supported");
      if (regex == split.has_value()) return r.Unknown("ByteLevel must split by itself or after one Split, not both");
      spec->pre = split ? *split : digits ? PreTokenizer::kSmolLm : PreTokenizer::kGpt2;
    } else {
      return r.Unknown("the pre-tokenizer " + Shown(type) + " is not supported in this place");
    }
  }
  return OkStatus();
}

Status ReadModel(const Reader& r, const Json& root, Spec* spec) {
  const Json* model = r.Member(root, "model");
  if (model == nullptr) return r.Broken("it has no \"model\"");
  FS_ASSIGN_OR_RETURN(const std::string type, r.String(*model, "type", "BPE"));
  if (type != "BPE") return r.Unknown("the model type " + Shown(type) + " is not supported (BPE is)");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    FS_ASSIGN_OR_RETURN(const std::string value, r.String(*model, key, ""));
    if (!value.empty()) return r.Unknown(std::string("the model's ") + key + " is not supported");
  }
  if (const Json* dropout = r.Member(*model, "dropout"); dropout != nullptr && *dropout != 0) {
    return r.Unknown("a BPE model with dropout is not supported");
  }
  FS_ASSIGN_OR_RETURN(spec->ignore_merges, r.Bool(*model, "ignore_merges", false));
  FS_ASSIGN_OR_RETURN(spec->fuse_unknown, r.Bool(*model, "fuse_unk", false));
  FS_ASSIGN_OR_RETURN(const auto added, ReadAdded(r, root));
  FS_RETURN_IF_ERROR(ReadVocabulary(r, *model, added, spec));
  FS_RETURN_IF_ERROR(ReadMerges(r, *model, spec));

  FS_ASSIGN_OR_RETURN(const auto parts, Parts(r, r.Member(root, "pre_tokenizer"), "pretokenizers"));
  const bool metaspace = parts.size() == 1 && r.String(*parts[0], "type", "").ok() &&
                         r.String(*parts[0], "type", "").value() == "Metaspace";
  const bool byte_level = !parts.empty() && !metaspace;
  spec->kind = byte_level ? Spec::Kind::kByteLevel : Spec::Kind::kSentencePiece;
  FS_RETURN_IF_ERROR(ReadNormalizers(r, root, byte_level, spec));
  if (metaspace) FS_RETURN_IF_ERROR(ReadMetaspace(r, *parts[0], spec));
  if (byte_level) {
    FS_RETURN_IF_ERROR(ReadBytePreTokenizers(r, parts, spec));
    const ByteAlphabet alphabet;
    for (std::string& token : spec->tokens) token = alphabet.ToBytes(token);
  }
  FS_ASSIGN_OR_RETURN(const bool fallback, r.Bool(*model, "byte_fallback", false));
  if (fallback && !byte_level) {
    for (size_t i = 0; i < spec->tokens.size(); ++i) {
      const std::string& t = spec->tokens[i];
      const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
      if (t.size() == 6 && t.starts_with("<0x") && hex(t[3]) && hex(t[4]) && t[5] == '>') {
        spec->types[i] = TokenType::kByte;
      }
    }
  }
  FS_ASSIGN_OR_RETURN(const std::string unknown, r.String(*model, "unk_token", ""));
  ApplyAdded(added, spec);
  if (!unknown.empty()) {
    const auto it = std::find(spec->tokens.begin(), spec->tokens.end(), unknown);
    if (it != spec->tokens.end()) spec->unknown = static_cast<int32_t>(it - spec->tokens.begin());
  }
  return OkStatus();
}

int32_t IdOf(const Spec& spec, std::string_view token) {
  const auto it = std::find(spec.tokens.begin(), spec.tokens.end(), token);
  return token.empty() || it == spec.tokens.end() ? -1 : static_cast<int32_t>(it - spec.tokens.begin());
}

// "bos_token" and its like: a string, or an object with the string as its content.
StatusOr<int32_t> NamedToken(const Reader& r, const Json& config, const char* key, const Spec& spec) {
  const Json* v = r.Member(config, key);
  if (v == nullptr) return -1;
  FS_ASSIGN_OR_RETURN(const std::string content,
                      v->is_object() ? r.String(*v, "content", "") : r.String(config, key, ""));
  const int32_t id = IdOf(spec, content);
  if (id < 0) return r.Broken(std::string("the ") + key + " " + Shown(content) + " is not in the vocabulary");
  return id;
}

// What surrounds one text: [BOS] text [EOS]. Other templates are refused.
Status ReadPostProcessor(const Reader& r, const Json& root, Spec* spec) {
  FS_ASSIGN_OR_RETURN(const auto parts, Parts(r, r.Member(root, "post_processor"), "processors"));
  for (const Json* part : parts) {
    FS_ASSIGN_OR_RETURN(const std::string type, r.String(*part, "type", ""));
    if (type == "ByteLevel") continue;  // moves offsets, not ids
    if (type != "TemplateProcessing") {
      return r.Unknown("the post-processor " + Shown(type) + " is not supported (TemplateProcessing is)");
    }
    FS_ASSIGN_OR_RETURN(const Json* single, r.Array(*part, "single"));
    bool after_text = false;
    for (const Json& item : *single) {
      if (r.Member(item, "Sequence") != nullptr) {
        after_text = true;
        continue;
      }
      const Json* special = r.Member(item, "SpecialToken");
      if (special == nullptr) return r.Broken("the template names neither a text nor a special token");
      FS_ASSIGN_OR_RETURN(const std::string token, r.String(*special, "id", ""));
      const int32_t id = IdOf(*spec, token);
      bool& add = after_text ? spec->add_eos : spec->add_bos;
      if (id < 0) return r.Broken("the template's token " + Shown(token) + " is not in the vocabulary");
      if (add) return r.Unknown("a template with more than one token on a side of the text is not supported");
      add = true;
      (after_text ? spec->eos : spec->bos) = id;
    }
  }
  return OkStatus();
}

// The default template of a list of named ones, or the only one.
StatusOr<std::string> ChatTemplateOf(const Reader& r, const Json& config) {
  const Json* v = r.Member(config, "chat_template");
  if (v == nullptr) return std::string();
  if (!v->is_array()) return r.String(config, "chat_template", "");
  for (const Json& item : *v) {
    FS_ASSIGN_OR_RETURN(const std::string name, r.String(item, "name", ""));
    if (name == "default") return r.String(item, "template", "");
  }
  return std::string();
}

Status ReadConfig(const Reader& r, const Json& config, Spec* spec) {
  FS_ASSIGN_OR_RETURN(const int32_t bos, NamedToken(r, config, "bos_token", *spec));
  FS_ASSIGN_OR_RETURN(const int32_t eos, NamedToken(r, config, "eos_token", *spec));
  if (bos >= 0 && !spec->add_bos) spec->bos = bos;
  if (eos >= 0 && !spec->add_eos) spec->eos = eos;
  // Only SentencePiece-type files leave this to the configuration; where a template says it, the template is right.
  if (r.Member(config, "add_bos_token") != nullptr && !spec->add_bos && spec->kind == Spec::Kind::kSentencePiece) {
    FS_ASSIGN_OR_RETURN(spec->add_bos, r.Bool(config, "add_bos_token", false));
  }
  if (eos >= 0) spec->end_tokens.push_back(eos);
  return OkStatus();
}

// "eos_token_id": what ends a generation besides the tokenizer's own EOS. An id past the vocabulary is dropped when the
// tokenizer is built: some files name an end that their vocabulary lacks, and still run.
Status ReadEndIds(const Reader& r, const std::string& text, const std::string& name, Spec* spec) {
  FS_ASSIGN_OR_RETURN(const Json root, ParseJson(text, {}, "the configuration beside '" + name + "'"));
  const Json* ids = r.Member(root, "eos_token_id");
  if (ids == nullptr) return OkStatus();
  const auto add = [&](const Json& id) -> Status {
    FS_ASSIGN_OR_RETURN(const int32_t end, r.Id(id, "eos_token_id"));
    spec->end_tokens.push_back(end);
    return OkStatus();
  };
  if (!ids->is_array()) return add(*ids);
  for (const Json& id : *ids) FS_RETURN_IF_ERROR(add(id));
  return OkStatus();
}

}  // namespace

StatusOr<JsonTokenizer> TokenizerFromJson(std::string_view tokenizer_json, std::string_view config_json,
                                          const std::string& name, std::span<const std::string> end_jsons) {
  const Reader r(name);
  FS_ASSIGN_OR_RETURN(const Json root, ParseJson(tokenizer_json, {.max_bytes = kMaxFileBytes}, "'" + name + "'"));
  JsonTokenizer out;
  Spec spec;
  FS_RETURN_IF_ERROR(ReadModel(r, root, &spec));
  FS_RETURN_IF_ERROR(ReadPostProcessor(r, root, &spec));
  if (!config_json.empty()) {
    FS_ASSIGN_OR_RETURN(const Json config, ParseJson(config_json, {}, "the tokenizer_config.json of '" + name + "'"));
    FS_RETURN_IF_ERROR(ReadConfig(r, config, &spec));
    FS_ASSIGN_OR_RETURN(out.chat_template, ChatTemplateOf(r, config));
  }
  spec.end_tokens.push_back(spec.eos);
  for (const std::string& text : end_jsons) FS_RETURN_IF_ERROR(ReadEndIds(r, text, name, &spec));
  FS_ASSIGN_OR_RETURN(out.tokenizer, Tokenizer::Build(std::move(spec)));
  return out;
}

StatusOr<JsonTokenizer> TokenizerFromDirectory(const std::string& directory) {
  const std::string path = directory + "/tokenizer.json";
  FS_ASSIGN_OR_RETURN(const std::string tokenizer, ReadFileToString(path, kMaxFileBytes));
  std::string config;
  if (const std::string p = directory + "/tokenizer_config.json"; FileExists(p)) {
    FS_ASSIGN_OR_RETURN(config, ReadFileToString(p, kMaxFileBytes));
  }
  std::vector<std::string> end_jsons;
  for (const char* file : {"/generation_config.json", "/config.json"}) {
    if (const std::string p = directory + file; FileExists(p)) {
      FS_ASSIGN_OR_RETURN(end_jsons.emplace_back(), ReadFileToString(p, kMaxConfigBytes));
    }
  }
  FS_ASSIGN_OR_RETURN(JsonTokenizer out, TokenizerFromJson(tokenizer, config, path, end_jsons));
  if (const std::string p = directory + "/chat_template.jinja"; FileExists(p)) {
    FS_ASSIGN_OR_RETURN(out.chat_template, ReadFileToString(p, size_t{1} << 20));
  }
  return out;
}

}  // namespace farsight
