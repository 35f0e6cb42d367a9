// Measures how far the student has moved from its start, on responses from the start.
//
// The probe is a few responses that the student generated before its first update, with their
// log-probs at that time. The mean of their log-ratio to the current student is an unbiased
// estimate of KL(start || now) per token, and needs no copy of the initial weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/decoder.h"
#include "kernels/torch/head/student_head.h"
#include "trainer/rollout/rollout_engine.h"

namespace taopd {

// Returns the mean of log p_start(y) - log p(y) over the response tokens of `probe`, in nats.
// `head` defines the temperature and the workspace. With top-p or top-k sampling, the tokens are
// not drawn from p_start itself, and the mean is only an indication. REQUIRES: the probe is not
// empty.
double MeasureKlToStart(Decoder* student, const HeadOptions& head,
                        const std::vector<Rollout>& probe, int64_t micro_batch_tokens);

// Convert the probe to JSON, for a checkpoint, and back. ReadProbe returns DATA_LOSS for any other
// text.
std::string WriteProbe(const std::vector<Rollout>& probe);
absl::StatusOr<std::vector<Rollout>> ReadProbe(const std::string& text);

}  // namespace taopd
