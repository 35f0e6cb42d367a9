#include "trainer/run/records/run_output.h"

#include <absl/strings/str_replace.h>
#include <unistd.h>

#include <iostream>

#include "common/base/log.h"
#include "common/io/buffered_jsonl.h"
#include "common/io/file.h"
#include "common/metrics/console_sink.h"
#include "common/metrics/jsonl_sink.h"
#include "common/metrics/prometheus.h"
#include "common/metrics/tensorboard_sink.h"

namespace taopd {
namespace {

void LogFailure(const absl::Status& status) {
  if (!status.ok()) LogWarning("a record could not be written", {{"error", status}});
}

// Markdown shows indented text as it is.
std::string AsCode(const std::string& text) {
  return "    " + absl::StrReplaceAll(text, {{"\n", "\n    "}});
}

class RunOutputFiles final : public RunOutput {
 public:
  RunOutputFiles(std::unique_ptr<JsonlSink> jsonl, BufferedJsonlWriter samples,
                 std::unique_ptr<TensorBoardSink> tensorboard, const ConsoleOptions& console,
                 Clock* clock)
      : samples_(std::move(samples)), jsonl_(jsonl.get()), tensorboard_(tensorboard.get()) {
    auto prometheus = std::make_unique<PrometheusSink>();
    prometheus_ = prometheus.get();
    sinks_.Add(std::move(jsonl));
    sinks_.Add(std::move(tensorboard));
    sinks_.Add(std::move(prometheus));
    sinks_.Add(std::make_unique<ConsoleSink>(console, &std::cout, clock));
  }

  void Write(int64_t step, const Metrics& metrics) override {
    LogFailure(sinks_.Write(step, metrics));
  }

  void WriteSamples(int64_t step, const std::string& when,
                    const std::vector<EvalSample>& samples) override {
    TextTable table = {{"prompt", "response", "answer", "correct"}};
    for (const EvalSample& sample : samples) {
      samples_.Write({{"step", step},
                      {"when", when},
                      {"id", sample.id},
                      {"prompt", sample.prompt},
                      {"response", sample.response},
                      {"answer", sample.answer},
                      {"correct", sample.correct}});
      table.push_back({AsCode(sample.prompt), AsCode(sample.response), AsCode(sample.answer),
                       sample.correct ? "yes" : "no"});
    }
    if (!samples.empty()) LogFailure(tensorboard_->WriteText(step, "samples/" + when, table));
  }

  void Sync() override {
    // Samples come first, because the line of metrics shows that an evaluation is complete.
    LogFailure(samples_.Sync());
    LogFailure(jsonl_->file().Sync());
  }

  int64_t metrics_bytes() const override { return SizeOrZero(jsonl_->SizeBytes()); }
  int64_t samples_bytes() const override { return SizeOrZero(samples_.SizeBytes()); }
  int64_t num_waiting() const override {
    return samples_.num_waiting() + jsonl_->file().num_waiting();
  }
  int64_t num_dropped() const override {
    return samples_.num_dropped() + jsonl_->file().num_dropped();
  }
  std::string PrometheusText() const override { return prometheus_->Page(); }

 private:
  static int64_t SizeOrZero(const absl::StatusOr<int64_t>& size) {
    LogFailure(size.status());
    return size.ok() ? *size : 0;
  }

  MetricFanout sinks_;
  BufferedJsonlWriter samples_;
  JsonlSink* jsonl_;              // owned by sinks_
  TensorBoardSink* tensorboard_;  // owned by sinks_
  PrometheusSink* prometheus_;    // owned by sinks_
};

}  // namespace

absl::StatusOr<std::unique_ptr<RunOutput>> RunOutput::Open(const RunOutputOptions& options,
                                                           Clock* clock) {
  const bool resumed = options.resume_step >= 0;
  TAOPD_RETURN_IF_ERROR(MakeDirectories(options.run_dir));
  TAOPD_ASSIGN_OR_RETURN(auto jsonl, JsonlSink::Open(options.run_dir + "/metrics.jsonl", clock,
                                                     resumed ? options.metrics_bytes : 0));
  TAOPD_ASSIGN_OR_RETURN(auto samples,
                         BufferedJsonlWriter::Open(options.run_dir + "/samples.jsonl",
                                                   resumed ? options.samples_bytes : 0));
  TensorBoardOptions tensorboard_options;
  tensorboard_options.dir = options.run_dir + "/tensorboard";
  tensorboard_options.resume_step = resumed ? options.resume_step + 1 : -1;
  TAOPD_ASSIGN_OR_RETURN(auto tensorboard, TensorBoardSink::Open(tensorboard_options, clock));
  if (!options.settings.empty()) LogFailure(tensorboard->WriteHparams(options.settings));
  ConsoleOptions console = {.total_steps = options.total_steps,
                            .first_step = resumed ? options.resume_step : 0,
                            .is_terminal = isatty(STDOUT_FILENO) == 1};
  if (!console.is_terminal) console.plain_interval = absl::Seconds(5);
  return std::make_unique<RunOutputFiles>(std::move(jsonl), std::move(samples),
                                          std::move(tensorboard), console, clock);
}

}  // namespace taopd
