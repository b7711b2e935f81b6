// Any bytes as a session file: the reader returns a session whose every place lies inside the bytes, or one sentence.
// Bytes rarely have the right checksums, so these are made right first when the first byte asks for it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "io/hash.h"
#include "io/testing/fake_async_file.h"
#include "kv/session.h"

namespace {

using farsight::kSessionPage;

void SealPage(std::vector<std::byte>* bytes, size_t at) {
  if (at + kSessionPage > bytes->size()) return;
  const uint64_t sum = farsight::Checksum({bytes->data() + at, kSessionPage - 8});
  std::memcpy(bytes->data() + at + kSessionPage - 8, &sum, sizeof(sum));
}

uint64_t At(const std::vector<std::byte>& bytes, size_t at) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

// Header, then the records with the header's sum and the sum of the index that they point to.
void Seal(std::vector<std::byte>* bytes) {
  SealPage(bytes, 0);
  for (size_t record = 1; record <= 2; ++record) {
    const size_t at = record * kSessionPage;
    if (at + kSessionPage > bytes->size()) return;
    std::memcpy(bytes->data() + at + 56, bytes->data() + kSessionPage - 8, 8);
    const uint64_t offset = At(*bytes, at + 16), length = At(*bytes, at + 24);
    if (offset <= bytes->size() && length <= bytes->size() - offset) {
      const uint64_t sum = farsight::Checksum({bytes->data() + offset, static_cast<size_t>(length)});
      std::memcpy(bytes->data() + at + 32, &sum, sizeof(sum));
    }
    SealPage(bytes, at);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  auto disk = std::make_shared<farsight::testing::FakeDisk>();
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  disk->bytes.assign(bytes.begin(), bytes.end());
  if (data[0] % 2 == 1) Seal(&disk->bytes);
  auto file = std::make_unique<farsight::testing::FakeAsyncFile>(disk);
  auto session = farsight::SessionFile::FromFile(std::move(file), farsight::FileAccess::kReadWrite);
  if (!session.ok()) {
    if (session.status().message().empty()) std::abort();
    return 0;
  }
  // Verifying reads every place; at most a little is asked of one input.
  const auto& header = (*session)->header();
  if (header.geometry.page_bytes > (1u << 20) || header.geometry.summary_row_bytes > (1u << 20)) return 0;
  const auto report = farsight::VerifyOpenSession(session->get());
  for (const auto& fault : report.faults) {
    if (fault.empty()) std::abort();
  }
  const auto content = (*session)->content();
  if (!(*session)->Commit(content).ok()) std::abort();
  auto again = farsight::SessionFile::FromFile(std::make_unique<farsight::testing::FakeAsyncFile>(disk),
                                               farsight::FileAccess::kRead);
  if (!again.ok() || (*again)->content().tokens != content.tokens) std::abort();
  return 0;
}
