#include "io/env.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace farsight {
namespace {

Status FromErrno(const std::string& what, int error) {
  const std::string text = what + ": " + std::strerror(error);
  return error == ENOENT ? NotFound(text) : Unavailable(text);
}

// Closes what was opened here; the standard streams are not ours.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd > 2) close(fd);
  }
};

const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

Status WriteAll(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t n = write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return FromErrno("cannot write '" + path + "'", errno);
    content.remove_prefix(static_cast<size_t>(n));
  }
  return OkStatus();
}

// A device or pipe cannot be replaced by a file without breaking it for everyone else.
Status WriteInPlace(const std::string& path, std::string_view content) {
  Descriptor file{open(path.c_str(), O_WRONLY | O_CLOEXEC)};
  if (file.fd < 0) return FromErrno("cannot open '" + path + "'", errno);
  return WriteAll(file.fd, content, path);
}

// Where a chain of symbolic links ends, so that the file is replaced and not the link.
std::string Resolved(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(realpath(path.c_str(), nullptr), std::free);
  return real != nullptr ? std::string(real.get()) : path;
}

// The mode of what a file would replace, 0: of nothing.
StatusOr<mode_t> ModeToReplace(const std::string& path) {
  struct stat old = {};
  if (stat(path.c_str(), &old) != 0) return mode_t{0};
  if (S_ISDIR(old.st_mode)) return InvalidArgument("'" + path + "' is a directory; a file was expected");
  return old.st_mode;
}

// Opens a new file beside `target`, what `path` leads to, and says its name.
StatusOr<int> CreateBeside(const std::string& path, const std::string& target, std::string* name) {
  *name = target + ".XXXXXX";  // a pattern for mkstemp
  const int fd = mkstemp(name->data());
  if (fd < 0) return FromErrno("cannot create a file beside '" + path + "'", errno);
  return fd;
}

}  // namespace

StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return FromErrno("cannot open '" + path + "'", errno);
  struct stat st = {};
  if (fstat(file.fd, &st) != 0) return FromErrno("cannot read the size of '" + path + "'", errno);
  if (!S_ISREG(st.st_mode)) {
    return InvalidArgument("'" + path + "' is " + KindOf(st.st_mode) + "; a regular file was expected");
  }
  if (st.st_size == 0) return DataLoss("'" + path + "' is empty");
  const auto size = static_cast<size_t>(st.st_size);
  void* p = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (p == MAP_FAILED) return FromErrno("cannot map '" + path + "'", errno);
  std::shared_ptr<const MappedFile> mapped(new MappedFile(static_cast<const std::byte*>(p), size));
  // A download or copy in progress changes the file's length; pages beyond its end would kill the process.
  if (fstat(file.fd, &st) != 0 || static_cast<size_t>(st.st_size) != size) {
    return Unavailable("'" + path + "' changed its size from " + std::to_string(size) + " to " +
                       std::to_string(st.st_size) + " bytes while it was opened");
  }
  return mapped;
}

MappedFile::~MappedFile() { munmap(const_cast<std::byte*>(data_), size_); }

StatusOr<std::string> ReadFileToString(const std::string& path, size_t max_bytes) {
  Descriptor file{path == "-" ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  const std::string name = path == "-" ? "standard input" : "'" + path + "'";
  if (file.fd < 0) return FromErrno("cannot open " + name, errno);
  std::string out;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = read(file.fd, buffer, sizeof(buffer));
    // A person who ends the program must not have to end the input too.
    if (n < 0 && errno == EINTR && path == "-") return Cancelled("interrupted while standard input was read");
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FromErrno("cannot read " + name, errno);
    if (n == 0) return out;
    if (static_cast<size_t>(n) > max_bytes - out.size()) {
      return ResourceExhausted(name + " is longer than the limit of " + std::to_string(max_bytes) + " bytes");
    }
    out.append(buffer, static_cast<size_t>(n));
  }
}

Status WriteFileAtomically(const std::string& path, std::string_view content) {
  FS_ASSIGN_OR_RETURN(const mode_t old, ModeToReplace(path));
  if (old != 0 && !S_ISREG(old)) return WriteInPlace(path, content);
  const std::string target = Resolved(path);
  std::string temporary;
  FS_ASSIGN_OR_RETURN(const int fd, CreateBeside(path, target, &temporary));
  const Descriptor file{fd};
  Status status = WriteAll(file.fd, content, path);
  const mode_t mode = old != 0 ? (old & 0777) : 0644;
  if (status.ok() &&
      (fchmod(file.fd, mode) != 0 || fsync(file.fd) != 0 || rename(temporary.c_str(), target.c_str()) != 0)) {
    status = FromErrno("cannot write '" + path + "'", errno);
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

Status CheckWritable(const std::string& path) {
  FS_ASSIGN_OR_RETURN(const mode_t old, ModeToReplace(path));
  if (old != 0 && !S_ISREG(old)) {  // opening a pipe would wait for its reader
    return access(path.c_str(), W_OK) == 0 ? OkStatus() : FromErrno("cannot open '" + path + "'", errno);
  }
  std::string temporary;
  FS_ASSIGN_OR_RETURN(const int fd, CreateBeside(path, Resolved(path), &temporary));
  const Descriptor file{fd};
  unlink(temporary.c_str());
  return OkStatus();
}

bool IsDirectory(const std::string& path) {
  struct stat st = {};
  return stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

bool FileExists(const std::string& path) {
  struct stat st = {};
  return stat(path.c_str(), &st) == 0;
}

}  // namespace farsight
