#include "common/engine/sampling/sampling_fields.h"

#include <cmath>
#include <limits>
#include <type_traits>

namespace taopd {
namespace {

constexpr double kMaxInt32 = std::numeric_limits<int32_t>::max();

template <typename T>
T TypeOf(T SamplingParams::*);

template <auto kMember>
constexpr SamplingField Row(const char* name, const char* range, const char* doc,
                            bool (*in_range)(double), bool in_generation_config) {
  using T = decltype(TypeOf(kMember));
  return {name,
          range,
          doc,
          in_range,
          std::is_integral_v<T>,
          in_generation_config,
          [](double x, SamplingParams* out) { out->*kMember = static_cast<T>(x); },
          [](const SamplingParams& from) { return static_cast<double>(from.*kMember); }};
}

bool IsPenalty(double x) { return x >= -2.0 && x <= 2.0; }

constexpr SamplingField kSamplingFields[] = {
    Row<&SamplingParams::temperature>(
        "temperature", "must be in [0, 2]", "In [0, 2]; 0 takes the most probable token.",
        [](double x) { return x >= 0.0 && x <= 2.0; }, true),
    Row<&SamplingParams::top_p>(
        "top_p", "must be in (0, 1]", "In (0, 1].",
        // Smaller values would be 0 as a float.
        [](double x) { return static_cast<float>(x) > 0.0f && x <= 1.0; }, true),
    Row<&SamplingParams::top_k>(
        "top_k", "must be -1 or 0 (disable), or at least 1 and below 2^31", "0 or -1: off.",
        [](double x) { return x >= -1.0 && x <= kMaxInt32; }, true),
    Row<&SamplingParams::min_p>(
        "min_p", "must be in [0, 1]", "In [0, 1].", [](double x) { return x >= 0.0 && x <= 1.0; },
        true),
    Row<&SamplingParams::repetition_penalty>(
        "repetition_penalty", "must be greater than zero and finite", "Above 0; 1: off.",
        [](double x) {
          return static_cast<float>(x) > 0.0f && std::isfinite(static_cast<float>(x));
        },
        true),
    Row<&SamplingParams::presence_penalty>("presence_penalty", "must be in [-2, 2]", "In [-2, 2].",
                                           IsPenalty, false),
    Row<&SamplingParams::frequency_penalty>("frequency_penalty", "must be in [-2, 2]",
                                            "In [-2, 2].", IsPenalty, false),
    Row<&SamplingParams::min_tokens>(
        "min_tokens", "must be greater than or equal to 0",
        "Minimum number of tokens before the end.",
        [](double x) { return x >= 0.0 && x <= kMaxInt32; }, false),
};

}  // namespace

std::span<const SamplingField> SamplingFields() { return kSamplingFields; }

absl::Status SetSamplingField(const SamplingField& field, double value, SamplingParams* sampling) {
  if (!field.in_range(value)) {
    return InvalidArgument(field.name, " ", field.range, ", got ", value,
                           ". (parameter=", field.name, ", value=", value, ")");
  }
  field.set(value, sampling);
  return absl::OkStatus();
}

}  // namespace taopd
