// Measures tokens per second on real text: a novel, grade-school problems (GSM8K) and competition
// problems with their LaTeX (DAPO-Math):
//   build/cpu/bin/tokenizer_bench [--benchmark_filter=REGEX]
//
//   Encode/.../threads:N   encodes the text repeatedly, as a run over its data does; reports
//                          the core's time for one thread, and the clock's for several
//   FirstPass/...          encodes the text once, with a tokenizer that has seen no word yet
//
// The texts and tokenizers come from the shared data (TAOPD_SHARED_DATA, or ../shared/data).
#include <benchmark/benchmark.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "common/io/parquet.h"
#include "common/text/tokenizer/tokenizer.h"
#include "tests/support/files.h"

namespace taopd {
namespace {

std::vector<std::string> Prompts(const std::string& parquet_path) {
  std::vector<std::string> texts;
  const auto reader = ParquetReader::Open(parquet_path);
  if (!reader.ok()) return texts;
  const absl::Status status = (*reader)->ForEachRow({"prompt"}, [&](const auto& row, int64_t) {
    texts.push_back(row["prompt"][0]["content"].template get<std::string>());
    return absl::OkStatus();
  });
  return status.ok() ? texts : std::vector<std::string>();
}

// Returns the paragraphs of a novel, the questions and answers of GSM8K, or the prompts of a data
// set.
std::vector<std::string> Texts(const std::string& name) {
  const std::string path = testing::SharedData(name);
  std::vector<std::string> texts;
  if (path.empty()) return texts;
  if (path.ends_with(".parquet")) return Prompts(path);
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

int64_t EncodeAll(const Tokenizer& tokenizer, const std::vector<std::string>& texts,
                  int num_threads) {
  std::atomic<int64_t> num_tokens = 0;
  // Each free thread takes the next text, since the lengths differ.
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    int64_t num_own_tokens = 0;
    for (size_t i = next++; i < texts.size(); i = next++) {
      num_own_tokens += static_cast<int64_t>(tokenizer.Encode(texts[i]).size());
    }
    num_tokens += num_own_tokens;
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < num_threads; ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return num_tokens;
}

void Encode(benchmark::State& state, const std::string& tokenizer_name,
            const std::string& text_name, int num_threads, bool first_pass) {
  const std::string dir = testing::SharedData("tokenizers/" + tokenizer_name);
  const std::vector<std::string> texts = Texts(text_name);
  if (dir.empty() || texts.empty()) return state.SkipWithError("shared data is absent");
  auto tokenizer = Tokenizer::Load(dir);
  if (!tokenizer.ok()) return state.SkipWithError("tokenizer does not load");
  int64_t num_tokens = 0, num_bytes = 0;
  for (const std::string& text : texts) num_bytes += static_cast<int64_t>(text.size());
  for (auto _ : state) {
    if (first_pass) {
      state.PauseTiming();
      tokenizer = Tokenizer::Load(dir);
      state.ResumeTiming();
    }
    num_tokens = EncodeAll(**tokenizer, texts, num_threads);
  }
  const auto iterations = static_cast<double>(state.iterations());
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(num_tokens) * iterations, benchmark::Counter::kIsRate);
  state.SetBytesProcessed(state.iterations() * num_bytes);
}

void RegisterAll() {
  struct Text {
    const char* name;
    const char* path;
  };
  constexpr Text kTexts[] = {{"war-and-peace", "text/war-and-peace.txt"},
                             {"gsm8k", "text/gsm8k_train.jsonl"},
                             {"dapo-math", "dapo-math-17k-processed.parquet"}};
  for (const char* tokenizer :
       {"qwen3", "qwen2.5", "llama3.1", "deepseek-r1-distill-qwen", "gpt2"}) {
    for (const Text& text : kTexts) {
      const std::string name = std::string("/") + tokenizer + "/" + text.name;
      for (const int num_threads : {1, 2}) {
        auto* run = benchmark::RegisterBenchmark(
            ("Encode" + name + "/threads:" + std::to_string(num_threads)).c_str(),
            [=](benchmark::State& state) {
              Encode(state, tokenizer, text.path, num_threads, false);
            });
        run->Unit(benchmark::kMillisecond);
        if (num_threads > 1) run->UseRealTime();
      }
      benchmark::RegisterBenchmark(
          ("FirstPass" + name).c_str(),
          [=](benchmark::State& state) { Encode(state, tokenizer, text.path, 1, true); })
          ->Unit(benchmark::kMillisecond)
          ->Iterations(3);
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
