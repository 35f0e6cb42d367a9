// Supervised training on prompt/response pairs: the same optimizer, head, checkpoints and records as
// distillation, with cross-entropy on the response tokens.

#include <cmath>
#include <iostream>

#include "common/base/log.h"
#include "common/config/yaml.h"
#include "common/io/file.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/run/commands.h"
#include "trainer/run/run_output.h"
#include "trainer/run/run_setup.h"
#include "trainer/step/train_step.h"

namespace taopd {
namespace {

// A pair as the student head sees it: the support is the token itself with probability one.
ScoredRollout AsScored(const PromptRecord& record) {
  ScoredRollout scored;
  scored.rollout.prompt_ids = record.prompt_ids;
  scored.rollout.response_ids = record.response_ids;
  const size_t num_rows = record.response_ids.size();
  scored.rollout.behavior_log_probs.assign(num_rows, 0.0f);
  scored.scores.top_k = 1;
  scored.scores.ids = record.response_ids;
  scored.scores.log_probs.assign(num_rows, 0.0f);
  scored.scores.log_tail.assign(num_rows, -std::numeric_limits<float>::infinity());
  scored.scores.sampled_log_probs.assign(num_rows, 0.0f);
  return scored;
}

struct LossSums {
  double loss = 0;
  int64_t num_rows = 0;
};

class SftRun {
 public:
  SftRun(SftConfig config, RunState* state) : config_(std::move(config)), run_state_(state) {}

  std::optional<RunFailure> Run(const StartMode& mode) {
    if (auto failure = SetUp(mode)) return failure;
    while (train_state_.step < config_.trainer.total_steps) {
      if (run_state_->stop_requested()) {
        if (auto failure = Save()) return failure;
        return RunFailure{ExitCode::kStopped, absl::CancelledError(Concat("asked to stop after step ", train_state_.step,
                                                                          "; continue with --resume"))};
      }
      if (auto failure = Step()) return failure;
    }
    const std::string model_dir = run_dir_ + "/model";
    if (absl::Status saved = SaveDecoder(*student_.decoder, model_dir, student_.tokenizer_dir); !saved.ok()) {
      return RunFailure{ExitCode::kInternal, saved};
    }
    LogInfo("finished", {{"run", config_.run.name}, {"steps", train_state_.step}, {"model", model_dir}});
    return std::nullopt;
  }

 private:
  std::optional<RunFailure> SetUp(const StartMode& mode) {
    SetNumThreads(config_.trainer.num_threads);
    run_dir_ = config_.run.Directory();
    config_yaml_ = WriteYamlSettings(DescribeSettings(config_));
    std::cout << "# effective configuration\n" << config_yaml_ << std::flush;
    auto directory = OpenRunDirectory(run_dir_, mode, config_.trainer.keep_checkpoints);
    if (!directory.ok()) return RunFailure{DirectoryExitCode(directory.status()), directory.status()};
    directory_ = *std::move(directory);
    const bool resumed = directory_.checkpoint.has_value();

    auto student = resumed ? LoadStudent(directory_.checkpoint->path + "/model", config_.model.dtype,
                                         config_.trainer.device, &config_.optimizer)
                           : MakeStudent();
    if (!student.ok()) return BadData(Annotate(student.status(), "model"));
    student_ = *std::move(student);
    if (resumed) {
      auto restored = LoadCheckpointState(directory_.checkpoint->path, &student_);
      if (!restored.ok()) return BadData(restored.status());
      train_state_ = *restored;
    }
    if (auto failure = LoadData()) return failure;

    head_.objective = *FindObjective("cross_entropy");
    head_.workspace_bytes = static_cast<int64_t>(config_.trainer.head_workspace_mb * (1 << 20));
    RunOutputOptions output;
    output.run_dir = run_dir_;
    output.total_steps = config_.trainer.total_steps;
    if (resumed) {
      output.resume_step = train_state_.step;
      output.metrics_bytes = train_state_.metrics_bytes;
      output.samples_bytes = train_state_.samples_bytes;
    }
    auto opened = RunOutput::Open(output);
    if (!opened.ok()) return RunFailure{ExitCode::kInternal, opened.status()};
    output_ = *std::move(opened);
    if (absl::Status written = WriteFileAtomically(run_dir_ + "/config.yaml", config_yaml_); !written.ok()) {
      return RunFailure{ExitCode::kInternal, written};
    }
    LogInfo(resumed ? "resumed" : "started", {{"run", config_.run.name}, {"dir", run_dir_}, {"step", train_state_.step},
                                              {"rows", train_.size()},
                                              {"parameters", student_.decoder->config().NumParameters()}});
    return std::nullopt;
  }

