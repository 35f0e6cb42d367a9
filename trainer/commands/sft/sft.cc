// Supervised training on prompt/response pairs: the same optimizer, head, checkpoints and records
// as distillation, with cross-entropy on the response tokens.

#include <CLI/CLI.hpp>
#include <cmath>

#include "common/base/log.h"
#include "common/base/memory.h"
#include "trainer/cli/config_flags.h"
#include "trainer/cli/subcommand.h"
#include "trainer/commands/sft/sft_data.h"
#include "trainer/loop/run_lifecycle.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/run/checkpointed_run.h"
#include "trainer/run/resume/run_facts.h"
#include "trainer/setup/process.h"
#include "trainer/setup/prompts.h"
#include "trainer/setup/start_control.h"
#include "trainer/step/loss/head_targets.h"
#include "trainer/step/loss/micro_batches.h"
#include "trainer/step/support.h"

namespace taopd {
namespace {

ScoredRollout AsScored(const PromptRecord& record) {
  Rollout rollout;
  rollout.prompt_ids = record.prompt_ids;
  rollout.response_ids = record.response_ids;
  rollout.behavior_log_probs.assign(record.response_ids.size(), 0.0f);
  return WithoutTeacher(std::move(rollout));
}

CheckpointedRunOptions MakeSftRunOptions(SftConfig* config) {
  CheckpointedRunOptions options = MakeRunOptions(*config, config->model.dtype);
  options.lora = config->model.lora.Options(config->run.seed);
  if (options.lora) options.lora->config.base_model = config->model.init;
  return options;
}

KernelUse SftKernelUse(const SftConfig& config) {
  return {.kernels = config.trainer.kernels,
          .device = config.trainer.device,
          .dtype = config.model.dtype,
          .max_len = config.data.max_length,
          .top_k = 1,
          .trains = true};
}

struct LossSums {
  double loss = 0;
  int64_t num_rows = 0;
};

class SftRun {
 public:
  SftRun(SftConfig config, RunControl* control)
      : config_(std::move(config)), run_control_(control) {}

  absl::Status Run(const StartMode& mode) {
    TAOPD_RETURN_IF_ERROR(SetUp(mode));
    if (is_finished_) return absl::OkStatus();
    // A resumed run may have been stopped before its validation.
    bool stops = validation_is_due() && !run_.recorded().has_evaluation && !Validate();
    while (!stops && !run_.is_last()) {
      TAOPD_ASSIGN_OR_RETURN(stops, lifecycle_.WaitForNextStep());
      if (!stops) TAOPD_RETURN_IF_ERROR(Step(&stops));
    }
    return stops ? lifecycle_.EndStopped() : lifecycle_.EndFinished();
  }

 private:
  absl::Status SetUp(const StartMode& mode) {
    SetNumThreads(config_.trainer.num_threads);
    TAOPD_RETURN_IF_ERROR(BadUsage(config_.Check()));
    TAOPD_RETURN_IF_ERROR(ChooseKernels(SftKernelUse(config_), [this] { return ReadConfig(); }));
    TAOPD_RETURN_IF_ERROR(
        run_.Start(mode, {"model", [this](const AdamWOptions&) { return MakeStudent(); }}));
    if (run_.resumed() && !run_.settings_differ() && run_.is_last() &&
        run_.IsExported().value_or(false)) {
      is_finished_ = true;
      run_.LeaveFinished();
      return absl::OkStatus();
    }
    if (absl::Status loaded = LoadData(); !loaded.ok()) return run_.WithChangedSettings(loaded);
    head_.objective = *FindObjective("cross_entropy");
    head_.workspace_bytes = BytesOfMib(config_.trainer.head_workspace_mb);
    const SftModelConfig& model = config_.model;
    const auto facts = FactsOfData(train_, {}, config_.data.val, run_.student(),
                                   model.tokenizer.empty() ? model.init : model.tokenizer);
    if (!facts.ok()) return run_.WithChangedSettings(BadData(facts.status()));
    // The server starts before the run's records are opened, so that a port that is in use does not
    // destroy an old run.
    ControlPages pages;
    pages.prometheus_text = [this] { return run_.PrometheusText(); };
    auto control =
        StartControlServer(config_.trainer, run_.run_dir(), run_control_, std::move(pages));
    if (!control.ok()) return run_.WithChangedSettings(control.status());
    control_ = *std::move(control);
    TAOPD_RETURN_IF_ERROR(run_.CheckFacts(*facts));
    TAOPD_RETURN_IF_ERROR(run_.OpenOutput());
    Announce();
    return absl::OkStatus();
  }

  absl::StatusOr<ModelConfig> ReadConfig() const {
    return ReadModelConfig(config_.model.init, config_.model.config);
  }

