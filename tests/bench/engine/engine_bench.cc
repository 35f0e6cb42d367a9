// Measures scoring, prefill and decoding of a model directory by the inference engine, in one
// process and without a server. compare.py compares it with other programs.
//
//   engine_bench make CONFIG.json DIR   writes random bfloat16 weights of that configuration
//   engine_bench run DIR DTYPE THREADS score SEQUENCES PROMPT TOP_K REPEAT
//   engine_bench run DIR DTYPE THREADS generate SEQUENCES PROMPT NEW_TOKENS REPEAT
//
// After a small warm-up, `run` submits SEQUENCES prompts of PROMPT random tokens together, REPEAT
// times with other tokens, and prints one JSON object. Times are the minimum of the repetitions:
//   seconds, cpu_s          from the submission to the last result: wall-clock time, and the CPU
//                           time of all threads
//   decode_s, decode_cpu_s  from the first token of the last sequence to the end; the other
//                           sequences decode meanwhile if their prompts were computed in earlier
//                           steps
// Memory is the growth of resident memory since the start of main: loaded_bytes after loading, and
// peak_bytes at the peak (VmHWM, including pages of mapped files).
//
// The limits of this machine are measured in the same process after the engine has been destroyed:
// the rates of loops that only read memory or only multiply in registers, with all threads. The
// minimum work of a token is computed from the sizes: bytes_per_step for the packed matrices, which
// every decoding step reads once, flops_per_token for the products with the matrices of the layers,
// head_flops for one row of the head, and attention_flops for the two products of a query and a key
// in all heads of all layers.
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <latch>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/base/memory.h"
#include "common/base/thread_waits.h"
#include "common/engine/engine_factory.h"
#include "common/io/file.h"
#include "common/memory/model_memory.h"
#include "common/model/config/dtype.h"
#include "common/model/weights/model_files.h"
#include "tests/bench/gemm/machine_peaks.h"
#include "tests/bench/process.h"

namespace taopd {
namespace {

struct Case {
  bool scores = false;
  int64_t num_sequences = 0;
  int64_t num_prompt_tokens = 0;
  int64_t num_results = 0;  // top_k or new tokens
};

// A point in time or a duration by two clocks, in seconds.
struct Times {
  double wall_s = 0;
  double cpu_s = 0;  // all threads of this process

