// The kernels of every instruction set of this machine against the plain ones, bit for bit, on random sizes,
// channels, layouts and types; conversions to float16 and bfloat16 against known values.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "image/axis.h"
#include "image/columns.h"
#include "image/kernels.h"

namespace {

using namespace fastload;
using namespace fastload::image;

// Values whose end is the end of accessible memory: a kernel that reads or writes past it is killed, also
// where no sanitizer runs.
template <typename Value>
class Edge {
 public:
  explicit Edge(const std::vector<Value>& values) : Edge(values.size()) {
    std::copy(values.begin(), values.end(), data());
  }
  explicit Edge(std::size_t count) : count_(count) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    length_ = (count * sizeof(Value) + page - 1) / page * page + page;
    void* base = mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<std::byte*>(base);
    mprotect(base_ + length_ - page, page, PROT_NONE);
    data_ = reinterpret_cast<Value*>(base_ + length_ - page) - count;
  }
  Edge(const Edge&) = delete;
  Edge& operator=(const Edge&) = delete;
  ~Edge() { munmap(base_, length_); }

  Value* data() const { return data_; }
  bool operator==(const std::vector<Value>& other) const {
    return std::equal(data_, data_ + count_, other.begin(), other.end());
  }

 private:
  std::size_t count_;
  std::size_t length_ = 0;
  std::byte* base_ = nullptr;
  Value* data_ = nullptr;
};

class Draw {
 public:
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(engine_() % count); }
  std::uint8_t byte() { return static_cast<std::uint8_t>(engine_()); }
  // Mostly noise; sometimes all black or white, where clipping and overflow would show.
  std::vector<std::uint8_t> bytes(std::size_t count) {
    std::vector<std::uint8_t> values(count);
    const std::size_t kind = below(6);
    for (auto& value : values) value = kind == 0 ? 255 : kind == 1 ? std::uint8_t(255 * below(2)) : byte();
    return values;
  }
  float number() {
    const double magnitude =
        std::ldexp(1.0 + static_cast<double>(below(4096)) / 4096.0, static_cast<int>(below(48)) - 28);
    return static_cast<float>(below(2) != 0 ? magnitude : -magnitude);
  }

 private:
  std::mt19937_64 engine_{17};
};

const Kernels& table_of(Simd set) {
  force_simd(set);
  return kernels();
}

void test_blend_rows(Draw& draw) {
  const Kernels& plain = *find_plain();
  for (int round = 0; round < 3000; ++round) {
    const std::size_t count = 1 + draw.below(round % 3 == 0 ? 40 : 400);
    const auto pairs = 1 + draw.below(12);
    std::vector<std::unique_ptr<Edge<std::uint8_t>>> held;
    std::vector<const std::uint8_t*> rows;
    std::vector<std::int32_t> weights;
    std::uint32_t left = 1u << kFastBits;
    for (std::size_t k = 0; k < 2 * pairs; ++k) {
      held.push_back(std::make_unique<Edge<std::uint8_t>>(draw.bytes(count)));
      rows.push_back(held.back()->data());
    }
    for (std::size_t p = 0; p < pairs; ++p) {
      const auto first = static_cast<std::uint32_t>(draw.below(left + 1));
      const auto second =
          p + 1 == pairs ? left - first : static_cast<std::uint32_t>(draw.below(left - first + 1));
      left -= first + second;
      weights.push_back(static_cast<std::int32_t>(first | second << 16));
    }
    std::vector<std::int16_t> expected(count);
    const Edge<std::int16_t> made(count);
    plain.blend_rows(rows.data(), weights.data(), static_cast<int>(pairs), count, expected.data());
    for (const Simd set : available_simd()) {
      table_of(set).blend_rows(rows.data(), weights.data(), static_cast<int>(pairs), count, made.data());
      CHECK(made == expected);
    }
  }
}

