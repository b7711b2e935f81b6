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

// A regular file mapped read-only. Readers check every access against bytes(). The size comes from the descriptor that
// is mapped and is checked again after mapping; a file that is cut short later can still fault, as with every memory
// map.
class MappedFile {
 public:
  // kNotFound: no such file; kInvalidArgument: a directory, pipe or device; kDataLoss: empty; kUnavailable: the system
  // refuses, or the file's size changed meanwhile. Never blocks on a pipe.
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

// Reads all of a file or pipe, "-" is standard input. kResourceExhausted when it is longer than max_bytes; never holds
// more than that.
StatusOr<std::string> ReadFileToString(const std::string& path, size_t max_bytes);
// Writes a temporary file beside `path`, then renames it: readers see the old file or the new one. Symbolic links are
// followed, the old file's permissions are kept, and a device or pipe (/dev/stdout) is written to, not replaced.
Status WriteFileAtomically(const std::string& path, std::string_view content);
// Would WriteFileAtomically find a place for a file? For those whose content takes long to come about. Leaves nothing
// behind; a disk that is full later is told then.
Status CheckWritable(const std::string& path);

bool IsDirectory(const std::string& path);
bool FileExists(const std::string& path);

}  // namespace farsight

#endif  // FARSIGHT_IO_ENV_H_
