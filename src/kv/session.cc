#include "kv/session.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "io/hash.h"

namespace farsight {
namespace {

std::string Quoted(const std::string& path) { return "'" + path + "'"; }

Status WriteAt(int fd, std::span<const std::byte> bytes, const std::string& path) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t n = pwrite(fd, bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return StatusFromErrno("cannot write " + Quoted(path), n == 0 ? ENOSPC : errno);
    at += static_cast<size_t>(n);
  }
  return OkStatus();
}

std::string ReadableFingerprint(const SessionHeader& h) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'" + h.model_name + "' (";
  for (size_t i = 0; i < 6; ++i) {
    out += kHex[h.model_fingerprint[i] >> 4];
    out += kHex[h.model_fingerprint[i] & 15];
  }
  return out + ")";
}

}  // namespace

SessionFile::SessionFile(std::unique_ptr<AsyncFile> file, SessionHeader header, uint64_t header_sum, FileAccess access)
    : header_(std::move(header)),
      header_sum_(header_sum),
      store_(std::make_unique<BlockStore>(std::move(file), header_.geometry, kSessionDataStart, UINT64_MAX / 4,
                                          access == FileAccess::kRead)) {}

std::vector<std::byte> SessionFile::EmptyFile(const SessionHeader& header) {
  uint64_t header_sum = 0;
  std::vector<std::byte> bytes = EncodeSessionHeader(header, &header_sum);
  const std::vector<std::byte> index = EncodeSessionIndex(header, 1, {}, {});
  const SessionCommit commit = {1, kSessionDataStart, index.size(), Checksum(index), kSessionDataStart + kSessionPage,
                                0, header_sum};
  bytes.resize(kSessionDataStart + kSessionPage);
  const std::vector<std::byte> record = EncodeSessionCommit(commit);
  std::memcpy(bytes.data() + kSessionPage * (1 + commit.sequence % 2), record.data(), record.size());
  std::memcpy(bytes.data() + kSessionDataStart, index.data(), index.size());
  return bytes;
}

StatusOr<std::unique_ptr<SessionFile>> SessionFile::Create(const std::string& path, const SessionHeader& header,
                                                           const AsyncFileOptions& options) {
  FS_RETURN_IF_ERROR(CheckSessionHeader(header));
  FS_ASSIGN_OR_RETURN(NewFile created, NewFile::Create(path));
  FS_RETURN_IF_ERROR(WriteAt(created.fd(), EmptyFile(header), path));
  FS_ASSIGN_OR_RETURN(UniqueFd fd, created.Publish());
  FS_RETURN_IF_ERROR(LockForWriting(fd, path));
  FS_ASSIGN_OR_RETURN(auto file, OpenAsyncFile(std::move(fd), path, options));
  return FromFile(std::move(file), FileAccess::kReadWrite);
}

StatusOr<std::unique_ptr<SessionFile>> SessionFile::Open(const std::string& path, FileAccess access,
                                                         const AsyncFileOptions& options) {
  FS_ASSIGN_OR_RETURN(UniqueFd fd, OpenRegularFile(path, access));
  if (access == FileAccess::kReadWrite) FS_RETURN_IF_ERROR(LockForWriting(fd, path));
  FS_ASSIGN_OR_RETURN(auto file, OpenAsyncFile(std::move(fd), path, options));
  return FromFile(std::move(file), access);
}

StatusOr<std::unique_ptr<SessionFile>> SessionFile::FromFile(std::unique_ptr<AsyncFile> file, FileAccess access) {
  const std::string what = Quoted(file->path());
  FS_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
  if (size < kSessionPage) return InvalidArgument(what + " is not a session file");
  FS_ASSIGN_OR_RETURN(Buffer memory, AllocateHost(2 * kSessionPage));
  const auto at = reinterpret_cast<uintptr_t>(memory.data());
  std::byte* page = memory.data() + (RoundUpToIo(at) - at);
  const IoPiece piece = {0, page, kSessionPage};
  FS_RETURN_IF_ERROR(file->Transfer(IoKind::kRead, {&piece, 1}));
  uint64_t sum = 0;
  FS_ASSIGN_OR_RETURN(SessionHeader header, DecodeSessionHeader({page, kSessionPage}, what, &sum));
  std::unique_ptr<SessionFile> session(new SessionFile(std::move(file), std::move(header), sum, access));
  FS_RETURN_IF_ERROR(session->Load());
  return session;
}

