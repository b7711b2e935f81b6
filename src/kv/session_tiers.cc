// What a session exchanges with the tiers, and what people are told about one.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "io/hash.h"
#include "kv/session.h"
#include "kv/tiers.h"

namespace farsight {
namespace {

constexpr size_t kMaxFaults = 20;

SessionInfo InfoOfSession(SessionFile* session) {
  SessionInfo info;
  info.header = session->header();
  info.sequence = session->sequence();
  info.tokens = session->content().tokens.size();
  info.blocks = session->content().file_blocks.size();
  info.file_bytes = session->store().end();
  info.block_bytes =
      info.blocks * GroupBytes(info.header.geometry) / static_cast<uint64_t>(info.header.geometry.group_blocks);
  info.settings = session->content().settings;
  return info;
}

}  // namespace

StatusOr<SessionInfo> DescribeSession(const std::string& path) {
  FS_ASSIGN_OR_RETURN(const auto session, SessionFile::Open(path, FileAccess::kRead, {}));
  return InfoOfSession(session.get());
}

StatusOr<SessionReport> VerifySession(const std::string& path) {
  FS_ASSIGN_OR_RETURN(const auto session, SessionFile::Open(path, FileAccess::kRead, {}));
  return VerifyOpenSession(session.get());
}

SessionReport VerifyOpenSession(SessionFile* session) {
  SessionReport report;
  report.info = InfoOfSession(session);
  const auto fault = [&report](const Status& status) {
    if (++report.num_faults <= kMaxFaults) report.faults.push_back(status.message());
  };
  const StoreGeometry& g = report.info.header.geometry;
  const size_t lanes = static_cast<size_t>(g.layers) * static_cast<size_t>(g.heads);
  const auto page_bytes = static_cast<size_t>(g.page_bytes);
  auto memory = AllocateHost(std::max(page_bytes, static_cast<size_t>(g.summary_row_bytes)) + kIoAlignment);
  if (!memory.ok()) {
    fault(memory.status());
    return report;
  }
  const auto at = reinterpret_cast<uintptr_t>(memory->data());
  std::byte* data = memory->data() + (RoundUpToIo(at) - at);
  for (size_t b = 0; b < report.info.blocks; ++b) {
    // Page by page, so that every broken one is found.
    for (size_t lane = 0; lane < lanes; ++lane, ++report.pages) {
      if (Status s = session->ReadPage(b, lane, {data, page_bytes}); !s.ok()) fault(s);
    }
    if (g.summary_row_bytes == 0) continue;
    ++report.summaries;
    if (Status s = session->ReadSummaryRow(b, {data, static_cast<size_t>(g.summary_row_bytes)}); !s.ok()) fault(s);
  }
  return report;
}

Status LoadSequence(SessionFile* session, KvTiers* tiers, int32_t store, int64_t length,
                    std::span<const int32_t> blocks, const PutSummary& put) {
  const SessionContent& c = session->content();
  const int64_t block_tokens = session->header().block_tokens;
  if (length < 0 || length > static_cast<int64_t>(c.tokens.size()) ||
      static_cast<int64_t>(blocks.size()) != (length + block_tokens - 1) / block_tokens) {
    return InvalidArgument("'" + session->path() + "' has " + std::to_string(c.tokens.size()) + " tokens; " +
                           std::to_string(length) + " in " + std::to_string(blocks.size()) + " blocks were asked for");
  }
  const size_t lanes = c.file_blocks.empty() ? 0 : c.page_sums.size() / c.file_blocks.size();
  std::vector<std::byte> row(static_cast<size_t>(session->header().geometry.summary_row_bytes));
  Status status;
  size_t b = 0;
  for (; b < blocks.size() && status.ok(); ++b) {
    if (!row.empty()) status = session->ReadSummaryRow(b, row);
    if (!status.ok()) break;
    if (!row.empty()) put(blocks[b], row);
    status = tiers->Adopt(blocks[b], {store, c.file_blocks[b]}, std::span(c.page_sums).subspan(b * lanes, lanes));
  }
  if (status.ok()) return OkStatus();
  for (size_t done = 0; done < b; ++done) {
    if (Status begun = tiers->Begin(blocks[done]); !begun.ok()) return begun;
  }
  return status;
}

Status SaveSequence(SessionFile* session, KvTiers* tiers, int32_t store, std::span<const int32_t> tokens,
                    std::span<const int32_t> blocks, std::string_view settings, const GetSummary& get) {
  const SessionHeader& header = session->header();
  FS_RETURN_IF_ERROR(session->CanCommit());
  for (const int32_t b : blocks) FS_RETURN_IF_ERROR(tiers->Move(b, store));
  FS_RETURN_IF_ERROR(tiers->Flush(blocks));
  const SessionContent& old = session->content();
  SessionContent next;
  next.tokens.assign(tokens.begin(), tokens.end());
  next.settings = settings;
  std::vector<std::byte> row(static_cast<size_t>(header.geometry.summary_row_bytes));
  for (size_t b = 0; b < blocks.size(); ++b) {
    const int32_t file_block = tiers->place(blocks[b]).file_block;
    next.file_blocks.push_back(file_block);
    for (int32_t l = 0; l < header.geometry.layers; ++l) {
      for (int32_t h = 0; h < header.geometry.heads; ++h) {
        next.page_sums.push_back(tiers->PageSum(l, blocks[b] * header.geometry.heads + h));
      }
    }
    if (!session->store().Writable(file_block)) {
      // Committed as it is: only a block at the same place of the sequence can be.
      if (b >= old.file_blocks.size() || old.file_blocks[b] != file_block) {
        return Internal("a block of '" + session->path() + "' moved inside its sequence");
      }
      next.summary_sums.push_back(old.summary_sums[b]);
      continue;
    }
    if (!row.empty()) {
      std::fill(row.begin(), row.end(), std::byte{0});
      get(blocks[b], row);
    }
    FS_ASSIGN_OR_RETURN(const uint64_t sum, session->WriteSummaryRow(file_block, row));
    next.summary_sums.push_back(sum);
  }
  return session->Commit(std::move(next));
}

}  // namespace farsight
