// Measures the cost of the teacher's protocols. The bare engine, and clients of a server in this
// process on the same engine, score the same sequences. compare.py makes a table of the output.
//
//   teacher_bench MODEL_DIR THREADS TOKENS TOP_K SEQUENCES_PER_CASE ROUNDS CLIENTS[,CLIENTS...]
//                 WAYS
//
// For each number of clients, in each round, the WAYS take turns: "engine", "metered" (the engine
// behind its metrics), "grpc", "http_compact", "http_json", or some of them. Every other round
// reverses the order, so that slow changes of the machine affect all alike. A case is
// SEQUENCES_PER_CASE random sequences of TOKENS tokens (at least four for each client, so that most
// of them follow an answer). The clients are threads that score one sequence after another. Prefix
// caching is off, so that no case profits from an earlier one. Prints one line of JSON per case,
// and one for the numbers that do not depend on the case:
//   wall_s, cpu_s    wall-clock time of the case, and the CPU time of all threads, including those
//                    of the clients
//   engine_s         the part of wall_s that the engine spent in forward passes; the rest lies
//                    between an answer and the next step
//   latency_ms       latency of each sequence
//   answer_bytes     size of one answer: the message or the body
//   call_ms, call_cpu_ms  minimum time of one call to an engine that answers at once
#include <absl/strings/str_split.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/random.h"
#include "common/base/thread_waits.h"
#include "common/engine/engine_factory.h"
#include "server/grpc/grpc_server.h"
#include "server/http/http_server.h"
#include "server/metrics/metered_engine.h"
#include "tests/bench/process.h"
#include "tests/bench/teacher/instant_engine.h"
#include "tests/bench/teacher/metrics_cost.h"
#include "tests/bench/teacher/scorers.h"
#include "tests/bench/teacher/wire_counter.h"

namespace taopd::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Wraps an engine that somebody else owns for an interface that takes ownership.
class BorrowedEngine final : public InferenceEngine {
 public:
  explicit BorrowedEngine(InferenceEngine* engine) : engine_(engine) {}
  std::vector<RequestHandle> SubmitBatch(RequestBatch requests) override {
    return engine_->SubmitBatch(std::move(requests));
  }
  void Cancel(RequestHandle handle) override { engine_->Cancel(handle); }
  void Drain(absl::Time deadline) override { engine_->Drain(deadline); }
  void ReleaseKvCache() override { engine_->ReleaseKvCache(); }
  EngineLimits limits() const override { return engine_->limits(); }
  EngineStats stats() const override { return engine_->stats(); }

 private:
  InferenceEngine* const engine_;
};

struct Settings {
  int32_t top_k = 16;
  int64_t num_tokens = 0;
  int num_sequences = 0;
};

class Bench {
 public:
  Bench(InferenceEngine* engine, const Settings& settings)
      : engine_(engine),
        settings_(settings),
        metered_(MakeMeteredEngine(std::make_unique<BorrowedEngine>(engine),
                                   metrics_.OfModel("bench"), nullptr, taopd::Clock::Real())) {
    auto model = std::make_shared<ServedModel>();
    model->engine = MakeMeteredEngine(std::make_unique<BorrowedEngine>(engine),
                                      metrics_.OfModel("bench"), nullptr, taopd::Clock::Real());
    model->limits = engine->limits();
    model->name = "bench";
    model->revision = "bench";
    state_.SetReady(std::move(model));
    auto grpc = GrpcServer::Listen("127.0.0.1", 0, &state_, &metrics_);
    auto http = HttpServer::Listen("127.0.0.1", 0, &state_, &metrics_, [] {});
    TAOPD_CHECK(grpc.ok() && http.ok());
    grpc_ = *std::move(grpc);
    http_ = *std::move(http);
  }
  ~Bench() {
    grpc_->Shutdown(absl::Now() + absl::Seconds(5));
    http_->Shutdown(absl::Now() + absl::Seconds(5));
  }