// A writer may commit twice while a reader is between record and index, and use the index's place again.
Status SessionFile::Load() {
  Status status;
  for (int attempt = 0; attempt < 3; ++attempt) {
    FS_ASSIGN_OR_RETURN(const uint64_t size, store_->file().Size());
    status = LoadOnce(size);
    if (status.ok() || !store_->read_only()) break;
  }
  return status;
}

Status SessionFile::LoadOnce(uint64_t file_size) {
  const std::string what = Quoted(path());
  if (file_size < kSessionDataStart) {
    return DataLoss(what + " was cut short: it has " + std::to_string(file_size) + " bytes, a session has at least " +
                    std::to_string(kSessionDataStart + kSessionPage));
  }
  FS_ASSIGN_OR_RETURN(const auto both, ReadBytes(kSessionPage, 2 * kSessionPage));
  StatusOr<SessionCommit> found[2] = {
      DecodeSessionCommit(both.first(kSessionPage), what, header_sum_, file_size),
      DecodeSessionCommit(both.subspan(kSessionPage), what, header_sum_, file_size),
  };
  for (uint64_t i = 0; i < 2; ++i) {
    if (found[i].ok() && found[i]->sequence % 2 != i)
      found[i] = DataLoss(what + " has a commit record in the wrong place");
  }
  if (!found[0].ok() && !found[1].ok()) {
    // Any other fault says more than that a record is torn.
    const bool torn = found[0].status().message().find("no intact") != std::string::npos;
    return torn ? found[1].status() : found[0].status();
  }
  const bool second = !found[0].ok() || (found[1].ok() && found[1]->sequence > found[0]->sequence);
  commit_ = second ? *found[1] : *found[0];
  FS_ASSIGN_OR_RETURN(const auto bytes, ReadBytes(commit_.index_offset, commit_.index_bytes));
  FS_ASSIGN_OR_RETURN(SessionIndex index, DecodeSessionIndex(bytes, what, header_, commit_));
  content_ = std::move(index.content);
  store_->Restart(RoundUpToIo(commit_.file_bytes), index.groups);
  store_->SetCommitted(content_.file_blocks);
  own_ = {commit_.index_offset, RoundUpToIo(commit_.index_bytes)};
  const StatusOr<SessionCommit>& other = second ? found[0] : found[1];
  spare_ = other.ok() ? Area{other->index_offset, RoundUpToIo(other->index_bytes)} : Area{};
  if (!SpareIsFree()) spare_ = {};
  return OkStatus();
}

// The older record may be of any age and say anything: its place is used again only where nothing else is.
bool SessionFile::SpareIsFree() const {
  if (spare_.bytes == 0 || spare_.offset + spare_.bytes > store_->end()) return false;
  const auto apart = [this](uint64_t offset, uint64_t bytes) {
    return spare_.offset >= offset + bytes || offset >= spare_.offset + spare_.bytes;
  };
  const uint64_t group_bytes = GroupBytes(header_.geometry);
  return apart(own_.offset, own_.bytes) && std::all_of(store_->groups().begin(), store_->groups().end(),
                                                       [&](uint64_t g) { return apart(g, group_bytes); });
}

