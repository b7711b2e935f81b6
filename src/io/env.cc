#include "io/env.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace farsight {
namespace {

Status FromErrno(const std::string& what, int error) {
  const std::string text = what + ": " + std::strerror(error);
  return error == ENOENT ? NotFound(text) : Unavailable(text);
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd > 2) close(fd);
  }
};

}  // namespace

StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return FromErrno("cannot open '" + path + "'", errno);
  struct stat st = {};
  if (fstat(file.fd, &st) != 0) return FromErrno("cannot read the size of '" + path + "'", errno);
  if (!S_ISREG(st.st_mode)) return InvalidArgument("'" + path + "' is not a regular file");
  if (st.st_size == 0) return DataLoss("'" + path + "' is empty");
  const auto size = static_cast<size_t>(st.st_size);
  void* p = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (p == MAP_FAILED) return FromErrno("cannot map '" + path + "'", errno);
  return std::shared_ptr<const MappedFile>(new MappedFile(static_cast<const std::byte*>(p), size));
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
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FromErrno("cannot read " + name, errno);
    if (n == 0) return out;
    if (out.size() + static_cast<size_t>(n) > max_bytes) {
      return ResourceExhausted(name + " is longer than the limit of " + std::to_string(max_bytes) + " bytes");
    }
    out.append(buffer, static_cast<size_t>(n));
  }
}

Status WriteFileAtomically(const std::string& path, std::string_view content) {
  std::string temporary = path + ".XXXXXX";
  Descriptor file{mkstemp(temporary.data())};
  if (file.fd < 0) return FromErrno("cannot create '" + temporary + "'", errno);
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t n = write(file.fd, content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int error = errno;
      unlink(temporary.c_str());
      return FromErrno("cannot write '" + path + "'", error);
    }
    done += static_cast<size_t>(n);
  }
  if (fchmod(file.fd, 0644) != 0 || rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(temporary.c_str());
    return FromErrno("cannot write '" + path + "'", error);
  }
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
