// Errors as values. Everything that can fail for a reason outside this program (a file, a request, memory, a device)
// returns Status or StatusOr; nothing throws across the API and nothing aborts on outside input.
#ifndef FARSIGHT_STATUS_H_
#define FARSIGHT_STATUS_H_

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace farsight {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the caller asked for something that can never work
  kNotFound,           // a file, tensor or name does not exist
  kDataLoss,           // bytes from outside are broken, truncated or contradict each other
  kResourceExhausted,  // memory, blocks or a stated limit ran out
  kUnimplemented,      // well formed, but not supported; the message names what
  kUnavailable,        // may work later (device, lock)
  kCancelled,          // the caller cancelled
  kInternal,           // our own fault
};

const char* StatusCodeName(StatusCode code);

// An error code and one sentence that says what was expected and what came. Default: OK.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  std::string ToString() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return Status(); }
inline Status InvalidArgument(std::string m) { return {StatusCode::kInvalidArgument, std::move(m)}; }
inline Status NotFound(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
inline Status DataLoss(std::string m) { return {StatusCode::kDataLoss, std::move(m)}; }
inline Status ResourceExhausted(std::string m) { return {StatusCode::kResourceExhausted, std::move(m)}; }
inline Status Unimplemented(std::string m) { return {StatusCode::kUnimplemented, std::move(m)}; }
inline Status Unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
inline Status Cancelled(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }
inline Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

// A value or the Status that says why there is none. value() on an error is a bug of the caller and aborts.
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  StatusOr(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (status_.ok()) status_ = Internal("StatusOr built from an OK status without a value");
  }
  StatusOr(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    if (!value_) std::abort();
    return *value_;
  }
  const T& value() const& {
    if (!value_) std::abort();
    return *value_;
  }
  T&& value() && {
    if (!value_) std::abort();
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace farsight

#define FS_CONCAT_INNER(a, b) a##b
#define FS_CONCAT(a, b) FS_CONCAT_INNER(a, b)
#define FS_RETURN_IF_ERROR(expr)                                                     \
  do {                                                                               \
    if (::farsight::Status fs_status_ = (expr); !fs_status_.ok()) return fs_status_; \
  } while (0)
#define FS_ASSIGN_OR_RETURN(lhs, expr) FS_ASSIGN_OR_RETURN_IMPL(FS_CONCAT(fs_result_, __LINE__), lhs, expr)
#define FS_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                             \
  if (!result.ok()) return result.status();         \
  lhs = std::move(result).value()

#endif  // FARSIGHT_STATUS_H_
