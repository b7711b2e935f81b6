// Products and embeddings of every format and instruction set against the double-precision reference, and the bitwise
// promises: a row's result depends on nothing but the row.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "ops/cpu/cpu_backend.h"
#include "ops/dequantise.h"
#include "ops/ref/ref_backend.h"

namespace farsight {
namespace {

constexpr DType kAllTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                               DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

std::vector<Isa> AvailableIsas(Isa first = Isa::kScalar) {
  std::vector<Isa> out;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (isa >= first && IsaAvailable(isa)) out.push_back(isa);
  }
  return out;
}

// Where the f16 fields of a block lie; everything else of a quantised block may be any byte.
std::vector<int> HalfFields(DType t) {
  switch (t) {
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
      return {0};
    case DType::kQ6_K:
      return {208};
    default:
      return {0, 2};
  }
}

struct Weight {
  std::vector<std::byte> bytes;
  HostMatrix view;
};

// Random bytes make every code, sign and sub-scale appear; `extreme` sets all code bits, the worst case for overflow.
Weight MakeWeight(DType type, int64_t rows, int64_t cols, uint32_t seed, bool extreme = false) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  Weight w;
  w.bytes.resize(BytesOf(type, static_cast<size_t>(rows * cols)));
  auto put_half = [&](size_t at, float x) {
    const uint16_t h = F32ToF16(x);
    std::memcpy(w.bytes.data() + at, &h, 2);
  };
  const DTypeInfo info = InfoOf(type);
  const size_t step = static_cast<size_t>(info.block_bytes);
  for (size_t at = 0; at < w.bytes.size(); at += step) {
    const float x = normal(rng);
    if (type == DType::kF32) {
      std::memcpy(w.bytes.data() + at, &x, 4);
    } else if (type == DType::kF16) {
      put_half(at, x);
    } else if (type == DType::kBF16) {
      const uint16_t h = F32ToBF16(x);
      std::memcpy(w.bytes.data() + at, &h, 2);
    } else {
      for (size_t i = 0; i < step; ++i) w.bytes[at + i] = static_cast<std::byte>(extreme ? 0xff : rng());
      if (extreme && type == DType::kQ8_0)
        std::fill_n(w.bytes.begin() + static_cast<int64_t>(at), step, std::byte{0x80});
      for (const int f : HalfFields(type))
        put_half(at + static_cast<size_t>(f), 0.01f * (1.0f + std::abs(normal(rng))));
    }
  }
  w.view = {type, rows, cols, w.bytes};
  return w;
}

std::vector<float> Gaussian(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(rng);
  return out;
}

// |error| of an output is at most: half a step of each input's block times |w|, plus rounding of f32 sums.
std::vector<double> ErrorBounds(const RefMatrix& w, const float* in) {
  const int64_t k = w.cols();
  const int64_t blocks = (k + 31) / 32;
  std::vector<double> step(static_cast<size_t>(blocks), 0.0);
  for (int64_t i = 0; i < k; ++i) {
    step[static_cast<size_t>(i / 32)] = std::max(step[static_cast<size_t>(i / 32)], std::abs(in[i]) / 127.0);
  }
  std::vector<double> bounds(static_cast<size_t>(w.rows()));
  std::vector<float> row(static_cast<size_t>(k));
  for (int64_t j = 0; j < w.rows(); ++j) {
    w.Row(j, row.data());
    double quantising = 0;
    double magnitude = 0;
    for (int64_t i = 0; i < k; ++i) {
      const double a = std::abs(static_cast<double>(row[static_cast<size_t>(i)]));
      quantising += 0.5001 * a * step[static_cast<size_t>(i / 32)];
      magnitude += a * std::abs(in[i]);
    }
    bounds[static_cast<size_t>(j)] = quantising + 1e-6 * static_cast<double>(blocks + 8) * magnitude + 1e-6;
  }
  return bounds;
}

class MatMul : public ::testing::TestWithParam<std::tuple<Isa, DType>> {
 protected:
  void SetUp() override {
    isa_ = std::get<0>(GetParam());
    type_ = std::get<1>(GetParam());
    cols_ = InfoOf(type_).block_elems > 32 ? 512 : IsQuantised(type_) ? 96 : 77;
  }

  std::unique_ptr<CpuBackend> Make(int threads, Isa isa, int max_rows = 160, int max_width = 1024) {
    auto made = CpuBackend::Create(threads, isa);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    OpLimits limits;
    limits.max_rows = max_rows;
    limits.max_width = max_width;
    limits.max_precise = 256;
    limits.num_heads = limits.num_kv_heads = 1;
    limits.head_dim = 64;
    limits.max_seqs = limits.max_blocks = 1;
    EXPECT_TRUE((*made)->Reserve(limits).ok());
    return std::move(*made);
  }