// What a pass of one axis over `width` pixels gives, and only that: not what is written beyond.
std::vector<std::uint8_t> columns_of(const Kernels& table, const Edge<std::int16_t>& row,
                                     const Columns& columns, std::size_t outputs, bool planar) {
  const auto channels = static_cast<std::size_t>(columns.channels);
  const RowLayout layout{planar, outputs + 32};
  std::vector<std::uint8_t> written((outputs + 32) * channels + 32);
  table.blend_columns(row.data(), columns, written.data(), layout);
  if (!planar) return {written.begin(), written.begin() + static_cast<std::ptrdiff_t>(outputs * channels)};
  std::vector<std::uint8_t> result;
  for (std::size_t c = 0; c < channels; ++c)
    for (std::size_t i = 0; i < outputs; ++i) result.push_back(written[c * layout.plane_stride + i]);
  return result;
}

// The pass as docs/images.md has it, output by output.
std::vector<std::uint8_t> columns_by_definition(const std::vector<std::int16_t>& row, const Axis& axis,
                                                std::size_t channels, bool wide, bool planar) {
  const auto outputs = static_cast<std::size_t>(axis.count);
  const int shift = wide ? kWideBits : kFastBits + kMiddleBits;
  std::vector<std::uint8_t> result(outputs * channels);
  for (std::size_t i = 0; i < outputs; ++i)
    for (std::size_t c = 0; c < channels; ++c) {
      std::int64_t sum = std::int64_t{1} << (shift - 1);
      for (int k = 0; k < axis.taps; ++k) {
        const auto at = static_cast<std::size_t>(axis.first.data()[i] - axis.low + k) * channels + c;
        const std::int64_t weight = axis.weights.data()[static_cast<int>(i) * axis.taps + k];
        if (weight != 0) sum += weight * row[at];
      }
      result[planar ? c * outputs + i : i * channels + c] =
          static_cast<std::uint8_t>(std::clamp<std::int64_t>(sum >> shift, 0, 255));
    }
  return result;
}

void test_blend_columns(Draw& draw) {
  for (int round = 0; round < 3000; ++round) {
    const auto source = static_cast<std::int64_t>(1 + draw.below(round % 50 == 0 ? 4000 : 300));
    const auto target = static_cast<std::int64_t>(1 + draw.below(120));
    const auto begin = static_cast<std::int64_t>(draw.below(static_cast<std::size_t>(target)));
    const auto outputs = static_cast<std::int64_t>(1 + draw.below(static_cast<std::size_t>(target - begin)));
    constexpr Interpolation kinds[] = {Interpolation::bilinear, Interpolation::bicubic,
                                       Interpolation::lanczos};
    const Interpolation interpolation = kinds[draw.below(3)];
    const bool antialias = interpolation != Interpolation::bilinear || draw.below(2) != 0;
    const bool wide = interpolation != Interpolation::bilinear ||
                      tap_count(source, target, interpolation, antialias) > kFastTaps || draw.below(4) == 0;
    const int channels = draw.below(2) != 0 ? 3 : 1;
    Axis axis;
    axis.compute(source, target, begin, outputs, interpolation, antialias);
    wide ? axis.round_wide() : axis.round_fast();
    if (draw.below(2) != 0) axis.mirror();
    ColumnPlan plan;
    plan.lay_out(axis, channels, wide);
    const std::size_t count =
        static_cast<std::size_t>(axis.high - axis.low) * static_cast<std::size_t>(channels);
    std::vector<std::int16_t> row(std::max(count, plan.reach()));
    const auto pixels = draw.bytes(row.size());
    for (std::size_t i = 0; i < row.size(); ++i)
      row[i] = static_cast<std::int16_t>(wide || i >= count ? pixels[i] : pixels[i] << kMiddleBits);
    const Edge<std::int16_t> edge(row);
    for (const bool planar : {false, true}) {
      const auto expected =
          columns_by_definition(row, axis, static_cast<std::size_t>(channels), wide, planar);
      for (const Simd set : available_simd())
        CHECK(columns_of(table_of(set), edge, plan.columns(), static_cast<std::size_t>(outputs), planar) ==
              expected);
    }
  }
}