  absl::StatusOr<Student> MakeStudent() {
    const std::string& tokenizer_dir = config_.model.tokenizer.empty() ? config_.model.init : config_.model.tokenizer;
    Student student;
    if (!config_.model.init.empty()) {
      TAOPD_ASSIGN_OR_RETURN(student, LoadStudent(config_.model.init, config_.model.dtype, config_.trainer.device,
                                                  &config_.optimizer));
    } else {
      TAOPD_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(config_.model.config));
      TAOPD_ASSIGN_OR_RETURN(const ModelConfig model, ParseModelConfig(text));
      DecoderOptions options;
      options.dtype = config_.model.dtype;
      options.device = config_.trainer.device;
      options.requires_grad = true;
      TAOPD_ASSIGN_OR_RETURN(student.decoder,
                             MakeDecoder(model, options, RandomStream(config_.run.seed, "initial weights")));
      student.optimizer = std::make_unique<AdamW>(student.decoder->Parameters(), config_.optimizer);
    }
    if (tokenizer_dir.empty()) return student;
    auto tokenizer = Tokenizer::Load(tokenizer_dir);
    if (tokenizer.ok()) {
      student.tokenizer = *std::move(tokenizer);
      student.tokenizer_dir = tokenizer_dir;
    } else if (!absl::IsNotFound(tokenizer.status()) || !config_.model.tokenizer.empty()) {
      return tokenizer.status();
    }
    return student;
  }

  std::optional<RunFailure> LoadData() {
    DatasetOptions options;
    options.prompt_key = config_.data.prompt_key;
    options.answer_key.clear();
    options.response_key = config_.data.response_key;
    options.add_special_tokens = config_.data.add_special_tokens;
    options.max_length = config_.data.max_length;
    const ModelConfig& model = student_.decoder->config();
    options.vocab_size = model.vocab_size;
    if (config_.data.append_eos && !model.eos_token_ids.empty()) options.append_eos_id = model.eos_token_ids.front();
    if (config_.data.max_length > model.max_position_embeddings) {
      return BadConfig(InvalidArgument("data.max_length ", config_.data.max_length,
                                       " exceeds the model's max_position_embeddings ", model.max_position_embeddings));
    }
    auto prompt_model = MakePromptModel(DataConfig(), student_.tokenizer_dir, student_.tokenizer.get(), model.vocab_size);
    if (!prompt_model.ok()) return BadData(Annotate(prompt_model.status(), "model"));
    options.render = prompt_model->render;
    auto train = LoadPrompts(config_.data.train, student_.tokenizer.get(), options);
    if (!train.ok()) return BadData(Annotate(train.status(), "data.train"));
    train_ = std::move(train->records);
    if (!config_.data.val.empty()) {
      auto val = LoadPrompts(config_.data.val, student_.tokenizer.get(), options);
      if (!val.ok()) return BadData(Annotate(val.status(), "data.val"));
      val_ = std::move(val->records);
    }
    order_.emplace(static_cast<int64_t>(train_.size()), DeriveSeed(config_.run.seed, "data"), config_.data.shuffle);
    const absl::Status position = order_->Restore(train_state_.epoch, train_state_.epoch_index);
    if (!position.ok()) return BadData(Annotate(position, "the checkpoint does not fit data.train"));
    return std::nullopt;
  }

  // Loss over the response tokens of `records`; with gradients when `train`.
  LossSums Pass(const std::vector<const PromptRecord*>& records, bool train) {
    std::vector<int64_t> input_tokens, response_lengths;
    for (const PromptRecord* record : records) {
      input_tokens.push_back(static_cast<int64_t>(record->prompt_ids.size() + record->response_ids.size()) - 1);
      response_lengths.push_back(static_cast<int64_t>(record->response_ids.size()));
    }
    const std::vector<double> weights = SequenceWeights(Aggregation::kTokenMean, response_lengths);
    LossSums sums;
    int64_t begin = 0;
    for (int64_t end : MicroBatchEnds(input_tokens, config_.trainer.micro_batch_tokens)) {
      std::vector<ScoredRollout> scored;
      for (int64_t i = begin; i < end; ++i) scored.push_back(AsScored(*records[i]));
      std::vector<const ScoredRollout*> sequences;
      std::vector<std::pair<const std::vector<int32_t>*, const std::vector<int32_t>*>> tokens;
      for (const ScoredRollout& item : scored) {
        sequences.push_back(&item);
        tokens.emplace_back(&item.rollout.prompt_ids, &item.rollout.response_ids);
      }
      const StudentInput input = MakeStudentInput(tokens, student_.decoder->device());
      const HeadTargets targets = MakeHeadTargets(
          sequences, std::vector<double>(weights.begin() + begin, weights.begin() + end), student_.decoder->device());
      const at::Tensor hidden_NH = student_.decoder->Forward(input.batch).index_select(0, input.rows_N);
      HeadOutput output;
      if (train) {
        StudentHeadLoss(hidden_NH, student_.decoder->lm_head(), targets, head_, &output).backward();
        student_.optimizer->AccumulateGradients();
      } else {
        output = StudentHead(hidden_NH, student_.decoder->lm_head(), targets, head_, at::Tensor());
      }
      sums.loss += output.loss_N.to(at::kDouble).sum().item<double>();
      sums.num_rows += output.loss_N.size(0);
      begin = end;
    }
    return sums;
  }