  template <typename B>
  std::vector<float> Run(B& backend, const typename B::Matrix& w, const std::vector<float>& in, int rows, int first = 0,
                         bool precise = false) {
    std::vector<float> out(static_cast<size_t>(rows * w.rows()), 7.0f);
    MatMulParams<typename B::Matrix> p;
    p.weight = &w;
    p.in = in.data() + first * cols_;
    p.out = out.data();
    p.in_stride = cols_;
    p.out_stride = w.rows();
    p.num_rows = rows;
    p.precise = precise;
    backend.MatMul(p);
    return out;
  }

  Isa isa_ = Isa::kScalar;
  DType type_ = DType::kF32;
  int64_t cols_ = 0;
};

TEST_P(MatMul, AgreesWithTheReferenceWithinTheQuantisationOfInputs) {
  for (const int64_t n : {1, 16, 37}) {
    for (const bool extreme : {false, true}) {
      const Weight weight = MakeWeight(type_, n, cols_, 11 + static_cast<uint32_t>(n), extreme);
      auto backend = Make(2, isa_);
      RefBackend ref;
      const auto w = backend->PrepareMatrix({&weight.view, 1});
      const auto rw = ref.PrepareMatrix({&weight.view, 1});
      ASSERT_TRUE(w.ok() && rw.ok());
      for (const int rows : {1, 2, 3, 5, 6, 7, 8, 17, 64, 130}) {
        std::vector<float> in = Gaussian(static_cast<size_t>(rows * cols_), static_cast<uint32_t>(rows));
        if (extreme) {  // all codes at their limit, so that a 16-bit sum would overflow if it could
          for (size_t i = 0; i < in.size(); ++i) in[i] = i / 64 % 2 == 0 ? 3.0f : -3.0f;
        }
        const std::vector<float> got = Run(*backend, *w, in, rows);
        const std::vector<float> want = Run(ref, *rw, in, rows);
        for (int t = 0; t < rows; ++t) {
          std::vector<double> bound = ErrorBounds(*rw, in.data() + t * cols_);
          for (int64_t j = 0; j < n; ++j) {
            const size_t at = static_cast<size_t>(t * n + j);
            ASSERT_NEAR(got[at], want[at], bound[static_cast<size_t>(j)]) << "n " << n << " row " << t << " out " << j;
          }
        }
      }
    }
  }
}

TEST_P(MatMul, APreciseProductLosesAHundredTimesLess) {
  const Weight weight = MakeWeight(type_, 131, cols_, 5);
  const std::vector<float> in = Gaussian(static_cast<size_t>(11 * cols_), 3);
  RefBackend ref;
  const auto rw = ref.PrepareMatrix({&weight.view, 1});
  auto backend = Make(2, isa_);
  const auto w = backend->PrepareMatrix({&weight.view, 1});
  ASSERT_TRUE(w.ok() && rw.ok());
  const std::vector<float> want = Run(ref, *rw, in, 11);
  const std::vector<float> rough = Run(*backend, *w, in, 11);
  const std::vector<float> precise = Run(*backend, *w, in, 11, 0, true);
  double rough_error = 0, precise_error = 0, magnitude = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    rough_error += std::abs(rough[i] - want[i]);
    precise_error += std::abs(precise[i] - want[i]);
    magnitude += std::abs(want[i]);
  }
  EXPECT_LE(precise_error, 0.01 * rough_error + 3e-6 * magnitude);
  for (const int rows : {1, 2, 4, 5, 9}) {
    const std::vector<float> some = Run(*backend, *w, in, rows, 11 - rows, true);
    EXPECT_EQ(0, std::memcmp(some.data(), precise.data() + (11 - rows) * 131, some.size() * sizeof(float))) << rows;
  }
}

TEST_P(MatMul, ARowDoesNotDependOnItsNeighboursOrTheThreads) {
  const Weight weight = MakeWeight(type_, 131, cols_, 5);
  const std::vector<float> in = Gaussian(static_cast<size_t>(130 * cols_), 3);
  auto one = Make(1, isa_);
  const auto w = one->PrepareMatrix({&weight.view, 1});
  ASSERT_TRUE(w.ok());
  const std::vector<float> all = Run(*one, *w, in, 130);
  for (const int threads : {1, 2, 3, 5}) {
    auto backend = Make(threads, isa_, threads == 3 ? 7 : 160);  // 7: more rows than reserved are done in slices
    for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64, 130}) {
      const int first = 130 - rows;
      const std::vector<float> some = Run(*backend, *w, in, rows, first);
      ASSERT_EQ(0, std::memcmp(some.data(), all.data() + first * 131, some.size() * sizeof(float)))
          << threads << " threads, " << rows << " rows";
    }
  }
}

