#include "cli/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/commands.h"
#include "io/env.h"

namespace farsight::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string EscapeHtml(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

// Everything a browser needs is in the page: no script or style comes from elsewhere.
constexpr const char* kPage = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>What was read</title><style>
body{{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:70rem;padding:1rem;color:#1a1a1a;background:#fff}}
header{{position:sticky;top:0;background:#fff;padding:.5rem 0;border-bottom:1px solid #ccc}}
input[type=range]{{width:100%}} .b{{white-space:pre-wrap;border-left:3px solid transparent;padding:0 .3rem}}
.b:hover{{border-left-color:#06c}} #answer span{{padding:0 1px;cursor:pointer}} #answer .on{{outline:2px solid #06c}}
</style></head><body><header>
<div>Darker blocks were read by more (layer, KV head) pairs. Move over the answer's tokens, or drag.</div>
<div id="answer">{answer}</div>
<input type="range" id="step" min="0" max="{last}" value="0" aria-label="token"><div id="info"></div></header>
<main>{blocks}</main><script>
const shares={shares},n={count};
const step=document.getElementById('step'),info=document.getElementById('info'),spans=[...document.querySelectorAll('#answer span')];
function show(s){{const row=shares[s]||{{}};let read=0;
for(let b=0;b<n;b++){{const v=row[b]||0;if(v>0)read++;const e=document.getElementById('b'+b);if(e){{e.style.background='rgba(255,160,0,'+(0.75*v)+')';e.title='block '+b+': '+Math.round(100*v)+' %';}}}}
info.textContent='token '+s+': '+read+' of '+n+' blocks read by some head';spans.forEach((e,i)=>e.classList.toggle('on',i==s));}}
step.oninput=()=>show(+step.value);spans.forEach((e,i)=>e.onmouseover=()=>{{step.value=i;show(i);}});show(0);
</script></body></html>
)";

}  // namespace

void TraceWriter::Begin(std::vector<int32_t> prompt, int block_size) {
  prompt_ = std::move(prompt);
  block_size_ = block_size;
}

void TraceWriter::Add(const BlockTrace& trace) {
  if (trace.position != position_) {
    position_ = trace.position;
    steps_.push_back(
        {{"position", trace.position}, {"visible_blocks", trace.visible_blocks}, {"layers", Json::array()}});
  }
  Json heads = nullptr;  // null: every block
  if (!trace.dense) {
    heads = Json::array();
    for (const auto& ids : trace.blocks) heads.push_back(std::vector<int32_t>(ids.begin(), ids.end()));
  }
  steps_.back()["layers"].push_back({{"layer", trace.layer}, {"heads", heads}});
}

Status TraceWriter::Write(const std::string& path, const Model& model, const std::vector<int32_t>& generated) const {
  std::vector<int32_t> all = prompt_;
  all.insert(all.end(), generated.begin(), generated.end());
  Json blocks = Json::array();
  for (size_t i = 0; i < all.size(); i += static_cast<size_t>(block_size_)) {
    const size_t n = std::min(all.size() - i, static_cast<size_t>(block_size_));
    blocks.push_back(model.Detokenize(std::span(all).subspan(i, n)));
  }
  Json answer = Json::array();
  for (const int32_t t : generated) answer.push_back(model.TokenText(t));
  Json j;
  j["format"] = "farsight-trace";
  j["version"] = 1;
  j["model"] = model.info().path;
  j["block_size"] = block_size_;
  j["prompt_tokens"] = prompt_.size();
  j["generated"] = answer;
  j["blocks"] = blocks;
  j["steps"] = steps_;
  return WriteFileAtomically(path, j.dump(-1, ' ', false, Json::error_handler_t::replace));
}

int TraceView(const TraceViewArgs& args) {
  auto text = ReadText(args.trace);
  if (!text.ok()) return Fail(text.status());
  const Json j = Json::parse(*text, nullptr, false);
  if (!j.is_object() || !j.contains("format") || j["format"] != "farsight-trace") {
    return Fail(DataLoss("'" + args.trace + "' is not a trace written by farsight run --trace"));
  }
  std::string html;
  try {
    std::string blocks;
    int64_t count = 0;
    for (const auto& b : j.at("blocks")) {
      blocks += fmt::format("<div class=\"b\" id=\"b{}\">{}</div>\n", count++, EscapeHtml(b.get<std::string>()));
    }
    Json shares = Json::array();
    std::string answer;
    const auto& generated = j.at("generated");
    size_t token = 0;
    for (const auto& step : j.at("steps")) {
      std::map<int64_t, int> reads;
      int pairs = 0;
      for (const auto& layer : step.at("layers")) {
        if (layer.at("heads").is_null()) continue;  // dense layers read everything and would hide the choice
        for (const auto& head : layer.at("heads")) {
          ++pairs;
          for (const auto& id : head) ++reads[id.get<int64_t>()];
        }
      }
      Json row = Json::object();
      if (pairs == 0) {
        const int64_t visible = std::min(count, step.at("visible_blocks").get<int64_t>());
        for (int64_t b = 0; b < visible; ++b) row[std::to_string(b)] = 1.0;
      }
      for (const auto& [id, n] : reads) row[std::to_string(id)] = static_cast<double>(n) / pairs;
      shares.push_back(row);
      answer += fmt::format("<span>{}</span>",
                            token < generated.size() ? EscapeHtml(generated[token].get<std::string>()) : "·");
      ++token;
    }
    // The last token was written and never read again, so it attended to nothing.
    for (size_t t = token; t < generated.size(); ++t) answer += EscapeHtml(generated[t].get<std::string>());
    html = fmt::format(kPage, fmt::arg("answer", answer), fmt::arg("last", token > 0 ? token - 1 : 0),
                       fmt::arg("blocks", blocks), fmt::arg("shares", shares.dump()), fmt::arg("count", count));
  } catch (const Json::exception&) {
    return Fail(DataLoss("the trace '" + args.trace + "' is damaged or of another version"));
  }
  const std::string path = args.output.empty() ? args.trace + ".html" : args.output;
  if (const Status s = WriteFileAtomically(path, html); !s.ok()) return Fail(s);
  Say("{}\n", path);
  return kExitOk;
}

}  // namespace farsight::cli
