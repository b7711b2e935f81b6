// Owning memory. A Buffer belongs to the backend that allocated it: only that backend may dereference data().
#ifndef FARSIGHT_BASE_BUFFER_H_
#define FARSIGHT_BASE_BUFFER_H_

#include <cstddef>
#include <utility>

#include "farsight/status.h"

namespace farsight {

class Buffer {
 public:
  using FreeFn = void (*)(std::byte* data, size_t size);

  Buffer() = default;
  Buffer(std::byte* data, size_t size, FreeFn free) : data_(data), size_(size), free_(free) {}
  Buffer(Buffer&& o) noexcept { *this = std::move(o); }
  Buffer& operator=(Buffer&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    std::swap(free_, o.free_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (data_ != nullptr) free_(data_, size_);
  }

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  FreeFn free_ = nullptr;
};

// Zeroed host memory aligned to 64 bytes (2 MiB for large requests, with transparent huge pages where the system
// allows them: weights and KV pools are read at random, and huge pages are worth 20 % there).
// Fails with kResourceExhausted, never aborts.
StatusOr<Buffer> AllocateHost(size_t bytes);

}  // namespace farsight

#endif  // FARSIGHT_BASE_BUFFER_H_