Status SessionFile::CheckModel(const SessionHeader& e) const {
  const std::string what = Quoted(path());
  if (header_.model_fingerprint != e.model_fingerprint) {
    return InvalidArgument(what + " was written by the model " + ReadableFingerprint(header_) + "; this is " +
                           ReadableFingerprint(e));
  }
  const auto& a = header_.geometry;
  const auto& b = e.geometry;
  const bool same = a.layers == b.layers && a.heads == b.heads && a.page_bytes == b.page_bytes &&
                    a.summary_row_bytes == b.summary_row_bytes && header_.block_tokens == e.block_tokens &&
                    header_.head_dim == e.head_dim && header_.kv_dtype == e.kv_dtype &&
                    header_.page_layout == e.page_layout && header_.summary_layout == e.summary_layout;
  if (same) return OkStatus();
  return InvalidArgument(what + " was written with other settings: blocks of " + std::to_string(header_.block_tokens) +
                         " tokens in " + InfoOf(header_.kv_dtype).name + ", layout " +
                         std::to_string(header_.page_layout) + "/" + std::to_string(header_.summary_layout) +
                         "; this run uses " + std::to_string(e.block_tokens) + " in " + InfoOf(e.kv_dtype).name +
                         ", layout " + std::to_string(e.page_layout) + "/" + std::to_string(e.summary_layout));
}

StatusOr<std::byte*> SessionFile::Bounce(size_t bytes) {
  const size_t want = bytes + kIoAlignment;
  if (bounce_.size() < want) {
    FS_ASSIGN_OR_RETURN(bounce_, AllocateHost(want));
  }
  const auto at = reinterpret_cast<uintptr_t>(bounce_.data());
  return bounce_.data() + (RoundUpToIo(at) - at);
}

// Any length, at an aligned offset.
StatusOr<std::span<const std::byte>> SessionFile::ReadBytes(uint64_t offset, uint64_t bytes) {
  const auto rounded = static_cast<size_t>(RoundUpToIo(bytes));
  FS_ASSIGN_OR_RETURN(std::byte* const data, Bounce(rounded));
  const IoPiece piece = {offset, data, rounded};
  FS_RETURN_IF_ERROR(store_->file().Transfer(IoKind::kRead, {&piece, 1}));
  return std::span<const std::byte>(data, static_cast<size_t>(bytes));
}

Status SessionFile::WriteBytes(uint64_t offset, std::span<const std::byte> bytes) {
  const auto rounded = static_cast<size_t>(RoundUpToIo(bytes.size()));
  FS_ASSIGN_OR_RETURN(std::byte* const data, Bounce(rounded));
  std::memcpy(data, bytes.data(), bytes.size());
  std::memset(data + bytes.size(), 0, rounded - bytes.size());
  const IoPiece piece = {offset, data, rounded};
  return store_->file().Transfer(IoKind::kWrite, {&piece, 1});
}

Status SessionFile::ReadPage(size_t block, size_t lane, std::span<std::byte> out) {
  const auto heads = static_cast<size_t>(header_.geometry.heads);
  const size_t lanes = static_cast<size_t>(header_.geometry.layers) * heads;
  FS_CHECK(block < content_.file_blocks.size() && lane < lanes && out.size() == header_.geometry.page_bytes,
           "a page of the session, and room for it");
  const uint64_t offset = store_->PageOffset(content_.file_blocks[block], static_cast<int32_t>(lane / heads),
                                             static_cast<int32_t>(lane % heads));
  const IoPiece piece = {offset, out.data(), out.size()};
  FS_RETURN_IF_ERROR(store_->file().Transfer(IoKind::kRead, {&piece, 1}));
  if (Checksum(out) == content_.page_sums[block * lanes + lane]) return OkStatus();
  return DataLoss("the KV page of block " + std::to_string(block) + ", layer " + std::to_string(lane / heads) +
                  ", head " + std::to_string(lane % heads) + ", at " + std::to_string(offset) + " of " +
                  Quoted(path()) + " does not match its checksum");
}

