// Chooses a token from one row of logits by the rules of SamplingParams (engine_request.h). The
// result depends only on the row, the parameters, the sequence's own history and the step. For the
// same logits, it has the same bits in every batch, on every thread and with every instruction set
// of the CPU. Log-probs, min_p and candidates also use log and exp of the C library, which may
// round differently on another machine.
//
// The candidates of a row (logit_row.h) give the same token as the whole row, unless the uniform
// number or top_p is within rounding of the border between two tokens. Log-probs may differ in the
// last bits, because the sums of the weights have another order.
//
// Step i of a sequence consumes exactly one uniform number, the i-th of RandomStream(seed). The
// token is the id at which the cumulative sum of the kept weights, in the order of the ids, exceeds
// the uniform number times their total.
//
// Shapes: V vocabulary size, N places of a row (logit_row.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/engine/engine_request.h"
#include "common/engine/sampling/logit_row.h"
#include "common/engine/sampling/sampling_state.h"
#include "common/engine/sampling/truncation.h"

namespace taopd {
namespace cpu {
enum class InstructionSet;  // kernels/cpu/isa/isa.h
}

struct SampledToken {
  int32_t id = 0;
  // See GeneratedTokens. Numbers that SamplingParams does not ask for are NaN or 0.
  float log_prob = 0.0f;
  float raw_log_prob = 0.0f;
  int32_t rank = 0;
};

// Returns the uniform number of step `step` of the sequence with this seed.
double UniformOfStep(uint64_t seed, int64_t step);

// Returns whether the token of step `step` depends only on the logits, the temperature and the
// uniform number, and only the token's log-probs are to be reported.
bool NeedsTemperatureOnly(const SamplingParams& params, const SamplingState* state, int64_t step,
                          int64_t vocab_size);

// Reuses scratch memory between calls. Not thread-safe: give each thread its own Sampler.
class Sampler {
 public:
  // Uses the widest instruction set that this processor has.
  Sampler();
  // Uses `set`, for tests: the results do not depend on it.
  explicit Sampler(cpu::InstructionSet set);

  // Chooses the token of step `step`, counted from 0. The row is not changed. `state` may be null
  // if no parameter depends on the history; the caller appends the token to it. Returns
  //   INTERNAL          the logits hold a NaN or +inf, or only -inf
  //   INVALID_ARGUMENT  the masks, which the message names, forbid every token
  //   OUT_OF_RANGE      the rest of the row may hold the token, an id that truncation keeps, or one
  //                     that is among the alternatives or changes the rank
  // and any error of SamplingParams::mask.
  // REQUIRES: the row has a logit, and `params` is valid (ValidateRequest). If the row has ids_N,
  // they hold the largest logit and ListedIds (processors.h), and there is no mask.
  absl::StatusOr<SampledToken> Sample(const LogitRow& row, const SamplingParams& params,
                                      const SamplingState* state, int64_t step);

  // Appends the num_log_probs most probable ids of the last Sample's row and their log-probs to the
  // two vectors, in descending order of logit; ties go to the lower id. The distribution is that of
  // SamplingParams::top_log_probs_mode. REQUIRES: the last Sample succeeded, and its row still
  // exists.
  void AppendTop(std::vector<int32_t>* ids, std::vector<float>* log_probs) const;

 private:
  // A row of logits and its softmax under a temperature.
  struct Distribution {
    std::span<const float> logits_N;
    LogitRow::Rest rest;
    double temperature = 1.0;
    float max = 0.0f;
    double log_sum = 0.0;  // log sum_v exp((logit_v - max) / temperature), if requested
    std::vector<float> lane_max;
    std::vector<double> block_sums;

    float LogProb(int32_t place) const;
    // Returns the factor that turns the rest's sums into sums of exp((logit - max) / temperature).
    double ScaleOfRest() const;
  };

  // Sets the row, its maxima and the temperature. Returns false if there is a NaN or +inf.
  bool SetRow(std::span<const float> logits_N, const LogitRow::Rest& rest, Distribution* row) const;
  // Sums the weights of a row and, if `store` is true, stores those of its places in weights_N_.
  double Sum(Distribution* row, bool store);
  // Applies masks, bias and penalties to a copy of the row and makes it processed_.
  absl::Status Process(const SamplingParams& params, const SamplingState* state, int64_t step);
  int32_t Argmax() const;
  // These return nullopt if the rest may hold the token.
  std::optional<int32_t> Draw(const SamplingParams& params, int64_t step, double total);
  std::optional<int32_t> DrawAmongCandidates(double target) const;
  // Sets top_places_. Returns false if the rest may hold one of them.
  bool FindTop(int32_t num);

  const cpu::WeightRow& math_;
  LogitRow row_;
  Distribution raw_;
  Distribution processed_;               // unused if it equals the raw one
  const Distribution* drawn_ = nullptr;  // the distribution from which the token is drawn
  const Distribution* top_ = nullptr;    // the distribution of ranks and alternatives
  RowTruncation truncation_;
  std::vector<float> logits_N_;  // used if something changes the row
  std::vector<float> weights_N_;
  std::vector<int32_t> top_places_;
  std::vector<uint64_t> mask_words_;
};

}  // namespace taopd
