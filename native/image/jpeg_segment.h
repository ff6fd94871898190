// Rewriting JPEG images so that parts of them can be decoded alone, without touching a coefficient.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace fastload::image {

struct Segmented {
  std::vector<std::byte> encoded;  // empty where the image is to be kept as it is
  std::string reason;              // why it is; one of few sentences, to be counted
};

// Rewrites a JPEG image as one baseline scan (extended sequential where its tables need that) with optimised
// Huffman tables and a restart marker every few MCUs: an interval that divides the MCU row, of those from 2
// to 8 the nearest to 4, else the whole row. Its coefficients, which are read back and compared, and its
// colours stay the same; of its metadata the EXIF orientation and, with `keep_icc`, the colour profile. Keeps
// what cannot be rewritten so, what libjpeg has any doubt about, and what would become larger. Throws nothing
// but std::bad_alloc.
Segmented segment_jpeg(std::span<const std::byte> encoded, bool keep_icc);

// The restart interval chosen for so many MCUs in a row.
unsigned restart_interval(unsigned mcus_across);

}  // namespace fastload::image
