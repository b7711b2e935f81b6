#include "kv/session_format.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "io/hash.h"

namespace farsight {
namespace {

static_assert(std::endian::native == std::endian::little, "session files are little-endian");

constexpr std::string_view kHeaderMagic("FARSKVS\n", 8), kCommitMagic("FARSKVC\n", 8), kIndexMagic("FARSKVI\n", 8);
constexpr size_t kSumAt = kSessionPage - 8;
constexpr size_t kIndexHead = 40;
constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

class Writer {
 public:
  template <typename T>
  void Put(T value) {
    static_assert(std::is_integral_v<T>);
    Raw(&value, sizeof(value));
  }
  void Raw(const void* data, size_t n) {
    if (n > 0) bytes_.append(static_cast<const char*>(data), n);
  }
  template <typename T>
  void Array(const std::vector<T>& values) {
    Raw(values.data(), values.size() * sizeof(T));
  }
  void PadTo(size_t multiple) { bytes_.append((multiple - bytes_.size() % multiple) % multiple, '\0'); }
  // A page that ends with the sum of all before.
  std::vector<std::byte> Page() && {
    FS_CHECK(bytes_.size() <= kSumAt, "a session page is full");
    bytes_.append(kSumAt - bytes_.size(), '\0');
    Put(Checksum(std::as_bytes(std::span(bytes_))));
    return std::move(*this).Bytes();
  }
  std::vector<std::byte> Bytes() && {
    const auto all = std::as_bytes(std::span(bytes_));
    return {all.begin(), all.end()};
  }

 private:
  std::string bytes_;
};

// The caller has checked that what it reads is there.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T Get() {
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  template <typename T>
  std::vector<T> Array(size_t n) {
    std::vector<T> out(n);
    if (n > 0) std::memcpy(out.data(), bytes_.data() + at_, n * sizeof(T));
    at_ += n * sizeof(T);
    return out;
  }
  std::string Text(size_t n) {
    std::string out(reinterpret_cast<const char*>(bytes_.data() + at_), n);
    at_ += n;
    return out;
  }
  void PadTo(size_t multiple) { at_ = (at_ + multiple - 1) / multiple * multiple; }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
};

bool HasMagic(std::span<const std::byte> bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

bool SumMatches(std::span<const std::byte> page, uint64_t* sum) {
  std::memcpy(sum, page.data() + kSumAt, sizeof(*sum));
  return Checksum(page.first(kSumAt)) == *sum;
}

constexpr uint64_t PadEight(uint64_t n) { return (n + 7) / 8 * 8; }

uint64_t IndexBytes(uint64_t settings, uint64_t tokens, uint64_t groups, uint64_t blocks, uint64_t lanes) {
  return kIndexHead + PadEight(settings) + PadEight(tokens * 4) + groups * 8 + blocks * (16 + lanes * 8);
}

uint64_t LanesOf(const SessionHeader& h) {
  return static_cast<uint64_t>(h.geometry.layers) * static_cast<uint64_t>(h.geometry.heads);
}

// Groups and the index lie behind the records, inside the file, aligned, apart from each other.
Status CheckExtents(const std::string& what, const SessionHeader& header, const SessionCommit& commit,
                    const std::vector<uint64_t>& groups) {
  std::vector<std::pair<uint64_t, uint64_t>> extents = {{commit.index_offset, commit.index_bytes}};
  const uint64_t group_bytes = GroupBytes(header.geometry);
  for (const uint64_t g : groups) {
    const bool inside = g % kIoAlignment == 0 && g >= kSessionDataStart && g <= commit.file_bytes &&
                        group_bytes <= commit.file_bytes - g;
    if (!inside) return DataLoss(what + " has a group of blocks at " + std::to_string(g) + ", outside its data");
    extents.emplace_back(g, group_bytes);
  }
  std::sort(extents.begin(), extents.end());
  for (size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].first - extents[i - 1].first < extents[i - 1].second) {
      return DataLoss(what + " has data that overlaps at " + std::to_string(extents[i].first));
    }
  }
  return OkStatus();
}

Status CheckBlocks(const std::string& what, const SessionHeader& header, const SessionIndex& index) {
  const uint64_t room = index.groups.size() * static_cast<uint64_t>(header.geometry.group_blocks);
  std::vector<int32_t> sorted = index.content.file_blocks;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] < 0 || static_cast<uint64_t>(sorted[i]) >= room) {
      return DataLoss(what + " names block " + std::to_string(sorted[i]) + "; it has " + std::to_string(room));
    }
    if (i > 0 && sorted[i] == sorted[i - 1]) {
      return DataLoss(what + " names block " + std::to_string(sorted[i]) + " twice");
    }
  }
  for (const int32_t t : index.content.tokens) {
    if (t < 0) return DataLoss(what + " has a negative token id, " + std::to_string(t));
  }
  return OkStatus();
}

}  // namespace