  std::optional<RunFailure> Step() {
    const absl::Time start = absl::Now();
    std::vector<const PromptRecord*> batch;
    for (int64_t index : order_->Next(config_.trainer.batch_size)) batch.push_back(&train_[index]);
    const double lr = LearningRate(config_.optimizer, train_state_.step, config_.trainer.total_steps);
    const LossSums sums = Pass(batch, /*train=*/true);
    const double loss = sums.loss / static_cast<double>(sums.num_rows);
    const double grad_norm = student_.optimizer->GradientNorm();
    if (!std::isfinite(loss) || !std::isfinite(grad_norm)) {
      return RunFailure{ExitCode::kNumerics, Internal("step ", train_state_.step + 1, ": loss ", loss,
                                                      ", gradient norm ", grad_norm)};
    }
    student_.optimizer->Update(lr, grad_norm);

    ++train_state_.step;
    train_state_.epoch = order_->epoch();
    train_state_.epoch_index = order_->index();
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    train_state_.train_seconds += seconds;
    int64_t num_tokens = 0;
    for (const PromptRecord* record : batch) {
      num_tokens += static_cast<int64_t>(record->prompt_ids.size() + record->response_ids.size());
    }
    output_->Write(train_state_.step, {{"loss/mean", loss},
                                       {"loss/grad_norm", grad_norm},
                                       {"optim/lr", lr},
                                       {"time/step_s", seconds},
                                       {"time/tokens_per_s", static_cast<double>(num_tokens) / seconds}});

    const bool last = train_state_.step == config_.trainer.total_steps;
    if (!val_.empty() && (last || IsDue(config_.trainer.eval_every))) Validate();
    if (last || IsDue(config_.trainer.save_every)) {
      if (auto failure = Save(); failure && last) return failure;
    }
    return std::nullopt;
  }

  bool IsDue(int64_t every) const { return every > 0 && train_state_.step % every == 0; }

  void Validate() {
    at::NoGradGuard no_grad;
    std::vector<const PromptRecord*> records;
    for (const PromptRecord& record : val_) records.push_back(&record);
    const LossSums sums = Pass(records, /*train=*/false);
    output_->Write(train_state_.step, {{"eval/loss", sums.loss / static_cast<double>(sums.num_rows)},
                                       {"eval/n", static_cast<double>(val_.size())}});
  }

  std::optional<RunFailure> Save() {
    train_state_.metrics_bytes = output_->metrics_bytes();
    train_state_.samples_bytes = output_->samples_bytes();
    auto saved = directory_.store->Save(train_state_.step, [&](const std::string& dir) {
      return SaveCheckpointFiles(student_, train_state_, config_yaml_, dir);
    });
    if (!saved.ok()) {
      LogError("checkpoint not saved", {{"step", train_state_.step}, {"error", saved.status()}});
      return RunFailure{ExitCode::kInternal, saved.status()};
    }
    LogInfo("checkpoint saved", {{"step", train_state_.step}, {"path", *saved}});
    return std::nullopt;
  }

  SftConfig config_;
  RunState* const run_state_;
  std::string run_dir_;
  std::string config_yaml_;
  RunDirectory directory_;
  Student student_;
  TrainState train_state_;
  HeadOptions head_;
  std::vector<PromptRecord> train_;
  std::vector<PromptRecord> val_;
  std::optional<EpochOrder> order_;
  std::unique_ptr<RunOutput> output_;
};

}  // namespace

std::optional<RunFailure> RunSft(SftConfig config, const StartMode& mode, RunState* state) {
  try {
    return SftRun(std::move(config), state).Run(mode);
  } catch (const c10::Error& error) {
    return RunFailure{ExitCode::kInternal, Internal(error.what_without_backtrace())};
  } catch (const std::bad_alloc&) {
    return RunFailure{ExitCode::kInternal, ResourceExhausted("out of memory")};
  }
}

}  // namespace taopd