  // Returns published weights, or random ones for a config.json, which then also names the special
  // tokens.
  absl::StatusOr<Student> MakeStudent() {
    const SftModelConfig& model = config_.model;
    if (!model.init.empty()) {
      return LoadStudent(model.init, model.dtype, config_.trainer.device, &config_.optimizer,
                         model.tokenizer, {}, model.lora.Options(config_.run.seed));
    }
    if (model.lora.is_on()) {
      return InvalidArgument("model.lora.rank = ", model.lora.rank,
                             " needs model.init: adapters belong to stored weights");
    }
    TAOPD_ASSIGN_OR_RETURN(const ModelConfig config, ReadConfig());
    Student student;
    if (!model.tokenizer.empty()) {
      TAOPD_ASSIGN_OR_RETURN(student.tokenizer, Tokenizer::Load(model.tokenizer));
      student.tokenizer_dir = model.tokenizer;
      TAOPD_ASSIGN_OR_RETURN(student.tokenizer_files, ReadTokenizerFiles(model.tokenizer));
      // This file would change the tokens that end a response for every reader of a checkpoint,
      // including a resumed run.
      student.tokenizer_files.erase("generation_config.json");
      if (student.tokenizer->vocab_size() > config.vocab_size) {
        return InvalidArgument(
            "model.tokenizer ", model.tokenizer, " has ", student.tokenizer->vocab_size(),
            " tokens, more than the vocab_size ", config.vocab_size, " of ", model.config);
      }
    }
    const DecoderOptions options = {
        .dtype = model.dtype, .device = config_.trainer.device, .requires_grad = true};
    TAOPD_RETURN_IF_ERROR(CheckTrainingFits(model.config, config, options, config_.optimizer));
    TAOPD_ASSIGN_OR_RETURN(
        student.decoder,
        MakeDecoder(config, options, RandomStream(config_.run.seed, "initial weights")));
    student.optimizer = std::make_unique<AdamW>(student.decoder->Parameters(), config_.optimizer);
    return student;
  }

  absl::Status LoadData() {
    const Student& student = run_.student();
    TAOPD_ASSIGN_OR_RETURN(SftData data,
                           LoadSftData(config_.data, decoder().config(), student.tokenizer_dir,
                                       student.tokenizer.get()));
    LogDataset("data.train", data.train);
    LogDataset("data.val", data.val);
    train_ = std::move(data.train.records);
    val_ = std::move(data.val.records);
    order_.emplace(static_cast<int64_t>(train_.size()), DeriveSeed(config_.run.seed, "data"),
                   config_.data.shuffle);
    return BadData(Annotate(order_->Restore(run_.state().epoch, run_.state().epoch_index),
                            "the checkpoint does not fit data.train"));
  }

  void Announce() {
    lifecycle_.ShowBegin();
    LogInfo(run_.resumed() ? "resumed" : "started",
            {{"run", config_.run.name},
             {"dir", run_.run_dir()},
             {"step", run_.state().step},
             {"rows", train_.size()},
             {"parameters", decoder().config().NumParameters()}});
  }

  // Returns the loss over the response tokens of `records`, with gradients if `train` is true.
  // Returns nullopt if the run is asked to stop before the last micro-batch.
  std::optional<LossSums> Pass(const std::vector<const PromptRecord*>& records, bool train) {
    std::vector<int64_t> input_tokens, response_lengths;
    for (const PromptRecord* record : records) {
      input_tokens.push_back(
          static_cast<int64_t>(record->prompt_ids.size() + record->response_ids.size()) - 1);
      response_lengths.push_back(static_cast<int64_t>(record->response_ids.size()));
    }
    const std::vector<double> weights = SequenceWeights(Aggregation::kTokenMean, response_lengths);
    LossSums sums;
    int64_t begin = 0;
    for (int64_t end : MicroBatchEnds(input_tokens, config_.trainer.micro_batch_tokens)) {
      if (run_control_->stop_requested()) return std::nullopt;
      std::vector<ScoredRollout> scored;
      for (int64_t i = begin; i < end; ++i) scored.push_back(AsScored(*records[i]));
      std::vector<const ScoredRollout*> sequences;
      for (const ScoredRollout& item : scored) sequences.push_back(&item);
      const HeadTargets targets = MakeHeadTargets(
          sequences, std::vector<double>(weights.begin() + begin, weights.begin() + end),
          decoder().device());
      const at::Tensor hidden_NH = ForwardResponses(&decoder(), sequences);
      HeadOutput output;
      if (train) {
        StudentHeadLoss(hidden_NH, decoder().lm_head(), targets, head_, &output).backward();
      } else {
        output = StudentHead(hidden_NH, decoder().lm_head(), targets, head_, at::Tensor());
      }
      sums.loss += output.loss_N.to(at::kDouble).sum().item<double>();
      sums.num_rows += output.loss_N.size(0);
      begin = end;
    }
    return sums;
  }