  static std::vector<std::string> Ways() {
    return {"engine", "metered", "grpc", "http_compact", "http_json"};
  }

  nlohmann::ordered_json Run(const std::string& way, int num_clients, uint64_t seed) {
    const int total = std::max(settings_.num_sequences, kMinOfClient * num_clients);
    const std::vector<std::vector<int32_t>> sequences = Sequences(total, seed);
    std::vector<std::unique_ptr<Scorer>> scorers;
    for (int c = 0; c < num_clients; ++c) {
      scorers.push_back(Make(way, 0));
      scorers.back()->Score({1, 2, 3}, settings_.top_k);  // connects
    }
    std::vector<double> latency_ms(static_cast<size_t>(total));
    std::atomic<int> next{0};
    const double cpu_s = ProcessorSeconds(), engine_s = EngineSeconds();
    const auto start = Clock::now();
    std::vector<std::thread> threads;
    for (const auto& scorer : scorers) {
      threads.emplace_back([&, client = scorer.get()] {
        for (int i; (i = next++) < total;) {
          const auto begin = Clock::now();
          client->Score(sequences[static_cast<size_t>(i)], settings_.top_k);
          latency_ms[static_cast<size_t>(i)] =
              std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const double wall_s = std::chrono::duration<double>(Clock::now() - start).count();
    return {{"way", way},
            {"clients", num_clients},
            {"sequences", total},
            {"wall_s", wall_s},
            {"cpu_s", ProcessorSeconds() - cpu_s},
            {"engine_s", EngineSeconds() - engine_s},
            {"latency_ms", latency_ms}};
  }

  // Returns the costs of one call of one client to an engine that answers inside Submit, minus the
  // engine's own time.
  nlohmann::ordered_json CallCosts() {
    nlohmann::ordered_json costs;
    constexpr int kRounds = 3, kCalls = 40;
    for (const std::string& way : Ways()) {
      double wall_ms = 1e9, cpu_ms = 1e9;
      const std::vector<int32_t> sequence = Sequences(1, 99)[0];
      const auto scorer = Make(way, 0);
      scorer->Score(sequence, settings_.top_k);
      for (int round = 0; round < kRounds; ++round) {
        const double cpu_s = ProcessorSeconds();
        const auto start = Clock::now();
        for (int i = 0; i < kCalls; ++i) scorer->Score(sequence, settings_.top_k);
        const std::chrono::duration<double, std::milli> took = Clock::now() - start;
        wall_ms = std::min(wall_ms, took.count() / kCalls);
        cpu_ms = std::min(cpu_ms, 1e3 * (ProcessorSeconds() - cpu_s) / kCalls);
      }
      costs["call_ms"][way] = wall_ms;
      costs["call_cpu_ms"][way] = cpu_ms;
    }
    return costs;
  }

  // Returns the sizes of one sequence's answers, after checking that all ways give the same scores.
  nlohmann::ordered_json Sizes() {
    nlohmann::ordered_json sizes;
    const std::vector<int32_t> sequence = Sequences(1, 99)[0];
    const Scored expected = Make("engine", 0)->Score(sequence, settings_.top_k);
    for (const std::string& way : Ways()) {
      const Scored scored = Make(way, 0)->Score(sequence, settings_.top_k);
      TAOPD_CHECK(scored.last_log_probs == expected.last_log_probs);
      if (scored.answer_bytes > 0) sizes["answer_bytes"][way] = scored.answer_bytes;
    }
    for (const std::string way : {"grpc", "http_compact", "http_json"}) {
      WireCounter wire(way == "grpc" ? grpc_->port() : http_->port());
      auto scorer = Make(way, wire.port());
      scorer->Score({1, 2, 3}, settings_.top_k);
      const int64_t before = wire.bytes_to_client(), sent = wire.bytes_to_server();
      for (int i = 0; i < kWireCalls; ++i) scorer->Score(sequence, settings_.top_k);
      sizes["wire_bytes_per_answer"][way] = (wire.bytes_to_client() - before) / kWireCalls;
      sizes["wire_bytes_per_request"][way] = (wire.bytes_to_server() - sent) / kWireCalls;
    }
    return sizes;
  }

 private:
  static constexpr int kMinOfClient = 4;
  static constexpr int kWireCalls = 8;

  double EngineSeconds() const {
    const EngineStats stats = engine_->stats();
    return stats.layer_seconds + stats.head_seconds;
  }
  // If `port` is 0, uses the server's port.
  std::unique_ptr<Scorer> Make(const std::string& way, int port) {
    if (way == "engine") return MakeEngineScorer(engine_);
    if (way == "metered") return MakeEngineScorer(metered_.get());
    if (way == "grpc") return MakeGrpcScorer(port != 0 ? port : grpc_->port());
    return MakeHttpScorer(port != 0 ? port : http_->port(), way == "http_compact");
  }
  std::vector<std::vector<int32_t>> Sequences(int num, uint64_t seed) const {
    RandomStream random(seed);
    std::vector<std::vector<int32_t>> sequences(static_cast<size_t>(num));
    for (auto& sequence : sequences) {
      for (int64_t t = 0; t < settings_.num_tokens; ++t) {
        sequence.push_back(static_cast<int32_t>(
            random.NextBelow(static_cast<uint64_t>(engine_->limits().vocab_size))));
      }
    }
    return sequences;
  }

  InferenceEngine* const engine_;
  const Settings settings_;
  ServerMetrics metrics_;
  const std::unique_ptr<InferenceEngine> metered_;
  ServingState state_{taopd::Clock::Real(), absl::Seconds(600)};
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<HttpServer> http_;
};

int Main(const std::vector<std::string>& arguments) {
  if (arguments.size() != 8) {
    std::cerr << "usage: teacher_bench MODEL_DIR THREADS TOKENS TOP_K SEQUENCES ROUNDS CLIENTS,... "
                 "WAY,...\n";
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  EngineOptions options;
  options.prefix_caching = false;
  options.kv_cache_bytes = int64_t{1} << 30;
  const LoadedEngine loaded =
      OrDie(LoadEngine(arguments[0], "auto", "cpu", std::stoi(arguments[1]), options));
  const Settings settings = {static_cast<int32_t>(std::stoi(arguments[3])),
                             std::stoll(arguments[2]), std::stoi(arguments[4])};
  Bench bench(loaded.engine.get(), settings);
  nlohmann::ordered_json facts = bench.Sizes();
  facts["num_parameters"] = loaded.num_parameters;
  facts["dtype"] = loaded.dtype;
  {
    InstantEngine instant(loaded.engine->limits());
    facts.update(Bench(&instant, settings).CallCosts());
  }
  const MetricsCost cost = MeasureMetricsCost();
  facts["metrics_ns_per_score"] = cost.ns_per_score;
  facts["metrics_ns_per_token"] = cost.ns_per_token;
  std::cout << facts.dump() << std::endl;
  const std::vector<std::string> numbers = absl::StrSplit(arguments[6], ',');
  std::vector<std::string> ways = absl::StrSplit(arguments[7], ',');
  for (const std::string& number : numbers) {
    for (int round = 0; round < std::stoi(arguments[5]); ++round) {
      if (round > 0) std::reverse(ways.begin(), ways.end());
      for (const std::string& way : ways) {
        auto line = bench.Run(way, std::stoi(number), 1 + static_cast<uint64_t>(round));
        line["round"] = round;
        std::cout << line.dump() << std::endl;
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace taopd::bench

[[gnu::used, gnu::section(".preinit_array")]] auto* const restart_at_load =
    taopd::RestartWithShortThreadWaits;

int main(int argc, char** argv) {
  taopd::StopLookingForLockCycles();
  return taopd::bench::Main(std::vector<std::string>(argv + 1, argv + argc));
}
