// Inputs for the targets that take JPEG images: an image and, at its end, the bytes that choose what is done
// with it. Images are grown from sound ones, so that most executions reach the decoder: no corpus is needed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "image/jpeg_segment.h"
#include "tests/image_fixtures.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace fastload::image::fuzz {

constexpr std::size_t kChoices = 6;  // bytes at the end of an input

struct Input {
  std::vector<std::byte> encoded;  // a copy of its own size, so that reading past the end is seen
  std::span<const std::uint8_t> choices;
};

inline std::optional<Input> split(const std::uint8_t* data, std::size_t size) {
  if (size <= kChoices) return std::nullopt;
  const auto* first = reinterpret_cast<const std::byte*>(data);
  return Input{{first, first + (size - kChoices)}, {data + (size - kChoices), kChoices}};
}

// How far executions came, printed at the end: inputs that all die in the headers test little.
class Reached {
 public:
  explicit Reached(std::vector<std::string> stages) : stages_(std::move(stages)), counts_(stages_.size()) {}
  Reached(const Reached&) = delete;
  Reached& operator=(const Reached&) = delete;
  ~Reached() {
    for (std::size_t i = 0; i < stages_.size(); ++i)
      std::fprintf(stderr, "%s: %llu\n", stages_[i].c_str(), counts_[i]);
  }
  void count(std::size_t stage) { ++counts_[stage]; }

 private:
  std::vector<std::string> stages_;
  std::vector<unsigned long long> counts_;
};

// Every subsampling, gray and CMYK; progressive, with restart markers, in segments; widths that 3 to 8 MCUs
// divide and others.
inline std::vector<std::vector<std::byte>> make_seeds() {
  const int samplings[][2] = {{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}, {4, 2}, {0, 0}, {1, 4}};
  const int sizes[][2] = {{33, 21}, {96, 40}, {131, 35}, {256, 18}, {7, 70}};
  std::vector<std::vector<std::byte>> seeds;
  const auto add = [&](const fixtures::JpegOptions& options) {
    seeds.push_back(fixtures::make_jpeg(options));
    if (auto segmented = segment_jpeg(seeds.back(), true); !segmented.encoded.empty())
      seeds.push_back(std::move(segmented.encoded));
  };
  for (const auto& sampling : samplings)
    for (const auto& size : sizes) {
      fixtures::JpegOptions options;
      options.width = size[0];
      options.height = size[1];
      options.horizontal = sampling[0];
      options.vertical = sampling[1];
      options.quality = 30;
      add(options);
      options.restart = 1 + size[0] % 5;
      add(options);
      options.progressive = true;
      add(options);
    }
  for (const bool ycck : {false, true}) {
    fixtures::JpegOptions options;
    options.components = 4;
    options.quality = 30;
    options.ycck = ycck;
    add(options);
  }
  return seeds;
}

class Mutator {
 public:
  Mutator(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed)
      : data_(data), size_(size), max_size_(max_size), random_(seed) {}

  // Mostly a sound image, or one that was changed once or twice: damage adds up, and images that fail at once
  // test little.
  std::size_t run() {
    static const auto seeds = make_seeds();
    const bool is_image = size_ > kChoices + 4 && data_[0] == 0xFF && data_[1] == 0xD8;
    if (random_.below(8) == 0)
      plant(random_image());
    else if (!is_image || random_.below(3) == 0)
      plant(seeds[below(seeds.size())]);
    const std::size_t scan = find(0xDA);
    switch (random_.below(32)) {
      case 0:
        mutate(0, end());  // anything
        break;
      case 1:
        mutate(0, scan);  // the headers
        break;
      case 2:
      case 3:
        mutate(scan, end());  // the entropy-coded data
        break;
      case 4:
        change_byte(find(0xDD) + 5);  // the restart interval
        break;
      case 5:
        change_byte(find_frame() + 5 + below(4));  // height and width
        break;
      case 6:
        change_byte(find_frame() + 11 + 3 * below(4));  // sampling factors
        break;
      case 7:
        renumber_restart(scan);
        break;
      case 8:
      case 9:
        change_quantisation();
        break;
      case 10:
      case 11:
        for (std::size_t i = 0; i < 4; ++i) change_bits(scan);
        break;
      default:
        if (random_.below(2) == 0) change_bits(scan);
    }
    for (std::size_t i = 0, count = below(3); i < count; ++i)
      data_[size_ - 1 - below(kChoices)] = static_cast<std::uint8_t>(below(256));
    return size_;
  }

