// Measures loading and prefill of a model directory. compare.py compares it with transformers.
//
//   prefill_bench make CONFIG.json DIR       random bfloat16 weights of that configuration
//   prefill_bench run DIR NUM_TOKENS REPEAT  one JSON object on standard output
//
// Times are wall-clock times. `prefill_s` is the minimum of REPEAT runs after one warm-up, for the
// hidden states of all tokens and the logits of the last. Peaks are the growth of resident memory
// (VmHWM, including pages of mapped files). `read_s` is the time to read all bytes of the weights
// from the page cache into fresh memory of their size.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/io/file.h"
#include "common/model/decoder.h"
#include "kernels/torch/gemm/linear.h"

namespace taopd {
namespace {

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Returns a field of /proc/self/status in bytes.
int64_t StatusBytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

// Returns the peak of resident memory during `work` above the level before.
int64_t PeakBytes(const std::function<void()>& work) {
  std::ofstream("/proc/self/clear_refs") << "5";  // VmHWM = VmRSS
  const int64_t before = StatusBytes("VmRSS");
  work();
  return StatusBytes("VmHWM") - before;
}

int64_t ReadWeights(const std::string& model_dir) {
  int64_t num_bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(model_dir)) {
    if (entry.path().extension() != ".safetensors") continue;
    const size_t size = entry.file_size();
    const std::unique_ptr<char[]> bytes(new char[size]);  // the first write allocates the pages
    std::FILE* file = std::fopen(entry.path().c_str(), "rb");
    num_bytes += static_cast<int64_t>(std::fread(bytes.get(), 1, size, file));
    std::fclose(file);
  }
  return num_bytes;
}

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::cerr << value.status().ToString() << "\n";
  std::exit(1);
}

void Make(const std::string& config_path, const std::string& model_dir) {
  const ModelConfig config = OrDie(ParseModelConfig(OrDie(ReadFileToString(config_path))));
  const auto decoder = OrDie(MakeDecoder(config, {"bfloat16", "cpu", false}, RandomStream(1)));
  const absl::Status saved = SaveDecoder(*decoder, model_dir);
  if (!saved.ok()) std::cerr << saved.ToString() << "\n";
}

void Run(const std::string& model_dir, int64_t num_tokens, int64_t repeat) {
  nlohmann::ordered_json result;
  result["threads"] = at::get_num_threads();
  int64_t weight_bytes = ReadWeights(model_dir);  // fills the page cache
  result["read_s"] = Seconds([&] { weight_bytes = ReadWeights(model_dir); });
  result["weight_bytes"] = weight_bytes;
  // A model that is loaded for training has a copy of every parameter.
  std::unique_ptr<Decoder> decoder;
  const auto load = [&](bool requires_grad) {
    const DecoderOptions options = {"auto", "cpu", requires_grad};
    double seconds = 0;
    const int64_t peak = PeakBytes(
        [&] { seconds = Seconds([&] { decoder = OrDie(LoadDecoder(model_dir, options)); }); });
    result[requires_grad ? "copy_load_s" : "load_s"] = seconds;
    result[requires_grad ? "copy_load_peak_bytes" : "load_peak_bytes"] = peak;
  };
  load(true);
  decoder.reset();
  load(false);

  std::vector<int32_t> ids;
  RandomStream random(2);
  for (int64_t i = 0; i < num_tokens; ++i) {
    ids.push_back(static_cast<int32_t>(random.NextBelow(decoder->config().vocab_size)));
  }
  const PackedBatch batch = PackedBatch::FromSequences({ids}, at::kCPU);
  const c10::InferenceMode inference;
  const auto prefill = [&] {
    const at::Tensor hidden_TH = decoder->Forward(batch);
    const at::Tensor logits_1V =
        Linear(hidden_TH.narrow(0, num_tokens - 1, 1), decoder->lm_head(), at::Tensor());
    TORCH_CHECK(logits_1V.sum().item<double>() == logits_1V.sum().item<double>());
  };
  prefill();
  std::vector<double> seconds;
  for (int64_t i = 0; i < repeat; ++i) seconds.push_back(Seconds(prefill));
  result["prefill_s"] = *std::min_element(seconds.begin(), seconds.end());
  std::cout << result.dump() << std::endl;
}

}  // namespace
}  // namespace taopd

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 3 && arguments[0] == "make") {
    taopd::Make(arguments[1], arguments[2]);
  } else if (arguments.size() == 4 && arguments[0] == "run") {
    taopd::Run(arguments[1], std::stoll(arguments[2]), std::stoll(arguments[3]));
  } else {
    std::cerr << "usage: prefill_bench make CONFIG.json DIR | run DIR NUM_TOKENS REPEAT\n";
    return 1;
  }
  return 0;
}
