#include "common/memory/step_estimate.h"

#include <absl/strings/str_format.h>

#include <algorithm>

#include "common/base/memory.h"
#include "taopd/base/round_up.h"

namespace taopd {
namespace {

bool HasAdapters(const StepWork& work) { return work.adapter_parameters > 0; }

int64_t NumParametersTrained(const StepWork& work) {
  return HasAdapters(work) ? work.adapter_parameters : work.num_parameters;
}

// Returns the letter of the parameters that are trained, for notes.
char TrainedLetter(const StepWork& work) { return HasAdapters(work) ? 'A' : 'P'; }

int64_t SequencesOfARank(const StepWork& work) {
  return CeilDiv(work.num_sequences, work.num_ranks);
}

double WeightBytes(const StepWork& work) {
  return static_cast<double>(work.num_parameters * work.bytes_per_weight);
}

EstimateLine RolloutPrompts(const StepWork& work, const DeviceRates& rates) {
  const auto num_tokens = static_cast<double>(
      CeilDiv(SequencesOfARank(work), work.rollouts_of_prompt) * work.prompt_tokens);
  const double flops = 2 * static_cast<double>(work.active_parameters) * num_tokens;
  return {"rollout, prompts",
          std::max(flops / rates.flops, WeightBytes(work) / rates.memory_bytes_per_second), 0,
          "2 P S p / n FLOP"};
}

EstimateLine RolloutResponses(const StepWork& work, const DeviceRates& rates) {
  const int64_t num_sequences = SequencesOfARank(work);
  const int64_t num_running = std::min(num_sequences, std::max<int64_t>(1, work.max_running));
  const auto running = static_cast<double>(num_running);
  const auto turns = static_cast<double>(CeilDiv(num_sequences, num_running));
  const auto num_tokens = static_cast<double>(work.response_tokens);
  const double context = static_cast<double>(work.prompt_tokens) + num_tokens / 2;
  const double kv_bytes = running * context * static_cast<double>(work.kv_bytes_per_token);
  const double token_seconds =
      std::max((WeightBytes(work) + kv_bytes) / rates.memory_bytes_per_second,
               2 * static_cast<double>(work.active_parameters) * running / rates.flops);
  return {"rollout, responses", turns * num_tokens * token_seconds, 0,
          "r reads of the weights and of the keys and values"};
}

EstimateLine ForwardBackward(const StepWork& work, const DeviceRates& rates) {
  const auto num_tokens =
      static_cast<double>(SequencesOfARank(work) * (work.prompt_tokens + work.response_tokens));
  const int64_t flops_per_weight = (HasAdapters(work) ? 4 : 6) + (work.recomputes_layers ? 2 : 0);
  return {"forward, backward",
          static_cast<double>(flops_per_weight) * static_cast<double>(work.active_parameters) *
              num_tokens / rates.flops,
          0, absl::StrFormat("%d P S (p + r) FLOP", flops_per_weight)};
}

EstimateLine OverNetwork(const StepWork& work, const DeviceRates& rates, const char* name,
                         int64_t bytes_per_parameter, const std::string& note) {
  EstimateLine line = {name, 0, 0, note};
  if (work.num_ranks == 1) return line;
  line.sent_bytes = work.updates * bytes_per_parameter * NumParametersTrained(work) /
                    work.num_ranks * (work.num_ranks - 1);
  line.seconds = static_cast<double>(line.sent_bytes) / rates.network_bytes_per_second;
  return line;
}

EstimateLine Gradients(const StepWork& work, const DeviceRates& rates) {
  return OverNetwork(
      work, rates, "gradients", 4 * work.micro_batches,
      absl::StrFormat("4 %c (N - 1) / N bytes, reduce-scatter%s", TrainedLetter(work),
                      work.micro_batches > 1 ? " after each micro-batch" : ""));
}

EstimateLine Optimizer(const StepWork& work, const DeviceRates& rates) {
  const auto num_updated =
      static_cast<double>(CeilDiv(NumParametersTrained(work), work.num_ranks) * work.updates);
  const double bytes_per_second =
      work.updates_on_host ? rates.host_bytes_per_second : rates.memory_bytes_per_second;
  return {
      "optimizer",
      num_updated * static_cast<double>(work.optimizer_bytes_per_parameter) / bytes_per_second, 0,
      absl::StrFormat("%d %c / N bytes of %s memory", work.optimizer_bytes_per_parameter,
                      TrainedLetter(work), work.updates_on_host ? "the host's" : "the device's")};
}

EstimateLine UpdatedWeights(const StepWork& work, const DeviceRates& rates) {
  const bool has_adapters = HasAdapters(work);
  return OverNetwork(work, rates, has_adapters ? "adapters" : "weights",
                     has_adapters ? 4 : work.bytes_per_weight,
                     absl::StrFormat("%s %c (N - 1) / N bytes, all-gather",
                                     has_adapters ? "4" : "b", TrainedLetter(work)));
}

}  // namespace

StepEstimate EstimateStep(const StepWork& work, const DeviceRates& rates) {
  StepEstimate estimate;
  estimate.lines = {RolloutPrompts(work, rates),  RolloutResponses(work, rates),
                    ForwardBackward(work, rates), Gradients(work, rates),
                    Optimizer(work, rates),       UpdatedWeights(work, rates)};
  for (const EstimateLine& line : estimate.lines) {
    estimate.seconds += line.seconds;
    estimate.sent_bytes += line.sent_bytes;
  }
  estimate.tokens_per_second =
      static_cast<double>(work.num_sequences * (work.prompt_tokens + work.response_tokens)) /
      estimate.seconds;
  return estimate;
}

std::string EstimateText(const StepEstimate& estimate) {
  std::string text = absl::StrFormat("%-20s %10s %12s  %s\n", "phase", "seconds", "sent", "from");
  const auto add = [&text](const std::string& name, double seconds, int64_t sent,
                           const std::string& note) {
    absl::StrAppendFormat(&text, "%-20s %10.3f %12s  %s\n", name, seconds,
                          sent > 0 ? MemoryText(sent) : "", note);
  };
  for (const EstimateLine& line : estimate.lines) {
    add(line.name, line.seconds, line.sent_bytes, line.note);
  }
  add("a step", estimate.seconds, estimate.sent_bytes,
      absl::StrFormat("%.0f tokens/s of all ranks, without overlap", estimate.tokens_per_second));
  return text;
}

}  // namespace taopd
