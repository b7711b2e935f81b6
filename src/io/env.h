// Files: read-only mappings and whole-file reads, with errors that say which file and why.
#ifndef FARSIGHT_IO_ENV_H_
#define FARSIGHT_IO_ENV_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "farsight/status.h"

namespace farsight {

// A regular file mapped read-only. Readers check every access against bytes(): a file that shrinks afterwards can still
// fault, as with every memory map, so its size is taken from the same descriptor that is mapped.
class MappedFile {
 public:
  static StatusOr<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}
  const std::byte* data_;
  size_t size_;
};

// Reads all of a file or pipe, "-" is standard input. kResourceExhausted when it is longer than max_bytes.
StatusOr<std::string> ReadFileToString(const std::string& path, size_t max_bytes);
// Writes a temporary file beside `path`, then renames it: readers see the old file or the new one.
Status WriteFileAtomically(const std::string& path, std::string_view content);

bool IsDirectory(const std::string& path);
bool FileExists(const std::string& path);

}  // namespace farsight

#endif  // FARSIGHT_IO_ENV_H_
