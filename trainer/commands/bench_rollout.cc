// The subcommand bench-rollout: gives the weights of student.model to the servers of
// rollout.endpoints, generates, and prints a table of measurements of each server alone and of all
// of them together.
#include <absl/strings/str_format.h>
#include <absl/synchronization/mutex.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "common/base/random.h"
#include "common/io/file.h"
#include "trainer/cli/config_flags.h"
#include "trainer/cli/subcommand.h"
#include "trainer/pipeline/published_weights.h"
#include "trainer/setup/engine_options.h"
#include "trainer/step/rollouts/rollout_requests.h"
#include "trainer/student/student.h"

namespace taopd {
namespace {

struct BenchRolloutRequest {
  ConfigFlags config;
  std::vector<std::string> endpoints;
  std::string model;
  int64_t num_requests = 64;  // to each server
  int64_t prompt_tokens = 128;
  int64_t response_tokens = 128;  // the largest number; a response may end before
  std::string json_path;          // path of the results as JSON; empty for none
};

struct Measurement {
  std::string name;
  double weights_s = 0;  // from the writing of the weights to the first response
  double seconds = 0;
  int64_t num_tokens = 0;
  int64_t num_asked_again = 0;
};

std::vector<RolloutRequest> RandomRequests(const TrainConfig& config,
                                           const BenchRolloutRequest& request, int64_t count,
                                           int64_t num_tokens, int64_t vocab_size) {
  RandomStream random(static_cast<uint64_t>(config.run.seed), "bench-rollout");
  std::vector<RolloutRequest> requests(static_cast<size_t>(count));
  for (RolloutRequest& one : requests) {
    for (int64_t i = 0; i < request.prompt_tokens; ++i) {
      one.prompt_ids.push_back(
          static_cast<int32_t>(random.NextBelow(static_cast<uint64_t>(vocab_size))));
    }
    one.policy_version = 0;
    one.sampling = RolloutSampling(config);
    one.sampling.max_new_tokens = num_tokens;
    one.sampling.num_log_probs = 0;
    one.sampling.seed = random.NextU64();
  }
  return requests;
}

// Returns the number of response tokens, or the first error.
absl::StatusOr<int64_t> GenerateAll(RemoteRolloutEngine* engine,
                                    std::vector<RolloutRequest> requests) {
  absl::Mutex mutex;
  const auto count = static_cast<int64_t>(requests.size());
  int64_t num_done = 0, num_tokens = 0;
  absl::Status error;
  engine->Generate(std::move(requests), [&](int64_t, absl::StatusOr<Rollout> rollout) {
    absl::MutexLock lock(&mutex);
    error.Update(rollout.status());
    if (rollout.ok()) num_tokens += static_cast<int64_t>(rollout->response_ids.size());
    ++num_done;
  });
  absl::MutexLock lock(&mutex);
  const auto all_done = [&] { return num_done == count; };
  mutex.Await(absl::Condition(&all_done));
  if (!error.ok()) return error;
  return num_tokens;
}

absl::StatusOr<Measurement> MeasureEndpoints(const TrainConfig& config,
                                             const BenchRolloutRequest& request,
                                             const std::vector<std::string>& endpoints,
                                             Student* student, const std::string& directory) {
  TAOPD_ASSIGN_OR_RETURN(const RolloutWorkerOptions common, MakeWorkerOptions(config));
  TAOPD_ASSIGN_OR_RETURN(auto workers, MakeRolloutWorkers(endpoints, common));
  RolloutNeeds needs = RolloutNeedsOf(config, *student);
  needs.max_model_len = request.prompt_tokens + request.response_tokens;
  needs.sampling.num_log_probs = 0;
  const RemoteRolloutOptions options = {
      .max_in_flight = config.rollout.max_in_flight,
      .outage_budget = absl::Seconds(config.rollout.connect_timeout_s)};
  const auto count = request.num_requests * static_cast<int64_t>(endpoints.size());
  const int64_t vocab_size = needs.vocab_size;
  RemoteRolloutEngine engine(std::move(workers), std::move(needs), options);
  TAOPD_RETURN_IF_ERROR(engine.Connect(absl::Seconds(config.rollout.connect_timeout_s)));
  PublishedWeights weights(student->decoder.get(), &engine, directory);
  Measurement measured;
  measured.name = endpoints.size() == 1 ? endpoints[0] : "all";
  absl::Time start = absl::Now();
  weights.Take(0);
  TAOPD_RETURN_IF_ERROR(
      GenerateAll(&engine, RandomRequests(config, request, 1, 1, vocab_size)).status());
  measured.weights_s = absl::ToDoubleSeconds(absl::Now() - start);
  start = absl::Now();
  TAOPD_ASSIGN_OR_RETURN(measured.num_tokens,
                         GenerateAll(&engine, RandomRequests(config, request, count,
                                                             request.response_tokens, vocab_size)));
  measured.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  measured.num_asked_again = engine.stats().num_asked_again;
  return measured;
}

nlohmann::ordered_json EndpointRow(const Measurement& measured) {
  return {{"endpoint", measured.name},
          {"weights_s", measured.weights_s},
          {"tokens", measured.num_tokens},
          {"seconds", measured.seconds},
          {"tokens_per_s", static_cast<double>(measured.num_tokens) / measured.seconds},
          {"asked_again", measured.num_asked_again}};
}

absl::Status BenchRollout(const TrainConfig& config, const BenchRolloutRequest& request) {
  TAOPD_ASSIGN_OR_RETURN(
      Student student, BadModel(Annotate(LoadStudent(config.student.model, config.student.dtype,
                                                     config.trainer.device, /*optimizer=*/nullptr),
                                         "student.model")));
  std::error_code error;
  std::filesystem::path parent = config.rollout.weights_dir;
  if (parent.empty()) parent = std::filesystem::temp_directory_path(error);
  if (error) {
    return BadUsage(InvalidArgument("there is no directory for temporary files (", error.message(),
                                    "): set TMPDIR or rollout.weights_dir"));
  }
  const std::string directory =
      Concat(std::filesystem::absolute(parent, error).string(), "/bench-rollout-", ::getpid());
  std::vector<std::vector<std::string>> groups;
  for (const std::string& endpoint : config.rollout.endpoints) groups.push_back({endpoint});
  if (groups.size() > 1) groups.push_back(config.rollout.endpoints);
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  std::cout << absl::StreamFormat("%-40s %10s %10s %10s %12s %12s\n", "endpoint", "weights_s",
                                  "tokens", "seconds", "tokens_per_s", "asked_again");
  for (const std::vector<std::string>& endpoints : groups) {
    const auto measured = MeasureEndpoints(config, request, endpoints, &student, directory);
    if (absl::IsInvalidArgument(measured.status()) || absl::IsFailedPrecondition(measured.status()))
      return BadUsage(measured.status());
    if (!measured.ok()) return WithExitCode(kExitUnavailable, measured.status());
    results.push_back(EndpointRow(*measured));
    std::cout << absl::StreamFormat("%-40s %10.3f %10d %10.3f %12.1f %12d\n", measured->name,
                                    measured->weights_s, measured->num_tokens, measured->seconds,
                                    results.back()["tokens_per_s"].get<double>(),
                                    measured->num_asked_again)
              << std::flush;
  }
  if (request.json_path.empty()) return absl::OkStatus();
  return BadUsage(
      Annotate(WriteFileAtomically(request.json_path, results.dump(2) + "\n"), "--json"));
}

absl::StatusOr<TrainConfig> ReadConfig(const BenchRolloutRequest& request) {
  TrainConfig config;
  config.student.model = "none";
  TAOPD_RETURN_IF_ERROR(request.config.Read(&config));
  if (!request.endpoints.empty()) config.rollout.endpoints = request.endpoints;
  if (!request.model.empty()) config.student.model = request.model;
  TAOPD_RETURN_IF_ERROR(CheckTrainConfig(config));
  if (config.student.model == "none")
    return InvalidArgument("--model or student.model must name a directory");
  if (!config.rollout.IsElsewhere())
    return InvalidArgument("--endpoint or rollout.endpoints must name a server");
  return config;
}

}  // namespace

Subcommand AddBenchRollout(CLI::App& app) {
  auto flags = std::make_shared<BenchRolloutRequest>();
  BenchRolloutRequest& request = *flags;
  CLI::App* command = app.add_subcommand(
      "bench-rollout",
      "Measure servers of rollouts while they generate. Their weights are replaced");
  request.config.AddTo(command, /*required=*/false);
  command->add_option("--endpoint", request.endpoints,
                      "URL of a server; replaces rollout.endpoints (repeatable)");
  command->add_option("--model", request.model,
                      "Directory of the weights that they get, instead of student.model");
  command->option_defaults()->always_capture_default();
  command->add_option("--requests", request.num_requests, "Number of responses of each server")
      ->check(PositiveNumber());
  command->add_option("--prompt-tokens", request.prompt_tokens, "Length of the random prompts")
      ->check(PositiveNumber());
  command->add_option("--response-tokens", request.response_tokens, "Maximum length of a response")
      ->check(PositiveNumber());
  command->add_option("--json", request.json_path, "File to which the results are written as JSON");
  return {command, [flags]() -> absl::Status {
            TAOPD_ASSIGN_OR_RETURN(const TrainConfig config, BadUsage(ReadConfig(*flags)));
            return BenchRollout(config, *flags);
          }};
}

}  // namespace taopd