// Many rows take panels that are unpacked in chunks; a long row has several, and several rows of sums wait meanwhile.
TEST_P(MatMul, ManyRowsOfManyInputsEqualSingleRows) {
  cols_ = 2048 + (InfoOf(type_).block_elems > 32 ? 256 : 96);
  const Weight weight = MakeWeight(type_, 37, cols_, 6);
  const std::vector<float> in = Gaussian(static_cast<size_t>(139 * cols_), 7);
  auto backend = Make(2, isa_, 160, 4096);
  const auto w = backend->PrepareMatrix({&weight.view, 1});
  ASSERT_TRUE(w.ok());
  const std::vector<float> all = Run(*backend, *w, in, 139);
  for (const int row : {0, 1, 127, 128, 130, 138}) {
    const std::vector<float> one = Run(*backend, *w, in, 1, row);
    ASSERT_EQ(0, std::memcmp(one.data(), all.data() + row * 37, one.size() * sizeof(float))) << row;
  }
}

// Tiles are another way to the same integers, so their set has the bits of AVX-512: of rows that fill no tile, outputs
// that fill no panel, and inputs that are taken in several chunks.
class MatMulTiles : public MatMul {
 protected:
  void Compare(int64_t n, int rows, bool accumulate) {
    const Weight weight = MakeWeight(type_, n, cols_, static_cast<uint32_t>(n));
    const std::vector<float> in = Gaussian(static_cast<size_t>(rows * cols_), static_cast<uint32_t>(rows));
    const std::vector<float> bias = Gaussian(static_cast<size_t>(n), 43);
    const auto w = tiles_->PrepareMatrix({&weight.view, 1});
    ASSERT_TRUE(w.ok());
    MatMulParams<CpuMatrix> p;
    p.weight = &*w;
    p.in = in.data();
    p.bias = rows % 2 == 0 ? bias.data() : nullptr;
    p.in_stride = cols_;
    p.out_stride = n + 3;
    p.num_rows = rows;
    p.alpha = rows % 3 == 0 ? 0.25f : 1.0f;
    p.accumulate = accumulate;
    std::vector<float> want(static_cast<size_t>(rows * p.out_stride), 0.5f);
    std::vector<float> got = want;
    p.out = want.data();
    vectors_->MatMul(p);
    p.out = got.data();
    tiles_->MatMul(p);
    ASSERT_EQ(0, std::memcmp(got.data(), want.data(), got.size() * sizeof(float)))
        << n << " outputs, " << rows << " rows, " << cols_ << " inputs";
  }

  std::unique_ptr<CpuBackend> tiles_ = Make(2, Isa::kAmx, 160, 4096);
  std::unique_ptr<CpuBackend> vectors_ = Make(1, Isa::kAvx512, 160, 4096);
};

TEST_P(MatMulTiles, HaveTheBitsOfAvx512) {
  for (int rows = 1; rows <= 40; ++rows) {
    for (const int64_t n : {1, 37, 64}) Compare(n, rows, rows % 4 < 2);
    Compare(37, rows, rows % 4 >= 2);
  }
  cols_ = 2048 + (InfoOf(type_).block_elems > 32 ? 256 : 96);
  for (const int rows : {9, 16, 25, 40, 130, 139}) Compare(37, rows, rows % 2 == 0);
}

TEST_P(MatMul, EachSetAgreesWithScalarToRounding) {
  const Weight weight = MakeWeight(type_, 40, cols_, 8);
  const std::vector<float> in = Gaussian(static_cast<size_t>(9 * cols_), 4);
  auto scalar = Make(1, Isa::kScalar);
  auto backend = Make(2, isa_);
  RefBackend ref;
  const auto w = backend->PrepareMatrix({&weight.view, 1});
  const auto rw = ref.PrepareMatrix({&weight.view, 1});
  ASSERT_TRUE(w.ok() && rw.ok());
  const std::vector<float> want = Run(*scalar, *w, in, 9);
  const std::vector<float> got = Run(*backend, *w, in, 9);
  std::vector<float> row(static_cast<size_t>(cols_));
  for (int64_t j = 0; j < 40; ++j) {
    rw->Row(j, row.data());
    for (int t = 0; t < 9; ++t) {
      double magnitude = 0;
      double largest = 0;
      for (int64_t i = 0; i < cols_; ++i) {
        magnitude +=
            std::abs(static_cast<double>(row[static_cast<size_t>(i)]) * in[static_cast<size_t>(t * cols_ + i)]);
        largest = std::max(largest, std::abs(static_cast<double>(row[static_cast<size_t>(i)])));
      }
      // The integers are the same; what differs is the rounding of one product and sum a block.
      const double bound = 1e-6 * static_cast<double>(cols_) / 16 * (magnitude + 32 * largest) + 1e-6;
      ASSERT_NEAR(got[static_cast<size_t>(t * 40 + j)], want[static_cast<size_t>(t * 40 + j)], bound);
    }
  }
}

