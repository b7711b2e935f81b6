// Where the blocks of the slow tier lie in a file, and which places are taken. Ids and offsets only; the bytes travel
// through the AsyncFile.
#ifndef FARSIGHT_KV_BLOCK_STORE_H_
#define FARSIGHT_KV_BLOCK_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "farsight/status.h"
#include "io/async_file.h"

namespace farsight {

// A file block is room for one block of tokens: a page for every layer and head, and one row with the summaries of all
// of them. The file is cut into groups of group_blocks file blocks; inside a group the pages of one (layer, head) lie
// one after another, so that neighbouring blocks of a list are read by one operation:
//
//   page (layer, head, i) at ((layer * heads + head) * group_blocks + i) * page_bytes      i = file block %
//   group_blocks summary row i         at layers * heads * group_blocks * page_bytes + i * summary_row_bytes
struct StoreGeometry {
  int32_t layers = 0;
  int32_t heads = 0;               // of a block, over all views
  uint64_t page_bytes = 0;         // a multiple of kIoAlignment
  uint64_t summary_row_bytes = 0;  // a multiple of kIoAlignment; 0: no summaries
  int32_t group_blocks = 16;
};

// kInvalidArgument unless the geometry is positive, aligned, and a group stays below 2^40 bytes.
Status CheckGeometry(const StoreGeometry& g);
uint64_t GroupBytes(const StoreGeometry& g);

class BlockStore {
 public:
  // Takes over a file whose bytes from `end` on are free. max_bytes bounds the file.
  BlockStore(std::unique_ptr<AsyncFile> file, const StoreGeometry& geometry, uint64_t end, uint64_t max_bytes,
             bool read_only);
  // A file beside `path` (a name in the directory that shall hold it) that vanishes with the process, however that
  // ends.
  static StatusOr<std::unique_ptr<BlockStore>> CreateScratch(const std::string& path, const StoreGeometry& geometry,
                                                             const AsyncFileOptions& options, uint64_t max_bytes);

  AsyncFile& file() { return *file_; }
  const StoreGeometry& geometry() const { return g_; }
  bool read_only() const { return read_only_; }
  int32_t num_blocks() const { return static_cast<int32_t>(states_.size()); }
  int32_t num_used() const { return used_; }
  uint64_t end() const { return end_; }
  const std::vector<uint64_t>& groups() const { return groups_; }  // byte offset of each group

  // A free file block, after the one given out last if possible; grows the file by a group when there is none.
  // kResourceExhausted beyond max_bytes or where the disk refuses.
  StatusOr<int32_t> Allocate();
  void Release(int32_t block);
  // Marks a block that a session on disk refers to as in use by this process too.
  void Use(int32_t block);
  bool InUse(int32_t block) const { return (states_[static_cast<size_t>(block)] & kUsed) != 0; }
  bool Writable(int32_t block) const { return !read_only_ && (states_[static_cast<size_t>(block)] & kCommitted) == 0; }

  uint64_t PageOffset(int32_t block, int32_t layer, int32_t head) const;
  uint64_t SummaryOffset(int32_t block) const;

  // Sessions only. Committed blocks belong to the state on disk: nothing writes to them until a later commit lets go.
  void AddGroup(uint64_t offset);
  // Nothing is in use but `groups` and what lies before `end`.
  void Restart(uint64_t end, const std::vector<uint64_t>& groups);
  void SetCommitted(const std::vector<int32_t>& blocks);
  // Bytes at the end of the file for anything else; aligned.
  StatusOr<uint64_t> TakeSpace(uint64_t bytes);

 private:
  static constexpr uint8_t kUsed = 1, kCommitted = 2;

  std::unique_ptr<AsyncFile> file_;
  StoreGeometry g_;
  uint64_t end_, max_bytes_;
  bool read_only_;
  std::vector<uint64_t> groups_;
  std::vector<uint8_t> states_;  // of each file block
  int32_t next_ = 0;             // where the search for a free one starts
  int32_t used_ = 0;
};

}  // namespace farsight

#endif  // FARSIGHT_KV_BLOCK_STORE_H_
