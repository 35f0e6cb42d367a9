// Measures structured output with the vocabulary of Qwen2.5 (151,665 ids):
//   build/cpu/bin/grammar_bench [--benchmark_filter=REGEX]
//
//   Start      starts taopd-grammar, gives it the vocabulary and compiles a small grammar
//   Compile    compiles a grammar, in a process that has the vocabulary
//   Mask       requests the mask after a token and waits for it: the cost in a step without other
//              work
//   Prepared   the same with 1 ms of other work, which is subtracted, between the request and the
//              wait: the cost in a step whose model computes meanwhile
//
// The tokenizer comes from the shared data (TAOPD_SHARED_DATA, or ../shared/data).
#include <absl/time/clock.h>
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "common/text/tokenizer/tokenizer.h"
#include "server/structured/grammar_compiler.h"
#include "tests/support/files.h"

namespace taopd {
namespace {

constexpr int32_t kEos = 151643;
constexpr char kSchema[] = R"({"type": "object", "properties": {
    "name": {"type": "string"}, "age": {"type": "integer"},
    "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["name", "age", "tags"]})";
constexpr char kText[] =
    R"({"name": "A person of some importance, with a name that is long", "age": 47, "tags": ["one", "two things", "three"]})";

const Tokenizer& TheTokenizer() {
  static const auto tokenizer = *Tokenizer::Load(testing::SharedData("tokenizers/qwen2.5"));
  return *tokenizer;
}

std::unique_ptr<GrammarCompiler> NewCompiler() {
  static const auto token_bytes = TokenBytesOf(TheTokenizer(), TheTokenizer().vocab_size());
  return std::make_unique<GrammarCompiler>(token_bytes, std::vector<int32_t>{kEos});
}

GrammarSpec SpecOf(int i) {
  if (i == 0) return {.text = kSchema};
  if (i == 1) return {.text = R"({"type": "object"})"};
  return {.kind = GrammarSpec::Kind::kRegex,
          .text = R"(\{"name": "[^"]*", "age": \d+, "tags": .*)"};
}

void Start(benchmark::State& state) {
  for (auto _ : state) {
    const auto compiler = NewCompiler();
    if (!compiler->Compile({.spec = {.kind = GrammarSpec::Kind::kRegex, .text = "a"}, .field = "f"})
             .ok())
      state.SkipWithError("no grammar");
  }
}
BENCHMARK(Start)->Unit(benchmark::kMillisecond)->UseRealTime();

void Compile(benchmark::State& state) {
  const auto compiler = NewCompiler();
  int64_t number = 0;
  for (auto _ : state) {
    GrammarSpec spec = SpecOf(static_cast<int>(state.range(0)));
    // Every text is new, so that none is found in the cache.
    spec.text += std::string(static_cast<size_t>(++number), ' ');
    if (spec.kind == GrammarSpec::Kind::kRegex)
      spec.text = "(" + std::to_string(number) + ")?" + spec.text;
    const auto grammar = compiler->Compile({.spec = spec, .field = "f"});
    if (!grammar.ok()) state.SkipWithError(grammar.status().ToString().c_str());
  }
}
BENCHMARK(Compile)->DenseRange(0, 2)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(10);

void RunMasks(benchmark::State& state, absl::Duration other_work) {
  const auto compiler = NewCompiler();
  const auto grammar =
      compiler->Compile({.spec = SpecOf(static_cast<int>(state.range(0))), .field = "f"});
  if (!grammar.ok()) return state.SkipWithError(grammar.status().ToString().c_str());
  const std::vector<int32_t> ids = TheTokenizer().Encode(kText);
  std::vector<uint64_t> bits((TheTokenizer().vocab_size() + 63) / 64);
  double seconds = 0.0;
  int64_t num_masks = 0;
  for (auto _ : state) {
    const auto mask = Grammar::NewMask(*grammar, {});
    for (size_t n = 0; n < ids.size(); ++n) {
      const std::span<const int32_t> generated(ids.data(), n);
      const absl::Time begun_at = absl::Now();
      mask->Prepare(generated);
      const absl::Time prepared_at = absl::Now();
      while (absl::Now() < prepared_at + other_work) {
      }
      const absl::Time waits_at = absl::Now();
      if (!mask->Mask(generated, bits).ok()) return state.SkipWithError("no mask");
      seconds += absl::ToDoubleSeconds((prepared_at - begun_at) + (absl::Now() - waits_at));
      ++num_masks;
    }
  }
  state.counters["us_per_token"] = 1e6 * seconds / static_cast<double>(num_masks);
}
void Mask(benchmark::State& state) { RunMasks(state, absl::ZeroDuration()); }
void Prepared(benchmark::State& state) { RunMasks(state, absl::Milliseconds(1)); }
BENCHMARK(Mask)->DenseRange(0, 2)->UseRealTime();
BENCHMARK(Prepared)->DenseRange(0, 2)->UseRealTime();

}  // namespace
}  // namespace taopd

int main(int argc, char** argv) {
  if (taopd::testing::SharedData("tokenizers/qwen2.5").empty()) return 0;
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
