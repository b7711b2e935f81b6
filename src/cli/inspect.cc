// farsight inspect and farsight tokenize.
#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/commands.h"

namespace farsight::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string Shape(const std::vector<int64_t>& shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

void PrintFacts(const ModelInfo& m) {
  const int64_t kv = 2LL * m.kv_sets * m.kv_heads * m.head_dim * 2 * m.layers;
  Say("model          {}\n", m.path);
  if (!m.name.empty()) Say("name           {}\n", OneLine(m.name));
  Say("architecture   {}\n", m.architecture);
  Say("parameters     {:.1f} M\n", static_cast<double>(m.parameters) / 1e6);
  Say("weights        {} in memory, {} read for each generated token\n", HumanBytes(m.weight_bytes),
      HumanBytes(m.weight_bytes_token));
  Say("layers         {}, hidden {}, feed-forward {}\n", m.layers, m.hidden, m.ffn);
  Say("attention      {} query heads, {} KV heads of {} channels, RoPE {}\n", m.heads, m.kv_heads, m.head_dim, m.rope);
  Say("context        {} tokens; KV cache {} a token in f16\n", m.context, HumanBytes(kv));
  Say("trained with   {} attention\n", AttentionPolicyName(m.trained_attention.policy));
  Say("tokenizer      {}\n", m.tokenizer);
  Say("chat template  {}\n", m.has_chat_template             ? "yes"
                             : m.chat_template_error.empty() ? "no"
                                                             : "cannot be used: " + OneLine(m.chat_template_error));
  Say("would run on   {}\n", m.backend);
}

}  // namespace

int Inspect(const InspectArgs& args) {
  auto model = LoadModel(args.model);
  if (!model.ok()) return Fail(model.status());
  const ModelInfo& m = (*model)->info();
  if (args.json) {
    Json j = {{"path", m.path},
              {"name", m.name},
              {"architecture", m.architecture},
              {"parameters", m.parameters},
              {"weight_bytes", m.weight_bytes},
              {"weight_bytes_token", m.weight_bytes_token},
              {"layers", m.layers},
              {"hidden", m.hidden},
              {"heads", m.heads},
              {"kv_heads", m.kv_heads},
              {"kv_sets", m.kv_sets},
              {"head_dim", m.head_dim},
              {"ffn", m.ffn},
              {"vocab", m.vocab},
              {"context", m.context},
              {"rope", m.rope},
              {"tokenizer", m.tokenizer},
              {"chat_template", m.has_chat_template},
              {"chat_template_error", m.chat_template_error},
              {"trained_attention", AttentionPolicyName(m.trained_attention.policy)},
              {"backend", m.backend}};
    Json tensors = Json::array();
    for (const auto& t : m.tensors) {
      tensors.push_back({{"name", t.name}, {"dtype", t.dtype}, {"shape", t.shape}, {"bytes", t.bytes}});
    }
    j["tensors"] = tensors;
    std::cout << j.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
    return kExitOk;
  }
  PrintFacts(m);
  if (args.tensors) {
    for (const auto& t : m.tensors)
      Say("{:<40} {:<6} {:<20} {}\n", OneLine(t.name), t.dtype, Shape(t.shape), HumanBytes(t.bytes));
  }
  return kExitOk;
}

int Tokenize(const TokenizeArgs& args) {
  auto model = LoadModel({.model = args.model, .threads = 1});
  if (!model.ok()) return Fail(model.status());
  std::string text = args.prompt;
  if (!args.file.empty()) {
    auto read = ReadText(args.file);
    if (!read.ok()) return Fail(read.status());
    text = std::move(*read) + text;
  }
  const auto tokens = (*model)->Tokenize(text, args.bos, args.special);
  if (args.ids) {
    for (size_t i = 0; i < tokens.size(); ++i) Say("{}{}", i > 0 ? " " : "", tokens[i]);
    Say("\n");
    return kExitOk;
  }
  for (const int32_t t : tokens) {
    Say("{:>7}  {}\n", t, Json((*model)->TokenText(t)).dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  Tell("{} tokens\n", tokens.size());
  return kExitOk;
}

}  // namespace farsight::cli