void test_deinterleave(Draw& draw) {
  for (int round = 0; round < 500; ++round) {
    const std::size_t pixels = draw.below(200), stride = pixels + 32;
    const Edge<std::uint8_t> in(draw.bytes(3 * pixels));
    std::vector<std::uint8_t> expected(3 * stride);
    find_plain()->deinterleave(in.data(), pixels, expected.data(), stride);
    for (const Simd set : available_simd()) {
      std::vector<std::uint8_t> made(3 * stride);
      table_of(set).deinterleave(in.data(), pixels, made.data(), stride);
      for (std::size_t c = 0; c < 3; ++c)
        CHECK(std::equal(made.data() + c * stride, made.data() + c * stride + pixels, &expected[c * stride]));
    }
  }
}

void test_convert(Draw& draw) {
  for (int round = 0; round < 6000; ++round) {
    float scale[24], offset[24];
    for (std::size_t i = 0; i < 24; ++i) {
      scale[i] = draw.number();
      offset[i] = draw.below(4) == 0 ? draw.number() : 0.0f;
    }
    const std::size_t count = draw.below(200);
    // Of ones, all floats there are near the ends and between the values of the smaller types.
    const Edge<std::uint8_t> in(draw.below(2) != 0 ? draw.bytes(count) : std::vector<std::uint8_t>(count, 1));
    for (const auto type : {ElementType::float16, ElementType::bfloat16, ElementType::float32}) {
      std::vector<std::byte> expected(count * (type == ElementType::float32 ? 4 : 2));
      find_plain()->convert(in.data(), count, scale, offset, type, expected.data());
      for (const Simd set : available_simd()) {
        const Edge<std::byte> made(expected.size());
        table_of(set).convert(in.data(), count, scale, offset, type, made.data());
        CHECK(made == expected);
      }
    }
  }
}

void test_mix(Draw& draw) {
  for (int round = 0; round < 3000; ++round) {
    const auto data = draw.bytes(draw.below(300));
    const Edge<std::uint8_t> seconds(draw.bytes(data.size()));
    const float own = static_cast<float>(draw.below(4000)) / 1000.0f, other = 1.0f - own;
    const bool has_seconds = draw.below(2) != 0;
    const float added = has_seconds ? other : draw.below(3) == 0 ? 1e20f : other * draw.byte();
    auto expected = data;
    find_plain()->mix(expected.data(), has_seconds ? seconds.data() : nullptr, data.size(), own, added);
    for (const Simd set : available_simd()) {
      const Edge<std::uint8_t> made(data);
      table_of(set).mix(made.data(), has_seconds ? seconds.data() : nullptr, data.size(), own, added);
      CHECK(made == expected);
    }
  }
}

void test_roundings() {
  CHECK(to_float16(1.0f) == 0x3C00 && to_float16(-2.0f) == 0xC000 && to_float16(65504.0f) == 0x7BFF);
  CHECK(to_float16(65520.0f) == 0x7C00 && to_float16(65519.0f) == 0x7BFF);
  CHECK(to_float16(std::ldexp(1.0f, -24)) == 1 && to_float16(std::ldexp(1.0f, -25)) == 0);
  CHECK(to_float16(std::ldexp(3.0f, -25)) == 2 && to_float16(std::ldexp(1.0f, -14)) == 0x0400);
  CHECK(to_bfloat16(1.0f) == 0x3F80 && to_bfloat16(1.00390625f) == 0x3F80 &&
        to_bfloat16(1.01171875f) == 0x3F82);
}

void test_sets() {
  const auto sets = available_simd();
  std::printf("instruction sets:");
  for (const Simd set : sets) std::printf(" %s", std::string(name_of(set)).c_str());
  std::printf("\n");
  CHECK(sets.front() == Simd::plain && simd() == sets.back());
  for (const Simd set : {Simd::plain, Simd::neon, Simd::avx2, Simd::avx512}) {
    const Simd before = simd();
    force_simd(set);
    CHECK(simd() == (std::find(sets.begin(), sets.end(), set) == sets.end() ? before : set));
  }
}

}  // namespace

int main() {
  Draw draw;
  test_sets();
  test_blend_rows(draw);
  test_blend_columns(draw);
  test_deinterleave(draw);
  test_convert(draw);
  test_mix(draw);
  test_roundings();
  return test::finish("image_kernels");
}
