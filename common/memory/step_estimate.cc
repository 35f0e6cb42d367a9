#include "common/memory/step_estimate.h"

#include <absl/strings/str_format.h>

#include <algorithm>

#include "common/base/memory.h"
#include "taopd/base/round_up.h"

namespace taopd {
namespace {

int64_t NumParametersTrained(const StepWork& work) {
  return work.adapter_parameters > 0 ? work.adapter_parameters : work.num_parameters;
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

}  // namespace

StepEstimate EstimateStep(const StepWork& work, const DeviceRates& rates) {
  const int64_t sequences = CeilDiv(work.num_sequences, work.num_ranks);
  const auto weight_bytes = static_cast<double>(work.num_parameters * work.bytes_per_weight);
  const auto active = static_cast<double>(work.active_parameters);
  const double read_weights = weight_bytes / rates.memory_bytes_per_second;

  StepEstimate estimate;
  const auto prompt_tokens =
      static_cast<double>(CeilDiv(sequences, work.rollouts_of_prompt) * work.prompt_tokens);
  estimate.lines.push_back({"rollout, prompts",
                            std::max(2 * active * prompt_tokens / rates.flops, read_weights), 0,
                            "2 P S p / n FLOP"});
  const int64_t running = std::min(sequences, std::max<int64_t>(1, work.max_running));
  const auto turns = static_cast<double>(CeilDiv(sequences, running));
  const double context =
      static_cast<double>(work.prompt_tokens) + static_cast<double>(work.response_tokens) / 2;
  const double kv_bytes =
      static_cast<double>(running) * context * static_cast<double>(work.kv_bytes_per_token);
  const double token_seconds = std::max((weight_bytes + kv_bytes) / rates.memory_bytes_per_second,
                                        2 * active * static_cast<double>(running) / rates.flops);
  estimate.lines.push_back({"rollout, responses",
                            turns * static_cast<double>(work.response_tokens) * token_seconds, 0,
                            "r reads of the weights and of the keys and values"});
  const auto trained_tokens =
      static_cast<double>(sequences * (work.prompt_tokens + work.response_tokens));
  const bool has_adapters = work.adapter_parameters > 0;
  const int64_t flops_per_weight = (has_adapters ? 4 : 6) + (work.recomputes_layers ? 2 : 0);
  estimate.lines.push_back(
      {"forward, backward",
       static_cast<double>(flops_per_weight) * active * trained_tokens / rates.flops, 0,
       absl::StrFormat("%d P S (p + r) FLOP", flops_per_weight)});
  const char trained = has_adapters ? 'A' : 'P';
  estimate.lines.push_back(
      OverNetwork(work, rates, "gradients", 4 * work.micro_batches,
                  absl::StrFormat("4 %c (N - 1) / N bytes, reduce-scatter%s", trained,
                                  work.micro_batches > 1 ? " after each micro-batch" : "")));
  const auto slice =
      static_cast<double>(CeilDiv(NumParametersTrained(work), work.num_ranks) * work.updates);
  estimate.lines.push_back(
      {"optimizer",
       slice * static_cast<double>(work.optimizer_bytes_per_parameter) /
           (work.updates_on_host ? rates.host_bytes_per_second : rates.memory_bytes_per_second),
       0,
       absl::StrFormat("%d %c / N bytes of %s memory", work.optimizer_bytes_per_parameter, trained,
                       work.updates_on_host ? "the host's" : "the device's")});
  estimate.lines.push_back(OverNetwork(
      work, rates, has_adapters ? "adapters" : "weights", has_adapters ? 4 : work.bytes_per_weight,
      absl::StrFormat("%s %c (N - 1) / N bytes, all-gather", has_adapters ? "4" : "b", trained)));
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
