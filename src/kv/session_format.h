// The bytes of a session file (docs/sessions.md): header, commit records and index, to and from memory. Every field is
// checked before it is used; nothing is allocated for a count that the given bytes could not hold.
#ifndef FARSIGHT_KV_SESSION_FORMAT_H_
#define FARSIGHT_KV_SESSION_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "farsight/status.h"
#include "kv/block_store.h"

namespace farsight {

inline constexpr uint64_t kSessionPage = kIoAlignment;           // header and each commit record
inline constexpr uint64_t kSessionDataStart = 3 * kSessionPage;  // groups and indices lie behind
inline constexpr uint32_t kSessionVersion = 1;
inline constexpr size_t kMaxSessionName = 255;
inline constexpr size_t kMaxSessionSettings = size_t{1} << 20;
inline constexpr uint64_t kMaxSessionIndex = uint64_t{1} << 30;  // bytes; a sparse file cannot make us allocate more

// What never changes in the life of a file.
struct SessionHeader {
  StoreGeometry geometry;
  int32_t block_tokens = 64;
  int32_t head_dim = 0;
  DType kv_dtype = DType::kF16;  // kF32, kF16 or kBF16
  uint32_t page_layout = 0;      // the backend's order of bytes inside a page
  uint32_t summary_layout = 0;   // what a summary row holds
  std::array<uint8_t, 32> model_fingerprint{};
  std::string model_name;  // for people; at most kMaxSessionName bytes
};

struct SessionCommit {
  uint64_t sequence = 0;  // of the commit, from 1; it lies in record sequence % 2
  uint64_t index_offset = 0;
  uint64_t index_bytes = 0;
  uint64_t index_sum = 0;
  uint64_t file_bytes = 0;  // everything in use lies before
  uint64_t num_tokens = 0;
  uint64_t header_sum = 0;  // of the header that it belongs to
};

// What a commit makes durable. Blocks are logical: block i holds tokens [i * block_tokens, ...).
struct SessionContent {
  std::vector<int32_t> tokens;
  std::string settings;                // the caller's, at most kMaxSessionSettings bytes
  std::vector<int32_t> file_blocks;    // [blocks]
  std::vector<uint64_t> summary_sums;  // [blocks]
  std::vector<uint64_t> page_sums;     // [blocks, layers, heads]
};

// kInvalidArgument when a field cannot be written.
Status CheckSessionHeader(const SessionHeader& header);
// The sum of the bytes comes out too: commit records carry it.
std::vector<std::byte> EncodeSessionHeader(const SessionHeader& header, uint64_t* sum);
std::vector<std::byte> EncodeSessionCommit(const SessionCommit& commit);
std::vector<std::byte> EncodeSessionIndex(const SessionHeader& header, uint64_t sequence,
                                          std::span<const uint64_t> groups, const SessionContent& content);

// `what` starts every sentence: the file's name in quotes. kInvalidArgument: not a session, or of another version;
// kDataLoss: broken.
StatusOr<SessionHeader> DecodeSessionHeader(std::span<const std::byte> page, const std::string& what, uint64_t* sum);
// kDataLoss when it is torn, of another file, or points outside `file_size` bytes.
StatusOr<SessionCommit> DecodeSessionCommit(std::span<const std::byte> page, const std::string& what,
                                            uint64_t header_sum, uint64_t file_size);
struct SessionIndex {
  std::vector<uint64_t> groups;
  SessionContent content;
};
StatusOr<SessionIndex> DecodeSessionIndex(std::span<const std::byte> bytes, const std::string& what,
                                          const SessionHeader& header, const SessionCommit& commit);

}  // namespace farsight

#endif  // FARSIGHT_KV_SESSION_FORMAT_H_