Status CheckSessionHeader(const SessionHeader& h) {
  FS_RETURN_IF_ERROR(CheckGeometry(h.geometry));
  if (h.block_tokens < 1 || h.block_tokens > 65536 || h.head_dim < 1 || h.head_dim > 65536) {
    return InvalidArgument("a session needs 1 to 65536 tokens a block and channels a head; got " +
                           std::to_string(h.block_tokens) + " and " + std::to_string(h.head_dim));
  }
  if (std::find(std::begin(kTypes), std::end(kTypes), h.kv_dtype) == std::end(kTypes)) {
    return InvalidArgument("a session holds keys and values in F32, F16 or BF16");
  }
  if (h.model_name.size() > kMaxSessionName) {
    return InvalidArgument("a model's name in a session has at most " + std::to_string(kMaxSessionName) + " bytes");
  }
  return OkStatus();
}

std::vector<std::byte> EncodeSessionHeader(const SessionHeader& h, uint64_t* sum) {
  Writer w;
  w.Raw(kHeaderMagic.data(), kHeaderMagic.size());
  w.Put<uint32_t>(kSessionVersion);
  w.Put<uint32_t>(static_cast<uint32_t>(kSessionPage));
  for (const int32_t v : {h.geometry.layers, h.geometry.heads, h.head_dim, h.block_tokens, h.geometry.group_blocks}) {
    w.Put<uint32_t>(static_cast<uint32_t>(v));
  }
  w.Put<uint32_t>(
      static_cast<uint32_t>(std::find(std::begin(kTypes), std::end(kTypes), h.kv_dtype) - std::begin(kTypes)));
  w.Put<uint32_t>(h.page_layout);
  w.Put<uint32_t>(h.summary_layout);
  w.Put<uint64_t>(h.geometry.page_bytes);
  w.Put<uint64_t>(h.geometry.summary_row_bytes);
  w.Raw(h.model_fingerprint.data(), h.model_fingerprint.size());
  w.Put<uint32_t>(static_cast<uint32_t>(h.model_name.size()));
  w.Raw(h.model_name.data(), h.model_name.size());
  std::vector<std::byte> page = std::move(w).Page();
  std::memcpy(sum, page.data() + kSumAt, sizeof(*sum));
  return page;
}

StatusOr<SessionHeader> DecodeSessionHeader(std::span<const std::byte> page, const std::string& what, uint64_t* sum) {
  if (page.size() != kSessionPage || !HasMagic(page, kHeaderMagic)) {
    return InvalidArgument(what + " is not a session file");
  }
  Reader r(page.subspan(kHeaderMagic.size()));
  const auto version = r.Get<uint32_t>();
  if (version != kSessionVersion) {
    return InvalidArgument(what + " is a session of version " + std::to_string(version) +
                           "; this program reads version " + std::to_string(kSessionVersion));
  }
  if (!SumMatches(page, sum)) return DataLoss(what + " is a session whose header does not match its checksum");
  if (r.Get<uint32_t>() != kSessionPage) return DataLoss(what + " is a session with a header of another length");
  SessionHeader h;
  for (int32_t* v : {&h.geometry.layers, &h.geometry.heads, &h.head_dim, &h.block_tokens, &h.geometry.group_blocks}) {
    *v = static_cast<int32_t>(std::min<uint32_t>(r.Get<uint32_t>(), INT32_MAX));
  }
  const auto type = r.Get<uint32_t>();
  if (type >= std::size(kTypes)) return DataLoss(what + " has keys of an unknown type, " + std::to_string(type));
  h.kv_dtype = kTypes[type];
  h.page_layout = r.Get<uint32_t>();
  h.summary_layout = r.Get<uint32_t>();
  h.geometry.page_bytes = r.Get<uint64_t>();
  h.geometry.summary_row_bytes = r.Get<uint64_t>();
  for (auto& byte : h.model_fingerprint) byte = r.Get<uint8_t>();
  const auto name = r.Get<uint32_t>();
  if (name > kMaxSessionName) return DataLoss(what + " names a model in " + std::to_string(name) + " bytes");
  h.model_name = r.Text(name);
  if (Status s = CheckSessionHeader(h); !s.ok()) return DataLoss(what + " cannot be used: " + s.message());
  return h;
}

std::vector<std::byte> EncodeSessionCommit(const SessionCommit& c) {
  Writer w;
  w.Raw(kCommitMagic.data(), kCommitMagic.size());
  for (const uint64_t v :
       {c.sequence, c.index_offset, c.index_bytes, c.index_sum, c.file_bytes, c.num_tokens, c.header_sum}) {
    w.Put<uint64_t>(v);
  }
  return std::move(w).Page();
}