  // Sets `stops` if the run is asked to stop. If the weights are not updated yet, the step is then
  // abandoned, and the state stays as it was before the step.
  absl::Status Step(bool* stops) {
    const absl::Time start = absl::Now();
    std::vector<const PromptRecord*> batch;
    for (int64_t index : order_->Next(config_.trainer.batch_size)) batch.push_back(&train_[index]);
    TrainState& state = run_.state();
    const double lr = LearningRate(config_.optimizer, state.step, config_.trainer.total_steps);
    const std::optional<LossSums> sums = Pass(batch, /*train=*/true);
    if (!sums) {
      *stops = true;
      return absl::OkStatus();
    }
    const double loss = sums->loss / static_cast<double>(sums->num_rows);
    const double grad_norm = optimizer().GradientNorm();
    if (!std::isfinite(loss) || !std::isfinite(grad_norm)) {
      // The state is still that from before the step.
      return lifecycle_.EndFailed(WithExitCode(
          kExitNumerics,
          Internal("step ", state.step + 1, ": loss ", loss, ", gradient norm ", grad_norm)));
    }
    optimizer().Update(lr, grad_norm);

    ++state.step;
    lifecycle_.MarkChanged();
    state.epoch = order_->epoch();
    state.epoch_index = order_->index();
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    state.train_seconds += seconds;
    int64_t num_tokens = 0;
    for (const PromptRecord* record : batch) {
      num_tokens += static_cast<int64_t>(record->prompt_ids.size() + record->response_ids.size());
    }
    const absl::Duration evaluated = std::exchange(evaluation_time_, absl::ZeroDuration());
    const Metrics metrics = {{"loss/mean", loss},
                             {"loss/grad_norm", grad_norm},
                             {"optim/lr", lr},
                             {"time/step_s", seconds},
                             {"time/save_s", absl::ToDoubleSeconds(lifecycle_.TakeSaveTime())},
                             {"time/evaluation_s", absl::ToDoubleSeconds(evaluated)},
                             {"time/tokens_per_s", static_cast<double>(num_tokens) / seconds}};
    run_.output().Write(state.step, metrics);
    lifecycle_.ShowStep(metrics);

    // Save before the validation, which may fail or take long.
    TAOPD_RETURN_IF_ERROR(lifecycle_.SaveIfDue(config_.trainer.save_every));
    *stops = validation_is_due() && !Validate();
    return absl::OkStatus();
  }

  bool validation_is_due() {
    return !val_.empty() && run_.state().step > 0 &&
           (run_.is_last() || run_.is_due(config_.trainer.eval_every));
  }

  // Returns false if the run is asked to stop before the validation is done.
  bool Validate() {
    const absl::Time start = absl::Now();
    at::NoGradGuard no_grad;
    run_control_->SetPhase(TrainerPhase::kEvaluating);
    std::vector<const PromptRecord*> records;
    for (const PromptRecord& record : val_) records.push_back(&record);
    const std::optional<LossSums> sums = Pass(records, /*train=*/false);
    if (!sums) return false;
    run_.output().Write(run_.state().step,
                        {{"eval/loss", sums->loss / static_cast<double>(sums->num_rows)},
                         {"eval/n", static_cast<double>(val_.size())}});
    run_control_->SetPhase(TrainerPhase::kRunning);
    evaluation_time_ += absl::Now() - start;
    return true;
  }

  Decoder& decoder() { return *run_.student().decoder; }
  AdamW& optimizer() { return *run_.student().optimizer; }

  SftConfig config_;
  RunControl* const run_control_;
  CheckpointedRun run_{MakeSftRunOptions(&config_)};
  RunLifecycle lifecycle_{&run_, run_control_, {}};
  bool is_finished_ = false;  // as the resumed run was found
  HeadOptions head_;
  std::vector<PromptRecord> train_;
  std::vector<PromptRecord> val_;
  std::optional<EpochOrder> order_;
  absl::Duration evaluation_time_;          // since the last step's metrics
  std::unique_ptr<ControlServer> control_;  // last, because its threads use the run
};

}  // namespace

Subcommand AddSft(CLI::App& app) {
  CLI::App* command = app.add_subcommand("sft", "Train a model on given responses to prompts");
  auto flags = RunFlags::AddTo(command);
  return {command,
          [flags]() -> absl::Status {
            SftConfig config;
            TAOPD_RETURN_IF_ERROR(flags->config.Read(&config));
            StopOnSignals(flags->control);
            TAOPD_RETURN_IF_ERROR(CheckIsAlone("sft"));
            PrintChangedSettings(config);
            return SftRun(std::move(config), flags->control.get()).Run(flags->mode);
          },
          /*takes_signals=*/true};
}

}  // namespace taopd
