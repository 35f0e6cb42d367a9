#include "server/options/teacher_options.h"

#include <sstream>

#include "common/memory/engine_plan.h"
#include "kernels/cpu/isa/isa.h"
#include "server/options/version.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

struct Outcome {
  std::optional<TeacherOptions> options;
  int exit_code = -1;
  std::string out, err;
};

// Parses the flags of a command line, which are separated by spaces.
Outcome Parse(const std::string& line) {
  std::vector<std::string> words = {"taopd-teacher"};
  std::istringstream stream(line);
  for (std::string word; stream >> word;) words.push_back(word);
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  std::ostringstream out, err;
  auto parsed = ParseTeacherOptions(static_cast<int>(arguments.size()), arguments.data(), out, err);
  Outcome outcome;
  if (auto* options = std::get_if<TeacherOptions>(&parsed)) outcome.options = *options;
  if (auto* code = std::get_if<int>(&parsed)) outcome.exit_code = *code;
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

// The options of a teacher of the model m with these flags.
TeacherOptions Accepted(const std::string& flags) {
  const Outcome outcome = Parse("--model m " + flags);
  EXPECT_TRUE(outcome.options) << outcome.err;
  return outcome.options.value_or(TeacherOptions());
}

TEST(TeacherOptionsTest, ReadsVllmFlagNames) {
  const TeacherOptions options = Accepted(
      "--port 0 --grpc-port 0 --max-model-len 100 --max-logprobs 7 "
      "--max-num-batched-tokens 9 --max-num-seqs 3 --max-queued-tokens 11 --dtype bfloat16 "
      "--device cpu --served-model-name s --kv-cache-memory-bytes 13");
  EXPECT_EQ(options.ModelName(), "s");
  const EngineOptions engine = options.ToEngineOptions();
  EXPECT_EQ(engine.max_model_len, 100);
  EXPECT_EQ(engine.max_logprobs, 7);
  EXPECT_EQ(engine.max_candidates, 7);
  EXPECT_EQ(engine.max_num_batched_tokens, 9);
  EXPECT_EQ(engine.max_num_seqs, 3);
  EXPECT_EQ(engine.max_queued_tokens, 11);
  EXPECT_EQ(engine.kv_cache_bytes, 13);
}

TEST(TeacherOptionsTest, ReadsTheUseAndTheSizesOfCudaGraphs) {
  const auto use_of = [](const std::string& flags) {
    return Accepted(flags).ToEngineOptions().cuda_graphs.use;
  };
  EXPECT_EQ(use_of(""), CudaGraphUse::kAuto);
  EXPECT_EQ(use_of("--cuda-graphs false"), CudaGraphUse::kNever);
  EXPECT_EQ(use_of("--cuda-graphs true"), CudaGraphUse::kAlways);
  const CudaGraphOptions graphs =
      Accepted("--max-cudagraph-capture-size 64 --max-seq-len-to-capture 4096")
          .ToEngineOptions()
          .cuda_graphs;
  EXPECT_EQ(graphs.max_capture_size, 64);
  EXPECT_EQ(graphs.max_seq_len, 4096);
}

TEST(TeacherOptionsTest, PrefixCacheAndGenerationConfigAreOnUnlessRefused) {
  const TeacherOptions defaults = Accepted("");
  EXPECT_TRUE(defaults.ToEngineOptions().prefix_caching);
  EXPECT_EQ(defaults.generation_config, "auto");
  Accepted("--enable-prefix-caching");
  const TeacherOptions off = Accepted("--no-enable-prefix-caching --generation-config vllm");
  EXPECT_FALSE(off.ToEngineOptions().prefix_caching);
  EXPECT_EQ(off.generation_config, "vllm");
}

TEST(TeacherOptionsTest, SizesOfMemoryHaveUnits) {
  const TeacherOptions defaults = Accepted("");
  EngineOptions engine = defaults.ToEngineOptions();
  EXPECT_EQ(engine.kv_cache_bytes, kAutoKvCache);
  EXPECT_EQ(engine.memory.cpu_memory_limit_bytes, 0);
  EXPECT_EQ(engine.memory.gpu_memory_utilization, 0.9);
  EXPECT_FALSE(defaults.plan);

  const TeacherOptions given = Accepted(
      "--kv-cache-memory-bytes 2GiB --cpu-memory-limit 1.5GiB --gpu-memory-utilization "
      "0.5 --plan --plan-device cuda:80GiB");
  engine = given.ToEngineOptions();
  EXPECT_EQ(engine.kv_cache_bytes, 2147483648);
  EXPECT_EQ(engine.memory.cpu_memory_limit_bytes, 1610612736);
  EXPECT_EQ(engine.memory.gpu_memory_utilization, 0.5);
  EXPECT_TRUE(given.plan);
  EXPECT_EQ(given.plan_device, "cuda:80GiB");
  EXPECT_EQ(Accepted("--kv-cache-memory-bytes 0").ToEngineOptions().kv_cache_bytes, 0);
}

TEST(TeacherOptionsTest, DefaultsListenOnLoopback) {
  const TeacherOptions options = Accepted("");
  EXPECT_EQ(options.host, "127.0.0.1");
  EXPECT_EQ(options.port, 8000);
  EXPECT_EQ(options.grpc_port, 50051);
  EXPECT_EQ(options.max_logprobs, 128);
  EXPECT_EQ(options.ModelName(), "m");
}

void ExpectUsageErrors(const std::vector<std::pair<const char*, const char*>>& cases) {
  for (const auto& [arguments, message] : cases) {
    const Outcome outcome = Parse(arguments);
    EXPECT_EQ(outcome.exit_code, kExitUsage) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
}

TEST(TeacherOptionsTest, BadUsageNamesTheFlagAndExits64) {
  ExpectUsageErrors({
      {"", "model = \"\": must be given"},
      {"--model m --max-logprob 1", "did you mean \"--max-logprobs\"?"},
      {"--model m --port 65536", "port = 65536: must be between 0 and 65535"},
      {"--model m --port x", "--port"},
      {"--model m --max-logprobs -1", "max_logprobs = -1: must be between 0"},
      {"--model m --max-queued-tokens 0", "max_queued_tokens = 0: must be at least 1"},
      {"--model m --dtype float8", "dtype"},
      {"--model m --log-level loud", "log_level"},
      {"--model m --shutdown-timeout -1", "shutdown_timeout"},
      {"--model m stray", "unknown argument stray"},
      {"--model m --kv-cache-memory-bytes lots",
       "kv_cache_memory_bytes = \"lots\": must be auto or a size"},
      {"--model m --cpu-memory-limit auto", "cpu_memory_limit = \"auto\""},
      {"--model m --gpu-memory-utilization 0",
       "gpu_memory_utilization = 0.0: must be above 0 and at most 1"},
      {"--model m --gpu-memory-utilization 1.1", "gpu_memory_utilization = 1.1"},
      {"--model m --plan --plan-device cuda", "plan_device = \"cuda\""},
      {"--model m --api-key k\x01", "api_key: a key must be printable ASCII without spaces"},
      {"--model m --generation-config /dir", "generation_config"},
      {"--model m --tool-call-parser x", "tool_call_parser = x: must be one of none, hermes"},
      {"--model m --cuda-graphs on", "cuda_graphs = on: must be one of auto, true, false"},
      {"--model m --kernels aten", "kernels = aten: must be one of auto, composed, custom"},
  });
}

TEST(TeacherOptionsTest, FlagsThatNeedOrExcludeOthersAreRefused) {
  ExpectUsageErrors({
      {"--model m --port 7 --grpc-port 7", "grpc_port = 7: must differ from port"},
      {"--model m --ssl-certfile c",
       "ssl_certfile = \"c\" and ssl_keyfile = \"\": must be given together"},
      {"--model m --ssl-ca-certs a", "ssl_ca_certs = \"a\" needs ssl_certfile and ssl_keyfile"},
      {"--model m --plan-device cpu:1GiB", "only --plan uses it"},
      {"--model m --cuda-graphs false --max-cudagraph-capture-size 64",
       "max_cudagraph_capture_size = 64: cuda_graphs is false"},
      {"--model m --kernels composed --cuda-graphs true",
       "cuda_graphs = true: kernels = composed has no kernel"},
      {"--model m --max-num-seqs 8 --max-cudagraph-capture-size 9",
       "max_cudagraph_capture_size 9 exceeds max_num_seqs 8"},
      {"--model m --grpc-max-connection-age-grace 9",
       "grpc_max_connection_age_grace = 9: only --grpc-max-connection-age uses"},
  });
  Accepted("--grpc-max-connection-age 9 --grpc-max-connection-age-grace 9");
}

TEST(TeacherOptionsTest, HelpAndVersionExit0) {
  const Outcome help = Parse("--help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("--max-num-batched-tokens"));
  const Outcome version = Parse("--version");
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.out, Concat("taopd-teacher ", kTeacherVersion,
                                "\nCPU kernels: ", cpu::NameOf(cpu::WidestInstructionSet()), "\n"));
}

// A secret often ends with a line feed, which no header can show.
TEST(TeacherOptionsTest, AKeyOfTheEnvironmentThatNobodyCanShowIsRefused) {
  TeacherOptions options;
  for (const char* name : {"TAOPD_API_KEY", "VLLM_API_KEY"}) {
    ASSERT_EQ(setenv(name, "secret\n", 1), 0);
    EXPECT_ERROR(AddKeysOfEnvironment(&options), kInvalidArgument, Concat(name, ": a key must be"));
    unsetenv(name);
  }
}

TEST(TeacherOptionsTest, AnUnknownLimitOfTheInstructionSetIsRefused) {
  ASSERT_EQ(setenv(cpu::kMaxIsaVariable, "avx1024", 1), 0);
  const Outcome unknown = Parse("--help");
  ASSERT_EQ(setenv(cpu::kMaxIsaVariable, "avx512_bf16", 1), 0);
  const Outcome known = Parse("--help");
  unsetenv(cpu::kMaxIsaVariable);
  EXPECT_EQ(unknown.exit_code, kExitUsage);
  EXPECT_THAT(unknown.err, HasSubstr("TAOPD_MAX_CPU_ISA is \"avx1024\", must be one of base, "));
  EXPECT_EQ(known.exit_code, 0);
}

}  // namespace
}  // namespace taopd::testing