Status SessionFile::ReadSummaryRow(size_t block, std::span<std::byte> out) {
  FS_CHECK(block < content_.file_blocks.size() && out.size() == header_.geometry.summary_row_bytes,
           "a block of the session, and room for its row");
  if (out.empty()) return OkStatus();
  const uint64_t offset = store_->SummaryOffset(content_.file_blocks[block]);
  FS_ASSIGN_OR_RETURN(const auto row, ReadBytes(offset, out.size()));
  std::memcpy(out.data(), row.data(), row.size());
  if (Checksum(out) == content_.summary_sums[block]) return OkStatus();
  return DataLoss("the summaries of block " + std::to_string(block) + ", at " + std::to_string(offset) + " of " +
                  Quoted(path()) + ", do not match their checksum");
}

StatusOr<uint64_t> SessionFile::WriteSummaryRow(int32_t file_block, std::span<const std::byte> row) {
  FS_CHECK(row.size() == header_.geometry.summary_row_bytes, "a whole row");
  if (row.empty()) return uint64_t{0};
  if (!store_->Writable(file_block))
    return Internal("a committed block of " + Quoted(path()) + " is not written again");
  FS_RETURN_IF_ERROR(WriteBytes(store_->SummaryOffset(file_block), row));
  return Checksum(row);
}

StatusOr<SessionFile::Area> SessionFile::TakeIndexArea(uint64_t bytes) {
  if (spare_.bytes >= bytes) return spare_;
  const uint64_t room = RoundUpToIo(bytes + bytes / 2);  // so that a growing conversation takes few of them
  FS_ASSIGN_OR_RETURN(const uint64_t offset, store_->TakeSpace(room));
  return Area{offset, room};
}

Status SessionFile::CanCommit() const {
  if (store_->read_only()) return InvalidArgument(Quoted(path()) + " was opened for reading");
  if (unsure_) return Unavailable(Quoted(path()) + " did not finish a commit; it must be opened again");
  return OkStatus();
}

Status SessionFile::Commit(SessionContent content) {
  FS_RETURN_IF_ERROR(CanCommit());
  const size_t lanes = static_cast<size_t>(header_.geometry.layers) * static_cast<size_t>(header_.geometry.heads);
  const size_t blocks = content.file_blocks.size();
  const auto block_tokens = static_cast<size_t>(header_.block_tokens);
  FS_CHECK(blocks == (content.tokens.size() + block_tokens - 1) / block_tokens &&
               content.summary_sums.size() == blocks && content.page_sums.size() == blocks * lanes,
           "a session has sums for every block");
  if (content.settings.size() > kMaxSessionSettings) {
    return InvalidArgument("the settings of a session have at most " + std::to_string(kMaxSessionSettings) + " bytes");
  }
  const uint64_t sequence = commit_.sequence + 1;
  const std::vector<std::byte> index = EncodeSessionIndex(header_, sequence, store_->groups(), content);
  FS_ASSIGN_OR_RETURN(const Area area, TakeIndexArea(index.size()));
  const SessionCommit next = {sequence,      area.offset,           index.size(), Checksum(index),
                              store_->end(), content.tokens.size(), header_sum_};
  FS_RETURN_IF_ERROR(WriteBytes(area.offset, index));
  FS_RETURN_IF_ERROR(store_->file().Sync());  // all that the record will refer to is durable before it is written
  // Until the record is known to be durable, the file may be in the old or the new state: neither may be touched.
  unsure_ = true;
  std::vector<int32_t> both = content_.file_blocks;
  both.insert(both.end(), content.file_blocks.begin(), content.file_blocks.end());
  store_->SetCommitted(both);
  FS_RETURN_IF_ERROR(WriteBytes(kSessionPage * (1 + sequence % 2), EncodeSessionCommit(next)));
  FS_RETURN_IF_ERROR(store_->file().Sync());
  unsure_ = false;
  spare_ = own_;
  own_ = area;
  commit_ = next;
  content_ = std::move(content);
  store_->SetCommitted(content_.file_blocks);
  return OkStatus();
}

}  // namespace farsight
