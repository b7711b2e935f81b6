#include "text/detokenizer.h"

#include "text/unicode.h"

namespace farsight {

std::string Detokenizer::Push(int32_t token) {
  if (tokenizer_->IsControl(token)) return {};
  const std::string bytes = tokenizer_->TokenBytes(token);
  if (bytes.empty()) return {};
  held_.append(bytes, drop_space_ && bytes[0] == ' ' ? 1 : 0);
  drop_space_ = false;
  const size_t keep = IncompleteTail(held_);
  std::string out = ReplaceInvalidUtf8(std::string_view(held_).substr(0, held_.size() - keep));
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string Detokenizer::Flush() {
  std::string out = ReplaceInvalidUtf8(held_);
  held_.clear();
  return out;
}

}  // namespace farsight
