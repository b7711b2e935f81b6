#include "text/chat_template.h"

#include <algorithm>
#include <ctime>

namespace farsight {
namespace {

using jinja::Str;
using jinja::Value;

bool IsPlainRole(std::string_view role) {
  return std::all_of(role.begin(), role.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

// Messages from JSON with their plain roles marked as scaffold.
StatusOr<Value> WithPlainRoles(const Value& messages) {
  if (!messages.list()) return InvalidArgument("the messages must be a JSON array");
  std::vector<Value> out;
  for (const Value& message : messages.list()->items) {
    const jinja::Dict* dict = message.dict();
    if (!dict) return InvalidArgument("each message must be a JSON object");
    auto items = dict->items;
    for (auto& [key, v] : items) {
      if (key.text == "role" && v.str() && IsPlainRole(v.str()->text)) v = Value::Text(v.str()->text);
    }
    FS_ASSIGN_OR_RETURN(Value changed, Value::MakeDict(std::move(items)));
    out.push_back(std::move(changed));
  }
  return Value::MakeList(std::move(out));
}

std::vector<Piece> ToPieces(const Str& s) {
  std::vector<Piece> pieces;
  for (size_t begin = 0; begin < s.size();) {
    const size_t end = std::min(s.user.find_first_not_of(s.user[begin], begin), s.size());
    pieces.push_back({s.text.substr(begin, end - begin), s.user[begin] != 0});
    begin = end;
  }
  return pieces;
}

}  // namespace

StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view text) {
  FS_ASSIGN_OR_RETURN(jinja::Template t, jinja::ParseTemplate(text));
  return ChatTemplate(std::move(t));
}

StatusOr<std::vector<Piece>> ChatTemplate::Render(const std::vector<ChatTurn>& turns,
                                                  const ChatTemplateOptions& options) const {
  std::vector<Value> messages;
  for (const ChatTurn& turn : turns) {
    std::vector<std::pair<Str, Value>> message;
    message.emplace_back(Str("role", false), Value(Str(turn.role, !IsPlainRole(turn.role))));
    message.emplace_back(Str("content", false), Value::UserText(turn.content));
    FS_ASSIGN_OR_RETURN(Value v, Value::MakeDict(std::move(message)));
    messages.push_back(std::move(v));
  }
  FS_ASSIGN_OR_RETURN(Value list, Value::MakeList(std::move(messages)));
  return RenderValue(std::move(list), options);
}

StatusOr<std::vector<Piece>> ChatTemplate::RenderJson(std::string_view messages,
                                                      const ChatTemplateOptions& options) const {
  FS_ASSIGN_OR_RETURN(const Value raw, jinja::ValueFromJson(messages));
  FS_ASSIGN_OR_RETURN(Value list, WithPlainRoles(raw));
  return RenderValue(std::move(list), options);
}

StatusOr<std::vector<Piece>> ChatTemplate::RenderValue(Value messages, const ChatTemplateOptions& options) const {
  jinja::Interpreter::Variables variables = options.variables;  // searched first to last
  const auto add = [&variables](const char* name, Value v) { variables.emplace_back(name, std::move(v)); };
  add("messages", std::move(messages));
  add("add_generation_prompt", Value(options.add_generation_prompt));
  if (!options.bos_token.empty()) add("bos_token", Value::Text(options.bos_token));
  if (!options.eos_token.empty()) add("eos_token", Value::Text(options.eos_token));
  Value tools{jinja::None{}};
  if (!options.tools_json.empty()) {
    FS_ASSIGN_OR_RETURN(tools, jinja::ValueFromJson(options.tools_json));
    if (!tools.list()) return InvalidArgument("the tools must be a JSON array");
  }
  add("tools", std::move(tools));
  add("documents", Value(jinja::None{}));
  const int64_t now = options.now >= 0 ? options.now : static_cast<int64_t>(std::time(nullptr));
  jinja::Interpreter interpreter(options.limits, now);
  FS_ASSIGN_OR_RETURN(const Str text, interpreter.Run(*template_, std::move(variables)));
  return ToPieces(text);
}

std::string ChatTemplate::Join(const std::vector<Piece>& pieces) {
  std::string text;
  for (const Piece& piece : pieces) text += piece.text;
  return text;
}

}  // namespace farsight