  static Times Now() {
    const auto wall = std::chrono::steady_clock::now().time_since_epoch();
    return {std::chrono::duration<double>(wall).count(), ProcessorSeconds()};
  }
  Times operator-(const Times& from) const { return {wall_s - from.wall_s, cpu_s - from.cpu_s}; }
  void Lower(const Times& other) {
    wall_s = std::min(wall_s, other.wall_s);
    cpu_s = std::min(cpu_s, other.cpu_s);
  }
};

struct Outcome {
  Times all;
  Times decode;
};

InferenceRequest MakeRequest(const Case& the_case, int64_t vocab_size, RandomStream* random) {
  InferenceRequest request;
  for (int64_t t = 0; t < the_case.num_prompt_tokens; ++t) {
    request.token_ids.push_back(static_cast<int32_t>(random->NextBelow(vocab_size)));
  }
  if (the_case.scores) {
    request.score.emplace().top_k = static_cast<int32_t>(the_case.num_results);
  } else {
    SamplingParams& sampling = request.sampling.emplace();
    sampling.temperature = 0;
    sampling.log_probs = false;
    sampling.max_new_tokens = the_case.num_results;
    sampling.ignore_eos = true;
  }
  return request;
}

// Submits the case's requests in one batch and waits for all results.
Outcome RunOnce(const Case& the_case, uint64_t seed, InferenceEngine* engine) {
  RandomStream random(seed);
  std::latch unfinished(the_case.num_sequences);
  // Written on the engine's thread; read when `unfinished` has reached 0.
  std::vector<int64_t> num_tokens(the_case.num_sequences);
  Times first_tokens, last_token;
  RequestBatch batch;
  for (int64_t i = 0; i < the_case.num_sequences; ++i) {
    InferenceRequest request = MakeRequest(the_case, engine->limits().vocab_size, &random);
    request.on_token = [&, i](const GeneratedTokens&, bool) {
      last_token = Times::Now();
      if (++num_tokens[i] == 1) first_tokens = last_token;
    };
    batch.emplace_back(std::move(request), [&](const absl::StatusOr<InferenceResult>& result) {
      OrDie(result.status());
      unfinished.count_down();
    });
  }
  const Times start = Times::Now();
  engine->SubmitBatch(std::move(batch));
  unfinished.wait();
  return {Times::Now() - start, last_token - first_tokens};
}

void Make(const std::string& config_path, const std::string& model_dir) {
  const ModelConfig config = OrDie(ParseModelConfig(OrDie(ReadFileToString(config_path))));
  const auto decoder = OrDie(MakeDecoder(config, {"bfloat16", "cpu", false}, RandomStream(1)));
  OrDie(SaveDecoder(*decoder, model_dir));
}

void Run(const std::string& model_dir, const std::string& dtype, int num_threads,
         const Case& the_case, int64_t repeat) {
  const int64_t start_bytes = StatusBytes("VmRSS");
  EngineOptions options;
  if (the_case.scores) options.kv_cache_bytes = 0;
  nlohmann::ordered_json result;
  const Times start = Times::Now();
  LoadedEngine loaded = OrDie(LoadEngine(model_dir, dtype, "cpu", num_threads, options));
  result["load_s"] = (Times::Now() - start).wall_s;
  result["loaded_bytes"] = StatusBytes("VmRSS") - start_bytes;
  result["threads"] = at::get_num_threads();

  RunOnce({the_case.scores, 1, 16, 2}, 1, loaded.engine.get());
  Outcome best = {{1e9, 1e9}, {1e9, 1e9}};
  for (int64_t i = 0; i < repeat; ++i) {
    const Outcome outcome = RunOnce(the_case, 2 + i, loaded.engine.get());
    best.all.Lower(outcome.all);
    best.decode.Lower(outcome.decode);
  }
  result["seconds"] = best.all.wall_s;
  result["cpu_s"] = best.all.cpu_s;
  result["decode_s"] = best.decode.wall_s;
  result["decode_cpu_s"] = best.decode.cpu_s;
  result["peak_bytes"] = StatusBytes("VmHWM") - start_bytes;
  loaded.engine.reset();

  const ModelConfig config =
      OrDie(ParseModelConfig(OrDie(ReadFileToString(model_dir + "/config.json"))));
  const int64_t head_size = config.vocab_size * config.hidden_size;
  const int64_t num_embeddings = config.tie_word_embeddings ? 1 : 2;
  const int64_t layers_size = loaded.num_parameters - num_embeddings * head_size;
  const bool is_float32 = loaded.dtype == "float32";
  const DataType packed = OrDie(ParseDtype(loaded.dtype, ""));
  result["bytes_per_step"] =
      PackedProjectionBytes(config, packed) + PackedHeadBytes(config, packed);
  result["flops_per_token"] = 2 * layers_size;
  result["head_flops"] = 2 * head_size;
  result["attention_flops"] =
      4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim;
  const bench::MachinePeaks peaks = bench::PeaksOfThreads(at::get_num_threads());
  result["peak_gflops"] = is_float32 ? peaks.float32_gflops() : peaks.bfloat16_gflops();
  result["read_gb_per_s"] = peaks.read_gb_per_s;
  std::cout << result.dump() << std::endl;
}

int Main(const std::vector<std::string>& arguments) {
  const bool runs = arguments.size() == 9 && arguments[0] == "run" &&
                    (arguments[4] == "score" || arguments[4] == "generate");
  if (arguments.size() == 3 && arguments[0] == "make") {
    Make(arguments[1], arguments[2]);
  } else if (runs) {
    const Case the_case = {arguments[4] == "score", std::stoll(arguments[5]),
                           std::stoll(arguments[6]), std::stoll(arguments[7])};
    Run(arguments[1], arguments[2], std::stoi(arguments[3]), the_case, std::stoll(arguments[8]));
  } else {
    std::cerr << "usage: engine_bench make CONFIG.json DIR | run DIR DTYPE THREADS "
                 "(score | generate) SEQUENCES PROMPT (TOP_K | NEW_TOKENS) REPEAT\n";
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace taopd

[[gnu::used, gnu::section(".preinit_array")]] auto* const restart_at_load =
    taopd::RestartWithShortThreadWaits;

int main(int argc, char** argv) {
  taopd::KeepFreedMemory();  // as the teacher does
  return taopd::Main(std::vector<std::string>(argv + 1, argv + argc));
}
