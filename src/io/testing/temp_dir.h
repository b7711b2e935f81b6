// A directory of its own for a test, removed with all it holds.
#ifndef FARSIGHT_IO_TESTING_TEMP_DIR_H_
#define FARSIGHT_IO_TESTING_TEMP_DIR_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace farsight::testing {

class TempDir {
 public:
  TempDir() : path_((std::filesystem::temp_directory_path() / "farsight_XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) std::abort();  // nothing a test could do
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string Path(std::string_view name) const { return path_ + "/" + std::string(name); }
  // Writes a file and returns its path.
  std::string Write(std::string_view name, std::string_view content) const {
    std::ofstream(Path(name), std::ios::binary) << content;
    return Path(name);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace farsight::testing

#endif  // FARSIGHT_IO_TESTING_TEMP_DIR_H_
