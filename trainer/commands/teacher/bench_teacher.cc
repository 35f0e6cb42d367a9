// The subcommand bench-teacher: puts a load on a teacher and prints a table of what it measured.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "trainer/cli/config_flags.h"
#include "trainer/cli/subcommand.h"
#include "trainer/commands/teacher/teacher_flags.h"
#include "trainer/setup/connect_teacher.h"
#include "trainer/teacher/bench/teacher_bench.h"

namespace taopd {
namespace {

constexpr int64_t kVocabIfUnknown = 1000;
constexpr std::pair<const char*, double> kPercentiles[] = {
    {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"max", 1.0}};

struct BenchTeacherRequest {
  double rate = 0;  // requests per second in an open loop; 0 for a closed loop
  int64_t concurrency = 8;
  int64_t num_requests = 100;
  double duration_s = 0;                                       // instead of num_requests
  std::string prompt_tokens = "128", response_tokens = "128";  // a length, or a range
  int64_t vocab_size = 0;  // size for the random ids; 0 means the teacher's, or 1000 if unknown
  int64_t seed = 0;
  std::string json_path;  // path of the results as JSON; empty for none
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

// Fills `load`, whose lengths are set.
absl::Status DescribeLoad(const TrainConfig& config, const BenchTeacherRequest& request,
                          const TeacherInfo& info, TeacherLoad* load) {
  load->requests_per_s = request.rate;
  load->concurrency = request.concurrency;
  load->num_requests = request.num_requests;
  load->duration = absl::Seconds(request.duration_s);
  load->top_k = static_cast<int32_t>(config.teacher.top_k);
  load->temperature = static_cast<float>(config.teacher.temperature);
  load->seed = static_cast<uint64_t>(request.seed);
  load->vocab_size = request.vocab_size;
  if (load->vocab_size == 0) {
    load->vocab_size = info.head_vocab_size > 0 ? info.head_vocab_size : kVocabIfUnknown;
  }
  if (load->vocab_size < 2) return InvalidArgument("--vocab-size must be at least 2");
  const int64_t longest = load->prompt_tokens.second + load->response_tokens.second;
  if (longest > info.max_model_len) {
    return InvalidArgument("--prompt-tokens and --response-tokens: sequences of ", longest,
                           " tokens exceed the teacher's max_model_len ", info.max_model_len);
  }
  if (load->top_k > info.max_top_k) {
    return InvalidArgument("--top-k ", load->top_k, " exceeds the teacher's limit of ",
                           info.max_top_k);
  }
  return absl::OkStatus();
}

nlohmann::ordered_json DescribeLoadResult(const TeacherLoad& load, const TeacherLoadResult& result,
                                          const TeacherInfo& info,
                                          const TeacherClientStats& stats) {
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
      {"loop", load.requests_per_s > 0 ? "open" : "closed"},
      {"rate", load.requests_per_s},
      {"concurrency", load.requests_per_s > 0 ? 0 : load.concurrency},
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

absl::Status BenchTeacher(TrainConfig config, const BenchTeacherRequest& request) {
  if (!config.teachers.empty()) {
    return BadUsage(InvalidArgument("teachers lists several: name one server with --teacher"));
  }
  TeacherLoad load;
  TAOPD_ASSIGN_OR_RETURN(load.prompt_tokens,
                         BadUsage(ParseRange("--prompt-tokens", request.prompt_tokens)));
  TAOPD_ASSIGN_OR_RETURN(load.response_tokens,
                         BadUsage(ParseRange("--response-tokens", request.response_tokens)));
  // The load is the limit, not the client's setting.
  config.teacher.max_in_flight = std::max<int64_t>(1024, request.concurrency);
  TAOPD_ASSIGN_OR_RETURN(const auto client, BadUsage(MakeClientWithoutRetries(config)));
  TAOPD_ASSIGN_OR_RETURN(const TeacherInfo info, ConnectTeacher(config, client.get()));
  TAOPD_RETURN_IF_ERROR(BadUsage(DescribeLoad(config, request, info, &load)));
  const TeacherLoadResult result = RunTeacherLoad(load, client.get());
  const nlohmann::ordered_json json = DescribeLoadResult(load, result, info, client->stats());
  PrintTable(json, result);
  if (!request.json_path.empty()) {
    TAOPD_RETURN_IF_ERROR(
        BadUsage(Annotate(WriteFileAtomically(request.json_path, json.dump(2) + "\n"), "--json")));
  }
  if (result.errors.empty()) return absl::OkStatus();
  return WithExitCode(kExitUnavailable,
                      Unavailable(result.num_requests() - json["verified"].get<int64_t>(), " of ",
                                  result.num_requests(), " requests failed"));
}

}  // namespace

Subcommand AddBenchTeacher(CLI::App& app) {
  struct Flags {
    TeacherFlags teacher;
    BenchTeacherRequest request;
  };
  auto flags = std::make_shared<Flags>();
  BenchTeacherRequest& request = flags->request;
  CLI::App* command =
      app.add_subcommand("bench-teacher", "Send requests to a teacher and measure it");
  flags->teacher.AddTo(command);
  command
      ->add_option(
          "--rate", request.rate,
          "Requests per second, which arrive at random. 0 means that --concurrency applies")
      ->check(NonNegativeNumber())
      ->capture_default_str();
  command
      ->add_option("--concurrency", request.concurrency,
                   "Number of requests that are always in flight")
      ->check(PositiveNumber())
      ->capture_default_str();
  auto* count =
      command->add_option("--requests", request.num_requests, "Number of requests to send")
          ->check(PositiveNumber())
          ->capture_default_str();
  command->add_option("--duration", request.duration_s, "Seconds during which requests are sent")
      ->check(PositiveNumber())
      ->excludes(count);
  command->option_defaults()->always_capture_default();
  command->add_option("--prompt-tokens", request.prompt_tokens,
                      "Number of tokens of a prompt, or a range such as 64:256");
  command->add_option("--response-tokens", request.response_tokens,
                      "Number of tokens of a response, or a range");
  command
      ->add_option("--vocab-size", request.vocab_size,
                   "Upper bound of the random ids. 0 means the teacher's vocabulary, or 1000 if it "
                   "is not known")
      ->check(NonNegativeNumber());
  command->add_option("--seed", request.seed, "Seed of ids, lengths and arrivals")
      ->check(NonNegativeNumber());
  command->add_option("--json", request.json_path, "File to which the results are written as JSON");
  return {command, [flags]() -> absl::Status {
            TAOPD_ASSIGN_OR_RETURN(TrainConfig config, flags->teacher.Read());
            return BenchTeacher(std::move(config), flags->request);
          }};
}

}  // namespace taopd
