// vLLM's JSON for a log-probability that JSON cannot express.
#pragma once

namespace taopd {

// vLLM writes this number for the logarithm of zero, and for NaN. Smaller numbers mean the same.
inline constexpr double kVllmLogOfZero = -9999.0;

}  // namespace taopd