TEST_P(MatMul, BiasAlphaAccumulateAndStrides) {
  constexpr int kRows = 6;
  for (const int64_t n : {32, 37}) {
    const Weight weight = MakeWeight(type_, n, cols_, 21);
    auto backend = Make(2, isa_);
    const auto w = backend->PrepareMatrix({&weight.view, 1});
    ASSERT_TRUE(w.ok());
    const std::vector<float> packed = Gaussian(static_cast<size_t>(kRows * cols_), 9);
    const std::vector<float> plain = Run(*backend, *w, packed, kRows);
    const std::vector<float> bias = Gaussian(static_cast<size_t>(n), 10);
    const int64_t in_stride = cols_ + 5;
    const int64_t out_stride = n + 3;
    std::vector<float> in(static_cast<size_t>(kRows * in_stride), 99.0f);
    for (int t = 0; t < kRows; ++t)
      std::copy_n(&packed[static_cast<size_t>(t * cols_)], cols_, &in[static_cast<size_t>(t * in_stride)]);
    for (const bool accumulate : {false, true}) {
      std::vector<float> out(static_cast<size_t>(kRows * out_stride), 0.5f);
      MatMulParams<CpuMatrix> p;
      p.weight = &*w;
      p.in = in.data();
      p.out = out.data();
      p.bias = bias.data();
      p.in_stride = in_stride;
      p.out_stride = out_stride;
      p.num_rows = kRows;
      p.alpha = 0.25f;
      p.accumulate = accumulate;
      backend->MatMul(p);
      for (int t = 0; t < kRows; ++t) {
        for (int64_t j = 0; j < out_stride; ++j) {
          const float got = out[static_cast<size_t>(t * out_stride + j)];
          if (j >= n) {
            ASSERT_EQ(got, 0.5f) << "wrote past the row";
            continue;
          }
          const float x = 0.25f * (plain[static_cast<size_t>(t * n + j)] + bias[static_cast<size_t>(j)]);
          ASSERT_EQ(got, accumulate ? 0.5f + x : x);
        }
      }
    }
  }
}

TEST_P(MatMul, EmbedGivesTheExactValuesOfStackedParts) {
  const Weight a = MakeWeight(type_, 19, cols_, 31);
  const Weight b = MakeWeight(type_, 6, cols_, 32);
  const std::vector<HostMatrix> parts = {a.view, b.view};
  auto backend = Make(2, isa_);
  RefBackend ref;
  const auto w = backend->PrepareMatrix(parts);
  const auto rw = ref.PrepareMatrix(parts);
  ASSERT_TRUE(w.ok() && rw.ok());
  EXPECT_EQ(w->rows(), 25);
  const std::vector<int32_t> tokens = {24, 0, 18, 19, 7};
  std::vector<float> got(tokens.size() * static_cast<size_t>(cols_));
  std::vector<float> want(got.size());
  backend->Embed({&*w, tokens.data(), got.data(), 5, 1.5f});
  ref.Embed({&*rw, tokens.data(), want.data(), 5, 1.5f});
  EXPECT_EQ(got, want);
}

TEST_P(MatMul, PackedSizeIsCloseToTheFiles) {
  const Weight weight = MakeWeight(type_, 64, cols_, 1);
  auto backend = Make(1, isa_);
  const auto w = backend->PrepareMatrix({&weight.view, 1});
  ASSERT_TRUE(w.ok());
  EXPECT_LE(static_cast<double>(w->bytes()), 1.15 * static_cast<double>(weight.bytes.size()));
}

TEST_P(MatMul, NotANumberAndInfinityAreNotLost) {
  const Weight weight = MakeWeight(type_, 16, cols_, 2);
  auto backend = Make(1, isa_);
  const auto w = backend->PrepareMatrix({&weight.view, 1});
  ASSERT_TRUE(w.ok());
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    std::vector<float> in = Gaussian(static_cast<size_t>(2 * cols_), 4);
    in[40] = bad;
    const std::vector<float> out = Run(*backend, *w, in, 2);
    for (int j = 0; j < 16; ++j) {
      EXPECT_FALSE(std::isfinite(out[static_cast<size_t>(j)])) << j;
      EXPECT_TRUE(std::isfinite(out[static_cast<size_t>(16 + j)])) << j;
    }
  }
}

