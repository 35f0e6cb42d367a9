// The subcommand bench-teacher.
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "trainer/commands/commands.h"
#include "trainer/commands/configured_parts.h"
#include "trainer/commands/process.h"
#include "trainer/teacher/bench/teacher_bench.h"

namespace taopd {
namespace {

constexpr int64_t kVocabIfUnknown = 1000;
constexpr std::pair<const char*, double> kPercentiles[] = {
    {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"max", 1.0}};

absl::StatusOr<TeacherLoad> MakeLoad(const TrainConfig& config, const BenchTeacherRequest& request,
                                     const TeacherInfo& info) {
  TeacherLoad load;
  load.rate = request.rate;
  load.concurrency = request.concurrency;
  load.num_requests = request.num_requests;
  load.duration = absl::Seconds(request.duration_s);
  load.prompt_tokens = request.prompt_tokens;
  load.response_tokens = request.response_tokens;
  load.top_k = static_cast<int32_t>(config.teacher.top_k);
  load.temperature = static_cast<float>(config.teacher.temperature);
  load.seed = static_cast<uint64_t>(request.seed);
  load.vocab_size = request.vocab_size;
  if (load.vocab_size == 0) {
    load.vocab_size = info.head_vocab_size > 0 ? info.head_vocab_size : kVocabIfUnknown;
  }
  if (load.vocab_size < 2) return InvalidArgument("--vocab-size must be at least 2");
  const int64_t longest = load.prompt_tokens.second + load.response_tokens.second;
  if (longest > info.max_model_len) {
    return InvalidArgument("--prompt-tokens and --response-tokens: sequences of ", longest,
                           " tokens exceed the teacher's max_model_len ", info.max_model_len);
  }
  if (load.top_k > info.max_top_k) {
    return InvalidArgument("--top-k ", load.top_k, " exceeds the teacher's limit of ",
                           info.max_top_k);
  }
  return load;
}

nlohmann::ordered_json AsJson(const TeacherLoad& load, const TeacherLoadResult& result,
                              const TeacherInfo& info, const TeacherClientStats& stats) {
  uint64_t received = 0, sent = 0;
  for (const EndpointStats& endpoint : stats.endpoints) {
    received += endpoint.bytes_received;
    sent += endpoint.bytes_sent;
  }
  const double seconds = absl::ToDoubleSeconds(result.elapsed);
  const auto num_ok = static_cast<int64_t>(result.latencies.size());
  const auto per_token = [&](uint64_t bytes) {
    return result.num_scored_tokens > 0
               ? static_cast<double>(bytes) / static_cast<double>(result.num_scored_tokens)
               : 0.0;
  };
  nlohmann::ordered_json json = {
      {"model", info.model_name},
      {"revision", info.revision},
      {"loop", load.rate > 0 ? "open" : "closed"},
      {"rate", load.rate},
      {"concurrency", load.rate > 0 ? 0 : load.concurrency},
      {"top_k", load.top_k},
      {"seed", load.seed},
      {"requests", result.num_requests()},
      {"verified", num_ok},
      {"seconds", seconds},
      {"requests_per_s", static_cast<double>(num_ok) / seconds},
      {"tokens_per_s", static_cast<double>(result.num_tokens) / seconds},
      {"scored_tokens_per_s", static_cast<double>(result.num_scored_tokens) / seconds},
      {"bytes_received_per_scored_token", per_token(received)},
      {"bytes_sent_per_scored_token", per_token(sent)}};
  for (const auto& [name, share] : kPercentiles) {
    json["latency_ms"][name] = absl::ToDoubleMilliseconds(result.Percentile(share));
  }
  json["errors"] = nlohmann::ordered_json::object();
  for (const auto& [name, count] : result.errors) json["errors"][name] = count;
  return json;
}

void PrintTable(const nlohmann::ordered_json& json, const TeacherLoadResult& result) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_object()) {
      for (const auto& [name, number] : value.items()) {
        std::cout << key << "/" << name << "\t" << number << "\n";
      }
    } else {
      std::cout << key << "\t" << (value.is_string() ? value.get<std::string>() : value.dump())
                << "\n";
    }
  }
  for (const auto& [name, message] : result.error_examples) {
    std::cout << "for example " << name << ": " << message << "\n";
  }
}

}  // namespace

absl::Status RunBenchTeacher(const TrainConfig& config, const BenchTeacherRequest& request) {
  return CatchExceptions([&]() -> absl::Status {
    auto client = MakeUncachedClient(config, /*retry=*/false);
    if (!client.ok()) return BadUsage(client.status());
    auto info = (*client)->Connect(absl::Seconds(config.teacher.connect_timeout_s));
    if (!info.ok()) return WithExitCode(kExitUnavailable, Annotate(info.status(), "teacher"));
    auto load = MakeLoad(config, request, *info);
    if (!load.ok()) return BadUsage(load.status());
    const TeacherLoadResult result = RunTeacherLoad(*load, client->get());
    const nlohmann::ordered_json json = AsJson(*load, result, *info, (*client)->stats());
    PrintTable(json, result);
    if (!request.json_path.empty()) {
      const absl::Status written = WriteFileAtomically(request.json_path, json.dump(2) + "\n");
      if (!written.ok()) return BadUsage(Annotate(written, "--json"));
    }
    if (result.errors.empty()) return absl::OkStatus();
    return WithExitCode(kExitUnavailable,
                        Unavailable(result.num_requests() - json["verified"].get<int64_t>(), " of ",
                                    result.num_requests(), " requests failed"));
  });
}

}  // namespace taopd