 private:
  std::size_t below(std::size_t n) {
    return static_cast<std::size_t>(random_.below(static_cast<unsigned>(std::max<std::size_t>(n, 1))));
  }
  std::size_t end() const { return size_ - kChoices; }

  void plant(const std::vector<std::byte>& image) {
    const std::size_t length = std::min(image.size(), max_size_ - kChoices);
    std::memcpy(data_, image.data(), length);
    size_ = length + kChoices;
    for (std::size_t i = end(); i < size_; ++i) data_[i] = static_cast<std::uint8_t>(below(256));
  }

  // Of a kind that make_seeds() may not have.
  std::vector<std::byte> random_image() {
    fixtures::JpegOptions options;
    options.width = static_cast<int>(1 + below(random_.below(4) == 0 ? 16 : 260));
    options.height = static_cast<int>(1 + below(std::min<std::size_t>(200, 6000u / options.width)));
    options.horizontal = static_cast<int>(below(5));
    options.vertical = static_cast<int>(1 + below(options.horizontal > 2 ? 2 : 4));
    options.components = random_.below(8) == 0 ? 4 : 3;
    options.ycck = random_.below(2) == 0;
    options.progressive = random_.below(4) == 0;
    options.quality = static_cast<int>(5 + below(80));
    const auto side = static_cast<std::size_t>(8 * std::max(options.horizontal, 1));
    const std::size_t across = (static_cast<std::size_t>(options.width) + side - 1) / side;
    const std::size_t intervals[] = {0, 1, across, 2 * across, 1 + below(across)};
    options.restart = static_cast<int>(intervals[below(5)]);
    return fixtures::make_jpeg(options);
  }

  void change_quantisation() {
    const std::size_t tables = find(0xDB);
    data_[std::min(tables + 5 + below(64), end() - 1)] = static_cast<std::uint8_t>(1 + below(255));
  }

  // The first such marker of the headers, or a place before the end where there is none.
  std::size_t find(int marker) const {
    for (std::size_t at = 2; at + 4 < end() && data_[at] == 0xFF;) {
      if (data_[at + 1] == marker) return at;
      at += 2 + (static_cast<std::size_t>(data_[at + 2]) << 8 | data_[at + 3]);
    }
    return end() / 2;
  }
  std::size_t find_frame() const {
    for (const int marker : {0xC0, 0xC1, 0xC2})
      if (const std::size_t at = find(marker); at != end() / 2) return at;
    return end() / 2;
  }

  // Lets libFuzzer change [first, last), whose length may change with it.
  void mutate(std::size_t first, std::size_t last) {
    std::vector<std::uint8_t> part(data_ + first, data_ + last);
    const std::size_t rest = size_ - last, most = max_size_ - first - rest;
    part.resize(most);
    const std::size_t length = LLVMFuzzerMutate(part.data(), last - first, most);
    std::memmove(data_ + first + length, data_ + last, rest);
    std::memcpy(data_ + first, part.data(), length);
    size_ = first + length + rest;
  }

  void change_byte(std::size_t at) {
    if (at >= end()) return;
    // Small changes, and those of sampling factors.
    const int changes[] = {1, -1, 2, 16, -16, static_cast<int>(below(256))};
    data_[at] = static_cast<std::uint8_t>(data_[at] + changes[below(6)]);
  }

  // Entropy-coded bits, leaving markers and stuffed bytes as they are.
  void change_bits(std::size_t scan) {
    if (scan + 14 >= end()) return;
    const std::size_t at = scan + 14 + below(end() - scan - 14);
    const auto value = static_cast<std::uint8_t>(below(255));
    if (data_[at] != 0xFF && data_[at - 1] != 0xFF) data_[at] = value;
  }

  void renumber_restart(std::size_t scan) {
    std::vector<std::size_t> markers;
    for (std::size_t at = scan; at + 1 < end(); ++at)
      if (data_[at] == 0xFF && data_[at + 1] >= 0xD0 && data_[at + 1] <= 0xD9) markers.push_back(at + 1);
    if (!markers.empty()) data_[markers[below(markers.size())]] = static_cast<std::uint8_t>(0xD0 + below(10));
  }

  std::uint8_t* data_;
  std::size_t size_, max_size_;
  fixtures::Random random_;
};

}  // namespace fastload::image::fuzz

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  if (max_size < 4096) return size;
  return fastload::image::fuzz::Mutator(data, size, max_size, seed).run();
}