TEST_P(MatMul, ZeroAndTinyInputs) {
  const Weight weight = MakeWeight(type_, 16, cols_, 2);
  auto backend = Make(1, isa_);
  const auto w = backend->PrepareMatrix({&weight.view, 1});
  ASSERT_TRUE(w.ok());
  for (const float tiny : {0.0f, 1e-45f, 1e-38f}) {
    const std::vector<float> in(static_cast<size_t>(cols_), tiny);
    for (const float x : Run(*backend, *w, in, 1)) EXPECT_NEAR(x, 0.0f, 1e-30f);
  }
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<Isa, DType>>& info) {
  return std::string(IsaName(std::get<0>(info.param))) + "_" + InfoOf(std::get<1>(info.param)).name;
}
INSTANTIATE_TEST_SUITE_P(All, MatMul,
                         ::testing::Combine(::testing::ValuesIn(AvailableIsas()), ::testing::ValuesIn(kAllTypes)),
                         NameOf);

INSTANTIATE_TEST_SUITE_P(All, MatMulTiles,
                         ::testing::Combine(::testing::ValuesIn(AvailableIsas(Isa::kAmx)),
                                            ::testing::ValuesIn(kAllTypes)),
                         NameOf);

TEST(PrepareMatrix, RefusesWhatDoesNotFit) {
  auto backend = CpuBackend::Create(1, Isa::kScalar);
  ASSERT_TRUE(backend.ok());
  const auto code = [&](std::vector<HostMatrix> parts) { return (*backend)->PrepareMatrix(parts).status().code(); };
  const Weight a = MakeWeight(DType::kQ8_0, 4, 64, 1);
  const Weight b = MakeWeight(DType::kQ4_0, 4, 64, 1);
  EXPECT_EQ(code({a.view}), StatusCode::kOk);
  EXPECT_EQ(code({}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({a.view, b.view}), StatusCode::kInvalidArgument);
  HostMatrix bad = a.view;
  bad.rows = 5;
  EXPECT_EQ(code({bad}), StatusCode::kInvalidArgument);
  bad = a.view;
  bad.rows = 0;
  EXPECT_EQ(code({bad}), StatusCode::kInvalidArgument);
  bad = a.view;
  bad.cols = 63;
  EXPECT_EQ(code({bad}), StatusCode::kInvalidArgument);
  bad = a.view;
  bad.rows = INT64_MAX;
  EXPECT_EQ(code({bad}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({a.view, bad}), StatusCode::kInvalidArgument);
}

TEST(Dequantise, Q8AndBackIsWithinHalfAStep) {
  constexpr int kCols = 32;
  for (const float range : {0.0f, 1e-30f, 3e-6f, 0.04f, 1.0f, 5e4f, 1e9f}) {
    std::vector<float> x = Gaussian(kCols, 9);
    for (float& v : x) v *= range / 3;
    std::vector<std::byte> codes(BytesOf(DType::kQ8_0, kCols));
    QuantiseRowQ8(x.data(), kCols, codes.data());
    std::vector<float> back(kCols);
    DequantiseRow(DType::kQ8_0, codes.data(), kCols, back.data());
    float top = 0;
    for (const float v : x) top = std::max(top, std::abs(v));
    // Half a step, and what the scale is rounded by, 127 times; scales are multiples of 2^-24 and at most 65504.
    const float scale = top / 127;
    const float bound = 0.501f * scale + 127 * std::max(scale * 0x1p-11f, 0x1p-25f);
    for (int i = 0; i < kCols; ++i) {
      const auto at = static_cast<size_t>(i);
      if (scale > 65504) {
        EXPECT_TRUE(std::isfinite(back[at]));
      } else {
        EXPECT_NEAR(back[at], x[at], bound) << range;
      }
    }
  }
}

TEST(IsaChoice, NamesRoundTripAndUnknownOnesAreRefused) {
  for (const Isa isa : {Isa::kBest, Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    const auto parsed = ParseIsa(IsaName(isa));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, isa);
    if (isa == Isa::kBest) continue;
    EXPECT_EQ(ResolveIsa(isa).ok(), IsaAvailable(isa));
    EXPECT_EQ(CpuBackend::Create(1, isa).ok(), IsaAvailable(isa));
  }
  EXPECT_EQ(ParseIsa("sse9").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CpuBackend::Create(0).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace farsight
