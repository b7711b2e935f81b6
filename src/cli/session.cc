// farsight session: what a session file holds, and whether it is whole.
#include "kv/session.h"

#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/commands.h"

namespace farsight::cli {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const SessionInfo& info) {
  const SessionHeader& h = info.header;
  return {{"model", h.model_name},         {"tokens", info.tokens},
          {"blocks", info.blocks},         {"block_tokens", h.block_tokens},
          {"layers", h.geometry.layers},   {"heads", h.geometry.heads},
          {"head_dim", h.head_dim},        {"kv_type", InfoOf(h.kv_dtype).name},
          {"settings", info.settings},     {"commits", info.sequence},
          {"file_bytes", info.file_bytes}, {"used_bytes", info.block_bytes}};
}

void Print(const SessionInfo& info) {
  const SessionHeader& h = info.header;
  Say("model     {}\n", OneLine(h.model_name));
  Say("tokens    {} in {} blocks of {}\n", info.tokens, info.blocks, h.block_tokens);
  Say("cache     {} layers, {} heads of {}, {}\n", h.geometry.layers, h.geometry.heads, h.head_dim,
      InfoOf(h.kv_dtype).name);
  Say("settings  {}\n", info.settings.empty() ? "-" : OneLine(info.settings));
  Say("file      {}, {} of it in use, {} commits\n", HumanBytes(static_cast<int64_t>(info.file_bytes)),
      HumanBytes(static_cast<int64_t>(info.block_bytes)), info.sequence);
}

}  // namespace

int SessionInspect(const SessionArgs& args) {
  const auto info = DescribeSession(args.file);
  if (!info.ok()) return Fail(info.status());
  if (args.json) {
    std::cout << ToJson(*info).dump(2) << "\n";
  } else {
    Print(*info);
  }
  return kExitOk;
}

int SessionVerify(const SessionArgs& args) {
  const auto report = VerifySession(args.file);
  if (!report.ok()) return Fail(report.status());
  if (args.json) {
    Json j = ToJson(report->info);
    j["pages_read"] = report->pages;
    j["summaries_read"] = report->summaries;
    j["num_faults"] = report->num_faults;
    j["faults"] = report->faults;
    std::cout << j.dump(2) << "\n";
  } else {
    for (const auto& fault : report->faults) Say("{}\n", fault);
    Say("{} pages and {} summaries read, {} broken\n", report->pages, report->summaries, report->num_faults);
  }
  return report->num_faults == 0 ? kExitOk : kExitError;
}

}  // namespace farsight::cli
