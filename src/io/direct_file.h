// Descriptors of files that are read and written in place: opened, created without a name until they are complete, and
// locked against a second writer.
#ifndef FARSIGHT_IO_DIRECT_FILE_H_
#define FARSIGHT_IO_DIRECT_FILE_H_

#include <string>
#include <utility>

#include "farsight/status.h"

namespace farsight {

// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// What a failed system call becomes: a full disk, quota or size limit is kResourceExhausted, a missing file kNotFound,
// a device error kDataLoss, anything else kUnavailable. `what` is the first half of the sentence.
Status StatusFromErrno(const std::string& what, int error);

enum class FileAccess { kRead, kReadWrite };

// Opens an existing regular file. kNotFound, kInvalidArgument (a directory, pipe or device) or kUnavailable.
StatusOr<UniqueFd> OpenRegularFile(const std::string& path, FileAccess access);

// A new, empty file in the directory of `path` that has no name yet: it vanishes with the process, however that ends,
// unless it is published.
class NewFile {
 public:
  static StatusOr<NewFile> Create(const std::string& path);
  NewFile(NewFile&& o) noexcept = default;
  NewFile& operator=(NewFile&& o) noexcept = default;
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();

  int fd() const { return fd_.get(); }
  // Gives up the name for good and hands out the descriptor: a scratch file, gone when it is closed.
  UniqueFd TakeNameless();
  // Makes what was written durable and gives the file its name in one step. kInvalidArgument when `path` exists.
  StatusOr<UniqueFd> Publish();

 private:
  NewFile() = default;
  UniqueFd fd_;
  std::string path_;
  std::string temporary_;  // only where the file system cannot keep a file without a name
};

// Excludes a second writer, in this process or another, until the descriptor is closed. Readers need no lock.
// kUnavailable when another holds it for longer than half a second.
Status LockForWriting(const UniqueFd& fd, const std::string& path);

}  // namespace farsight

#endif  // FARSIGHT_IO_DIRECT_FILE_H_
