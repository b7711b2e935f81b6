#include "io/direct_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace farsight {
namespace {

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// A name survives a power cut only once its directory was written.
Status SyncDirectory(const std::string& path) {
  const std::string directory = DirectoryOf(path);
  const UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) != 0)
    return StatusFromErrno("cannot sync the directory '" + directory + "'", errno);
  return OkStatus();
}

int LinkNameless(int fd, const std::string& path) {
  const std::string self = "/proc/self/fd/" + std::to_string(fd);
  return linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW);
}

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

Status StatusFromErrno(const std::string& what, int error) {
  const std::string text = what + ": " + std::strerror(error);
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return ResourceExhausted(text);
    case ENOENT:
      return NotFound(text);
    case EIO:
      return DataLoss(text);
    default:
      return Unavailable(text);
  }
}

StatusOr<UniqueFd> OpenRegularFile(const std::string& path, FileAccess access) {
  const int mode = access == FileAccess::kRead ? O_RDONLY : O_RDWR;
  UniqueFd fd(open(path.c_str(), mode | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid() && errno == EISDIR) return InvalidArgument("'" + path + "' is a directory; a file was expected");
  if (!fd.valid()) return StatusFromErrno("cannot open '" + path + "'", errno);
  struct stat st = {};
  if (fstat(fd.get(), &st) != 0) return StatusFromErrno("cannot read the kind of '" + path + "'", errno);
  if (!S_ISREG(st.st_mode)) return InvalidArgument("'" + path + "' is not a regular file");
  return fd;
}

StatusOr<NewFile> NewFile::Create(const std::string& path) {
  NewFile file;
  file.path_ = path;
  file.fd_ = UniqueFd(open(DirectoryOf(path).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0644));
  if (file.fd_.valid()) return file;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) {
    return StatusFromErrno("cannot create '" + path + "'", errno);
  }
  std::string name = path + ".XXXXXX";
  file.fd_ = UniqueFd(mkostemp(name.data(), O_CLOEXEC));
  if (!file.fd_.valid()) return StatusFromErrno("cannot create '" + path + "'", errno);
  file.temporary_ = std::move(name);
  (void)fchmod(file.fd_.get(), 0644);  // as the nameless file; where it is refused the file stays private
  return file;
}

NewFile::~NewFile() {
  if (fd_.valid() && !temporary_.empty()) unlink(temporary_.c_str());
}

UniqueFd NewFile::TakeNameless() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
  return std::move(fd_);
}

StatusOr<UniqueFd> NewFile::Publish() {
  if (fsync(fd_.get()) != 0) return StatusFromErrno("cannot write '" + path_ + "'", errno);
  const int failed = temporary_.empty() ? LinkNameless(fd_.get(), path_) : link(temporary_.c_str(), path_.c_str());
  if (failed != 0 && errno == EEXIST) return InvalidArgument("'" + path_ + "' exists; a new file was expected");
  if (failed != 0) return StatusFromErrno("cannot create '" + path_ + "'", errno);
  if (!temporary_.empty()) unlink(temporary_.c_str());
  FS_RETURN_IF_ERROR(SyncDirectory(path_));
  return std::move(fd_);
}

Status LockForWriting(const UniqueFd& fd, const std::string& path) {
  // The system closes the files of a killed process a moment after its death: that is no other writer.
  constexpr int kAttempts = 50;
  constexpr timespec kPause = {0, 10'000'000};
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return OkStatus();
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return StatusFromErrno("cannot lock '" + path + "'", errno);
    (void)nanosleep(&kPause, nullptr);
  }
  return Unavailable("'" + path + "' is being written by another process or session");
}

}  // namespace farsight
