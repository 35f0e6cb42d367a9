// taopd-trainer score and bench-teacher: a teacher without a run.
#include <algorithm>
#include <charconv>
#include <memory>

#include "trainer/cli/config_flags.h"
#include "trainer/cli/number_checks.h"
#include "trainer/cli/subcommand.h"

namespace taopd {
namespace {

// The flags of both commands that describe the teacher: a configuration, and overrides of it.
struct TeacherFlags {
  ConfigFlags config;
  std::vector<std::string> endpoints;
  std::optional<std::string> cache_dir;
  std::optional<int64_t> top_k;
  std::optional<double> temperature;

  void AddTo(CLI::App* command) {
    config.AddTo(command, /*required=*/false);
    command->add_option("--teacher", endpoints,
                        "URL of a server; replaces teacher.endpoints (repeatable)");
    command->add_option("--top-k", top_k, "Replaces teacher.top_k");
    command->add_option("--temperature", temperature, "Replaces teacher.temperature");
  }

  absl::StatusOr<TrainConfig> Read() const {
    TrainConfig train;
    train.student.model = "none";  // these commands have no student
    TAOPD_RETURN_IF_ERROR(config.Read(&train));
    if (!endpoints.empty()) {
      train.teacher.endpoints = endpoints;
      train.teachers.clear();
    }
    if (cache_dir) train.teacher.cache_dir = *cache_dir;
    if (top_k) train.teacher.top_k = *top_k;
    if (temperature) train.teacher.temperature = *temperature;
    TAOPD_RETURN_IF_ERROR(CheckTrainConfig(train));
    return train;
  }
};

// Reads "128" or "64:256".
absl::StatusOr<std::pair<int64_t, int64_t>> ParseRange(const char* flag, const std::string& text) {
  const size_t colon = text.find(':');
  const std::string low = text.substr(0, colon);
  const std::string high = colon == std::string::npos ? low : text.substr(colon + 1);
  std::pair<int64_t, int64_t> range;
  const auto parse = [](const std::string& digits, int64_t* value) {
    const char* end = digits.data() + digits.size();
    const auto parsed = std::from_chars(digits.data(), end, *value);
    return parsed.ec == std::errc() && parsed.ptr == end;
  };
  if (!parse(low, &range.first) || !parse(high, &range.second) || range.first < 1 ||
      range.second < range.first) {
    return InvalidArgument(flag, " ", text, ": must be a length, as 128, or a range, as 64:256");
  }
  return range;
}

}  // namespace

Subcommand AddScore(CLI::App& app) {
  struct Flags {
    TeacherFlags teacher;
    ScoreRequest request;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("score", "Fill a score cache: a teacher's scores of given sequences");
  flags->teacher.AddTo(command);
  command
      ->add_option("--input", flags->request.input_path,
                   "JSON Lines with prompt_ids and response_ids")
      ->required();
  command->add_option("--cache-dir", flags->teacher.cache_dir, "Replaces teacher.cache_dir");
  command->add_option("--concurrency", flags->request.concurrency, "Requests in flight")
      ->check(PositiveNumber())
      ->capture_default_str();
  return {command, [flags] {
            const auto config = flags->teacher.Read();
            if (!config.ok()) return EndCommand(BadUsage(config.status()));
            if (config->teacher.cache_dir.empty()) {
              return EndCommand(BadUsage(
                  InvalidArgument("--cache-dir or teacher.cache_dir must name a directory")));
            }
            return EndCommand(RunScore(*config, flags->request));
          }};
}

Subcommand AddBenchTeacher(CLI::App& app) {
  struct Flags {
    TeacherFlags teacher;
    BenchTeacherRequest request;
    std::string prompt_tokens = "128", response_tokens = "128";
  };
  auto flags = std::make_shared<Flags>();
  BenchTeacherRequest& request = flags->request;
  CLI::App* command =
      app.add_subcommand("bench-teacher", "Send requests to a teacher and measure it");
  flags->teacher.AddTo(command);
  command
      ->add_option("--rate", request.rate,
                   "Requests per second, which arrive at random; 0 = use --concurrency")
      ->check(NonNegativeNumber())
      ->capture_default_str();
  command->add_option("--concurrency", request.concurrency, "Requests always in flight")
      ->check(PositiveNumber())
      ->capture_default_str();
  auto* count = command->add_option("--requests", request.num_requests, "Requests to send")
                    ->check(PositiveNumber())
                    ->capture_default_str();
  command->add_option("--duration", request.duration_s, "Seconds during which requests are sent")
      ->check(PositiveNumber())
      ->excludes(count);
  command
      ->add_option("--prompt-tokens", flags->prompt_tokens, "A length, or a range such as 64:256")
      ->capture_default_str();
  command->add_option("--response-tokens", flags->response_tokens, "A length, or a range")
      ->capture_default_str();
  command
      ->add_option(
          "--vocab-size", request.vocab_size,
          "Upper bound of the random ids; 0 = the teacher's vocabulary, or 1000 if it is not known")
      ->check(NonNegativeNumber())
      ->capture_default_str();
  command->add_option("--seed", request.seed, "Seed of ids, lengths and arrivals")
      ->check(NonNegativeNumber())
      ->capture_default_str();
  command->add_option("--json", request.json_path, "The results as JSON");
  return {command, [flags] {
            auto config = flags->teacher.Read();
            const auto prompt = ParseRange("--prompt-tokens", flags->prompt_tokens);
            const auto response = ParseRange("--response-tokens", flags->response_tokens);
            absl::Status status = config.status();
            status.Update(prompt.status());
            status.Update(response.status());
            if (status.ok() && !config->teachers.empty()) {
              status = InvalidArgument("teachers lists several: name one server with --teacher");
            }
            if (!status.ok()) return EndCommand(BadUsage(status));
            flags->request.prompt_tokens = *prompt;
            flags->request.response_tokens = *response;
            // The load is the limit, not the client's setting.
            config->teacher.max_in_flight = std::max<int64_t>(1024, flags->request.concurrency);
            return EndCommand(RunBenchTeacher(*config, flags->request));
          }};
}

}  // namespace taopd
