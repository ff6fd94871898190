#include "image/columns.h"

#include <algorithm>

namespace fastload::image {

void ColumnPlan::lay_out(const Axis& axis, int channels, bool wide) {
  const int pixels = channels == 3 ? 2 : 8;  // a step's
  const auto steps = static_cast<std::size_t>((axis.taps + pixels - 1) / pixels);
  const auto blocks = static_cast<std::size_t>((axis.count + 7) / 8);
  std::int32_t* offsets = offsets_.reserve(8 * blocks);
  const std::size_t stride = steps * (wide ? 32 : 16);  // from output j of a block to output j + 1
  std::int16_t* weights = weights_.reserve(blocks * 4 * stride);
  columns_ = {channels, wide, static_cast<int>(steps), blocks, offsets, weights};
  std::int32_t last = 0;
  for (std::size_t i = 0; i < 8 * blocks; ++i) {
    // Past the last output: weigh what is there, and let the caller drop the result.
    const auto output = std::min<std::size_t>(i, static_cast<std::size_t>(axis.count - 1));
    offsets[i] = static_cast<std::int32_t>((axis.first.data()[output] - axis.low) * channels);
    last = std::max(last, offsets[i]);
    const std::int32_t* taps = axis.weights.data() + output * static_cast<std::size_t>(axis.taps);
    std::int16_t* lane = weights + (i / 8 * 4 + i % 4) * stride + i % 8 / 4 * 8;
    channels == 3 ? spread<3>(taps, axis.taps, lane) : spread<1>(taps, axis.taps, lane);
  }
  // A step of three channels takes six values and touches eight.
  reach_ = static_cast<std::size_t>(last) + steps * (channels == 3 ? 6 : 8) + 2;
}

template <int Channels>
void ColumnPlan::spread(const std::int32_t* taps, int count, std::int16_t* lane) const {
  constexpr int pixels = Channels == 3 ? 2 : 8;
  for (int from = 0; from < count; from += pixels, lane += 16 * columns_.parts()) {
    for (std::size_t part = 0; part < columns_.parts(); ++part) {
      std::int16_t rounded[pixels];
      for (int k = 0; k < pixels; ++k) {
        const std::int32_t weight = from + k < count ? taps[from + k] : 0;
        const std::int32_t coarse = weight >> kFineBits;
        rounded[k] = static_cast<std::int16_t>(!columns_.wide ? weight
                                               : part == 0    ? coarse
                                                              : weight - coarse * (1 << kFineBits));
      }
      std::int16_t* eight = lane + 16 * part;
      for (int k = 0; k < 8; ++k) eight[k] = Channels == 3 && k >= 6 ? std::int16_t{0} : rounded[k % pixels];
    }
  }
}

}  // namespace fastload::image
