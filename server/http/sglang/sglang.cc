#include "server/http/sglang/sglang.h"

#include <nlohmann/json.hpp>

#include "server/http/generation/logprob_json.h"
#include "server/http/generation/run_dialect.h"
#include "server/http/sglang/sglang_request.h"
#include "server/http/sglang/sglang_response.h"
#include "server/options/version.h"

namespace taopd {
namespace {

std::string Dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

// The events of a stream repeat everything so far, but only one of them exists at a time.
Answer RunSglang(const std::string& body, const Caller& caller, ServingState& state) {
  constexpr Dialect<SglangRequest> kDialect = {
      .parse = ParseSglangRequest,
      .answer_bytes = [](const auto& asked) { return EstimateAnswerBytes(asked, /*echo=*/true); },
      .write = SglangResponseJson,
      .stream = StreamSglang,
      .streams_scores = [](const auto& asked) { return asked.return_logprob; },
      .takes_header_id = false};
  return RunDialect(kDialect, body, caller, state);
}

Answer SglangModelInfo(ServingState& state) {
  const auto model = state.Admit();
  if (!model.ok()) return FromStatus(model.status());
  nlohmann::ordered_json info;
  info["model_path"] = (*model)->root;
  info["tokenizer_path"] = (*model)->root;
  info["is_generation"] = (*model)->limits.can_generate;
  info["served_model_name"] = (*model)->name;
  info["weight_version"] = "default";
  return Dump(info);
}

Answer SglangServerInfo(ServingState& state) {
  const auto model = state.Admit();
  if (!model.ok()) return FromStatus(model.status());
  const EngineLimits& limits = (*model)->limits;
  const EngineStats stats = (*model)->engine->stats();
  nlohmann::ordered_json info;
  info["model_path"] = (*model)->root;
  info["served_model_name"] = (*model)->name;
  info["revision"] = (*model)->revision;
  info["dtype"] = (*model)->dtype;
  info["context_length"] = limits.max_model_len;
  info["max_logprobs"] = limits.max_logprobs;
  info["max_running_requests"] = limits.max_num_seqs;
  info["num_running_requests"] = stats.num_running;
  info["num_queue_requests"] = stats.num_waiting;
  info["version"] = kTeacherVersion;
  return Dump(info);
}

}  // namespace taopd
