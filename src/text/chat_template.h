// A model's chat template: a conversation to the text that the model was trained to see, in pieces that say which
// text the template wrote and which came from the conversation. Control tokens written out in the former are control
// tokens; in the latter they are what somebody typed, and stay text.
#ifndef FARSIGHT_TEXT_CHAT_TEMPLATE_H_
#define FARSIGHT_TEXT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "farsight/status.h"
#include "text/jinja_ast.h"
#include "text/jinja_eval.h"
#include "text/jinja_value.h"

namespace farsight {

struct Piece {
  std::string text;  // not empty
  bool is_user_text = false;
  bool operator==(const Piece&) const = default;
};

struct ChatTurn {
  std::string role;
  std::string content;
};

struct ChatTemplateOptions {
  bool add_generation_prompt = true;
  std::string bos_token, eos_token;  // as they are written out
  std::string tools_json;            // a JSON array of tool descriptions; empty: none
  // More variables, for example {"enable_thinking", jinja::Value(false)}. They replace those of the same name.
  std::vector<std::pair<std::string, jinja::Value>> variables;
  int64_t now = -1;  // seconds since 1970 for templates that print the date, in UTC; -1: the system's clock
  jinja::Limits limits;
};

class ChatTemplate {
 public:
  // The Jinja subset of jinja_ast.h; errors name line and column.
  static StatusOr<ChatTemplate> Parse(std::string_view text);

  // Neighbouring pieces differ in is_user_text. A role or an order of turns that the template refuses comes back as
  // kInvalidArgument with the template's own message. Roles made of letters, digits, '_' and '-' only count as
  // scaffold, since no control token is spelled so; everything else in the conversation and the tools is user text.
  StatusOr<std::vector<Piece>> Render(const std::vector<ChatTurn>& turns, const ChatTemplateOptions& options) const;
  // As above for a conversation with more than text: a JSON array of objects with "role", "content", "tool_calls", ...
  StatusOr<std::vector<Piece>> RenderJson(std::string_view messages, const ChatTemplateOptions& options) const;

  // One string, for showing. Never tokenise it with control tokens on.
  static std::string Join(const std::vector<Piece>& pieces);

 private:
  explicit ChatTemplate(jinja::Template t) : template_(std::make_shared<const jinja::Template>(std::move(t))) {}
  StatusOr<std::vector<Piece>> RenderValue(jinja::Value messages, const ChatTemplateOptions& options) const;

  std::shared_ptr<const jinja::Template> template_;
};

}  // namespace farsight

#endif  // FARSIGHT_TEXT_CHAT_TEMPLATE_H_
