// Tokens a second on real text, one core and several.
//   build/cpu/bin/tokenizer_bench [--benchmark_filter=REGEX]
// Texts and tokenizers are the shared ones (TAOPD_SHARED_DATA, or ../shared/data).
#include <benchmark/benchmark.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "common/text/encode_batch.h"
#include "common/text/tokenizer.h"
#include "tests/support/files.h"

namespace taopd {
namespace {

// A novel by paragraphs, or the questions and answers of GSM8K.
std::vector<std::string> Texts(const std::string& name) {
  const std::string path = testing::SharedData("text/" + name);
  std::vector<std::string> texts;
  if (path.empty()) return texts;
  std::istringstream lines(testing::ReadFile(path));
  std::string paragraph;
  for (std::string line; std::getline(lines, line);) {
    if (path.ends_with(".jsonl")) {
      const auto row = nlohmann::json::parse(line);
      texts.push_back(row["question"].get<std::string>() + "\n" + row["answer"].get<std::string>());
      continue;
    }
    paragraph += line + "\n";
    if (paragraph.size() > 2000) texts.push_back(std::exchange(paragraph, ""));
  }
  return texts;
}

void Encode(benchmark::State& state, const std::string& tokenizer_name, const std::string& text_name,
            int num_threads) {
  const std::string dir = testing::SharedData("tokenizers/" + tokenizer_name);
  const std::vector<std::string> texts = Texts(text_name);
  if (dir.empty() || texts.empty()) return state.SkipWithError("shared data is absent");
  const auto tokenizer = Tokenizer::Load(dir);
  if (!tokenizer.ok()) return state.SkipWithError("tokenizer does not load");
  int64_t num_tokens = 0, num_bytes = 0;
  for (const std::string& text : texts) num_bytes += static_cast<int64_t>(text.size());
  for (auto _ : state) {
    num_tokens = 0;
    if (num_threads == 1) {
      for (const std::string& text : texts) num_tokens += (*tokenizer)->Encode(text).size();
    } else {
      for (const auto& ids : EncodeBatch(**tokenizer, texts, false, num_threads)) num_tokens += ids.size();
    }
  }
  const auto iterations = static_cast<double>(state.iterations());
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(num_tokens) * iterations, benchmark::Counter::kIsRate);
  state.SetBytesProcessed(state.iterations() * num_bytes);
}

void RegisterAll() {
  for (const char* tokenizer : {"qwen3", "llama3.1", "gpt2"}) {
    for (const char* text : {"war-and-peace.txt", "gsm8k_train.jsonl"}) {
      for (const int num_threads : {1, 2}) {
        const std::string name =
            std::string("Encode/") + tokenizer + "/" + text + "/threads:" + std::to_string(num_threads);
        benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
          Encode(state, tokenizer, text, num_threads);
        })->Unit(benchmark::kMillisecond)->UseRealTime();
      }
    }
  }
}

}  // namespace
}  // namespace taopd

int main(int argc, char** argv) {
  taopd::RegisterAll();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