StatusOr<SessionCommit> DecodeSessionCommit(std::span<const std::byte> page, const std::string& what,
                                            uint64_t header_sum, uint64_t file_size) {
  uint64_t sum = 0;
  if (page.size() != kSessionPage || !HasMagic(page, kCommitMagic) || !SumMatches(page, &sum)) {
    return DataLoss(what + " has no intact commit record");
  }
  Reader r(page.subspan(kCommitMagic.size()));
  SessionCommit c;
  for (uint64_t* v :
       {&c.sequence, &c.index_offset, &c.index_bytes, &c.index_sum, &c.file_bytes, &c.num_tokens, &c.header_sum}) {
    *v = r.Get<uint64_t>();
  }
  if (c.header_sum != header_sum) return DataLoss(what + " has a commit record of another file");
  if (c.sequence == 0) return DataLoss(what + " has a commit record without a number");
  if (c.file_bytes > file_size) {
    return DataLoss(what + " was cut short: it has " + std::to_string(file_size) + " bytes, its last commit needs " +
                    std::to_string(c.file_bytes));
  }
  const bool inside = c.index_offset % kIoAlignment == 0 && c.index_offset >= kSessionDataStart &&
                      c.index_offset <= c.file_bytes && c.index_bytes <= c.file_bytes - c.index_offset &&
                      c.index_bytes >= kIndexHead && c.index_bytes <= kMaxSessionIndex;
  if (!inside) return DataLoss(what + " has an index outside its data, at " + std::to_string(c.index_offset));
  return c;
}

std::vector<std::byte> EncodeSessionIndex(const SessionHeader& header, uint64_t sequence,
                                          std::span<const uint64_t> groups, const SessionContent& c) {
  const auto lanes = static_cast<size_t>(LanesOf(header));
  Writer w;
  w.Raw(kIndexMagic.data(), kIndexMagic.size());
  w.Put<uint64_t>(sequence);
  w.Put<uint64_t>(c.tokens.size());
  w.Put<uint32_t>(static_cast<uint32_t>(groups.size()));
  w.Put<uint32_t>(static_cast<uint32_t>(c.file_blocks.size()));
  w.Put<uint32_t>(static_cast<uint32_t>(c.settings.size()));
  w.Put<uint32_t>(0);
  w.Raw(c.settings.data(), c.settings.size());
  w.PadTo(8);
  w.Array(c.tokens);
  w.PadTo(8);
  w.Raw(groups.data(), groups.size_bytes());
  for (size_t b = 0; b < c.file_blocks.size(); ++b) {
    w.Put<uint64_t>(static_cast<uint64_t>(c.file_blocks[b]));
    w.Put<uint64_t>(c.summary_sums[b]);
    w.Raw(c.page_sums.data() + b * lanes, lanes * sizeof(uint64_t));
  }
  return std::move(w).Bytes();
}

StatusOr<SessionIndex> DecodeSessionIndex(std::span<const std::byte> bytes, const std::string& what,
                                          const SessionHeader& header, const SessionCommit& commit) {
  if (bytes.size() != commit.index_bytes || Checksum(bytes) != commit.index_sum) {
    return DataLoss(what + " has an index that does not match its checksum");
  }
  if (!HasMagic(bytes, kIndexMagic)) return DataLoss(what + " has an index that does not start as one");
  Reader r(bytes);
  r.Get<uint64_t>();
  const auto sequence = r.Get<uint64_t>();
  const auto tokens = r.Get<uint64_t>();
  const auto groups = r.Get<uint32_t>(), blocks = r.Get<uint32_t>(), settings = r.Get<uint32_t>();
  r.Get<uint32_t>();
  const auto block_tokens = static_cast<uint64_t>(header.block_tokens);
  if (sequence != commit.sequence || tokens != commit.num_tokens || tokens > INT32_MAX ||
      blocks != (tokens + block_tokens - 1) / block_tokens || settings > kMaxSessionSettings) {
    return DataLoss(what + " has an index that contradicts its commit record");
  }
  // Each count alone is below 2^32, lanes below 2^32: first bound the product, then compare exactly.
  const uint64_t lanes = LanesOf(header);
  const bool bounded = blocks <= bytes.size() / (16 + lanes * 8);
  if (!bounded || IndexBytes(settings, tokens, groups, blocks, lanes) != bytes.size()) {
    return DataLoss(what + " has an index of " + std::to_string(bytes.size()) + " bytes, which its counts contradict");
  }
  SessionIndex index;
  SessionContent& c = index.content;
  c.settings = r.Text(settings);
  r.PadTo(8);
  c.tokens = r.Array<int32_t>(static_cast<size_t>(tokens));
  r.PadTo(8);
  index.groups = r.Array<uint64_t>(groups);
  c.file_blocks.reserve(blocks);
  c.summary_sums.reserve(blocks);
  c.page_sums.reserve(blocks * static_cast<size_t>(lanes));
  for (uint32_t b = 0; b < blocks; ++b) {
    const auto file_block = r.Get<uint64_t>();
    c.file_blocks.push_back(static_cast<int32_t>(std::min<uint64_t>(file_block, INT32_MAX)));
    c.summary_sums.push_back(r.Get<uint64_t>());
    for (uint64_t l = 0; l < lanes; ++l) c.page_sums.push_back(r.Get<uint64_t>());
  }
  FS_RETURN_IF_ERROR(CheckExtents(what, header, commit, index.groups));
  FS_RETURN_IF_ERROR(CheckBlocks(what, header, index));
  return index;
}

}  // namespace farsight
