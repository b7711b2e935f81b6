#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/buffer.h"
#include "base/dtype.h"
#include "base/page_arena.h"
#include "base/read_memory.h"
#include "base/thread_pool.h"

namespace farsight {
namespace {

TEST(Half, EveryF16BitPatternSurvivesTheRoundTrip) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float f = F16ToF32(static_cast<uint16_t>(h));
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(f))));
    } else {
      ASSERT_EQ(F32ToF16(f), h);
    }
  }
}

TEST(Half, F16RoundsToNearestEven) {
  EXPECT_EQ(F32ToF16(1.0f + 0x1p-11f), 0x3c00);      // a tie goes to the even mantissa
  EXPECT_EQ(F32ToF16(1.0f + 3 * 0x1p-11f), 0x3c02);  // a tie goes up to the even mantissa
  EXPECT_EQ(F32ToF16(65519.0f), 0x7bff);             // the last value below the overflow tie
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(F32ToF16(0x1p-25f), 0x0000);  // half of the smallest subnormal ties to zero
  EXPECT_EQ(F32ToF16(0x1.8p-25f), 0x0001);
}

TEST(Half, BF16RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(F32ToBF16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(F32ToBF16(1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_TRUE(std::isnan(BF16ToF32(F32ToBF16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(Buffer, IsZeroedAndAligned) {
  for (size_t bytes : {size_t{1}, size_t{1000}, size_t{5} << 20}) {
    auto b = AllocateHost(bytes);
    ASSERT_TRUE(b.ok());
    EXPECT_GE(b->size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b->data()) % 64, 0u);
    for (size_t i = 0; i < bytes; i += 97) ASSERT_EQ(b->data()[i], std::byte{0});
    std::memset(b->data(), 1, bytes);
  }
}

TEST(Buffer, RefusesAbsurdSizesWithAStatus) {
  EXPECT_EQ(AllocateHost(SIZE_MAX).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(AllocateHost(size_t{1} << 60).status().code(), StatusCode::kResourceExhausted);
}

TEST(SumWords, AddsEveryWordOnceAndWrapsAround) {
  std::vector<uint64_t> words(37);
  for (size_t i = 0; i < words.size(); ++i) words[i] = i < 2 ? UINT64_MAX : i;
  EXPECT_EQ(SumWords(words.data(), words.size()), uint64_t{36 * 37 / 2 - 1 - 2});
  EXPECT_EQ(SumWords(words.data(), 0), 0u);
}

TEST(PageArena, BuffersOutliveItAndShareNothing) {
  std::vector<Buffer> buffers;
  {
    PageArena arena;
    for (const size_t size : {1, 100, 3 << 20, 4 << 20, 5 << 20, 4 << 20, 4 << 20, 64, 0}) {
      auto b = arena.Allocate(size);
      ASSERT_TRUE(b.ok());
      EXPECT_GE(b->size(), size);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(b->data()) % 64, 0u);
      for (size_t i = 0; i < size; i += 61) ASSERT_EQ(static_cast<int>(b->data()[i]), 0);
      if (size > 0) std::memset(b->data(), 1, size);
      buffers.push_back(std::move(*b));
    }
  }
  for (Buffer& b : buffers) {
    for (size_t i = 0; i < b.size(); i += 61) b.data()[i] = std::byte{2};
    Buffer gone = std::move(b);
  }
}

TEST(ThreadPool, RunsEveryTaskOnceForManyJobs) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int job = 0; job < 500; ++job) {
      std::vector<std::atomic<int>> hits(37);
      pool.ParallelFor(37, [&](int64_t t, int) { hits[static_cast<size_t>(t)].fetch_add(1); });
      for (auto& h : hits) ASSERT_EQ(h.load(), 1);
    }
  }
}

TEST(ThreadPool, WakesWorkersThatFellAsleep) {
  ThreadPool pool(3);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> ran{0};
    pool.RunOnAll([&](int) { ran.fetch_add(1); });
    EXPECT_EQ(ran.load(), 3);
  }
}

TEST(ThreadPool, WhatIsSetAsideRunsOnceBesideTheNextJobOrAtTheEnd) {
  for (int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (const int64_t tasks : {0, 1, 50}) {  // the first two are no job for the workers
      int ran = 0;
      std::atomic<int64_t> done{0};
      pool.SetAside([](void* n, int) { ++*static_cast<int*>(n); }, &ran);
      pool.ParallelFor(tasks, [&](int64_t, int) { done.fetch_add(1); });
      pool.RunAside();
      EXPECT_EQ(ran, 1);
      EXPECT_EQ(done.load(), tasks);
      pool.RunOnAll([](int) {});
      EXPECT_EQ(ran, 1);
    }
  }
}

}  // namespace
}  // namespace farsight
