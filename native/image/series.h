// Functions of numbers that give the same bits on every machine, as fastload/transforms computes them: libm's
// differ in their last bits.
#pragma once

#include <cmath>
#include <cstdint>

namespace fastload::image {

// e**x.
inline double exponential(double x) {
  int halvings = 0;
  while (std::abs(x) > 0.5) {
    x *= 0.5;
    ++halvings;
  }
  double value = 1.0;
  for (int n = 18; n > 0; --n) value = value * x / n + 1.0;
  for (; halvings > 0; --halvings) value *= value;
  return value;
}

// sin(pi x).
inline double sine_pi(double x) {
  // The Taylor coefficients of sin(pi r) / r for |r| <= 1/2, highest power first:
  // (-1)^k pi^(2k+1) / (2k+1)!.
  constexpr double coefficients[] = {
      5.392664662608125e-10,  -2.2948428997269856e-08, 7.952054001475508e-07, -2.1915353447830204e-05,
      0.00046630280576761234, -0.007370430945714348,   0.08214588661112819,   -0.5992645293207919,
      2.550164039877345,      -5.167712780049969,      3.141592653589793,
  };
  const double nearest = std::floor(x + 0.5);
  const double r = x - nearest;
  const double square = r * r;
  double value = 0.0;
  for (const double coefficient : coefficients) value = value * square + coefficient;
  value *= r;
  return static_cast<std::int64_t>(nearest) % 2 != 0 ? -value : value;
}

// Python's round(): half to even. std::nearbyint does so in the default rounding mode, which a program may
// change; this does not depend on it.
inline std::int64_t round_half_even(double x) {
  const double below = std::floor(x);
  const double rest = x - below;
  auto result = static_cast<std::int64_t>(below);
  if (rest > 0.5 || (rest == 0.5 && result % 2 != 0)) ++result;
  return result;
}

}  // namespace fastload::image
