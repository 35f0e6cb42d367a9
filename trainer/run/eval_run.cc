// The eval and generate subcommands.

#include <absl/synchronization/notification.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "common/engine/torch_engine.h"
#include "common/io/file.h"
#include "common/io/jsonl.h"
#include "trainer/run/commands.h"
#include "trainer/run/run_setup.h"

namespace taopd {
namespace {

absl::Status WriteResults(const TrainConfig& config, const std::string& model_dir, const EvalResult& result,
                          const EvalRequest& request) {
  if (!request.output_path.empty()) {
    nlohmann::ordered_json values = {{"model", model_dir}, {"data", config.data.val}, {"measure", config.eval.measure}};
    for (const auto& [name, value] : result.metrics) values[name.substr(name.find('/') + 1)] = value;
    if (config.eval.measure == "accuracy") {
      values["responses_per_problem"] = config.eval.n;
      values["temperature"] = config.eval.temperature;
      values["top_p"] = config.eval.top_p;
    }
    TAOPD_RETURN_IF_ERROR(WriteFileAtomically(request.output_path, values.dump(2) + "\n"));
  }
  if (!request.responses_path.empty()) {
    TAOPD_ASSIGN_OR_RETURN(JsonlWriter writer, JsonlWriter::Open(request.responses_path, 0));
    for (const EvalSample& sample : result.samples) {
      TAOPD_RETURN_IF_ERROR(writer.Write({{"id", sample.id}, {"prompt", sample.prompt}, {"response", sample.response},
                                          {"answer", sample.answer}, {"correct", sample.correct}}));
    }
  }
  return absl::OkStatus();
}

std::optional<RunFailure> Evaluate(TrainConfig config, const EvalRequest& request) {
  SetNumThreads(config.trainer.num_threads);
  const std::string model_dir = request.model_dir.empty() ? config.student.model : request.model_dir;
  auto student = LoadStudent(model_dir, config.student.dtype, config.trainer.device, nullptr,
                             request.model_dir.empty() ? config.student.tokenizer : "");
  if (!student.ok()) return BadData(Annotate(student.status(), model_dir));
  auto records = LoadEvalPrompts(config.data, config.eval, PromptModelOf(*student));
  if (!records.ok()) return BadData(Annotate(records.status(), "data.val"));
  if (records->records.empty()) return BadConfig(InvalidArgument("nothing to evaluate: data.val is empty or eval.measure is none"));

  std::unique_ptr<TeacherClient> teacher;
  if (config.eval.measure == "kl") {
    auto client = MakeTeacherClient(config.teacher);
    if (!client.ok()) return BadConfig(Annotate(client.status(), "teacher.endpoints"));
    teacher = *std::move(client);
    auto info = teacher->Connect(absl::Seconds(config.teacher.connect_timeout_s));
    if (!info.ok()) return RunFailure{ExitCode::kTeacherUnavailable, Annotate(info.status(), "teacher")};
    if (absl::Status fits = CheckTeacherFits(config, *info, *student); !fits.ok()) return BadConfig(fits);
  }
  config.data.max_response_length = 1;  // the engine's length is the evaluation's
  auto engine = MakeRolloutEngine(config, student->decoder);
  if (!engine.ok()) return BadConfig(Annotate(engine.status(), "eval"));
  LocalRolloutEngine rollout_engine(engine->get());
  auto result = RunEvaluation(config, records->records, &*student, &rollout_engine, teacher.get(),
                              /*keep_all_samples=*/!request.responses_path.empty());
  if (!result.ok()) {
    return RunFailure{absl::IsUnavailable(result.status()) ? ExitCode::kTeacherUnavailable : ExitCode::kBadData,
                      result.status()};
  }
  std::printf("%s\n", model_dir.c_str());
  for (const auto& [name, value] : result->metrics) std::printf("  %-28s %.6g\n", name.c_str(), value);
  std::fflush(stdout);
  if (absl::Status written = WriteResults(config, model_dir, *result, request); !written.ok()) return BadConfig(written);
  return std::nullopt;
}

// Prints tokens as they come; holds back bytes that are not yet a whole UTF-8 character.
class TokenPrinter {
 public:
  TokenPrinter(const Tokenizer* tokenizer, std::vector<int32_t> hidden_ids)
      : tokenizer_(tokenizer), hidden_ids_(std::move(hidden_ids)) {}

  void Print(int32_t id) {
    if (tokenizer_ == nullptr) {
      std::printf("%d ", id);
    } else if (std::find(hidden_ids_.begin(), hidden_ids_.end(), id) == hidden_ids_.end()) {
      pending_ += tokenizer_->TokenBytes(id);
      const size_t whole = WholeCharacters();
      std::fwrite(pending_.data(), 1, whole, stdout);
      pending_.erase(0, whole);
    }
    std::fflush(stdout);
  }
  void End() {
    std::fwrite(pending_.data(), 1, pending_.size(), stdout);
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  // Length of the prefix that does not end inside a character.
  size_t WholeCharacters() const {
    for (size_t back = 1; back <= 3 && back <= pending_.size(); ++back) {
      const auto byte = static_cast<unsigned char>(pending_[pending_.size() - back]);
      if (byte < 0x80) break;
      if (byte >= 0xC0) {
        const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
        return length > back ? pending_.size() - back : pending_.size();
      }
    }
    return pending_.size();
  }
  const Tokenizer* tokenizer_;
  std::vector<int32_t> hidden_ids_;
  std::string pending_;
};

std::optional<RunFailure> Generate(const GenerateRequest& request) {
  SetNumThreads(0);
  auto student = LoadStudent(request.model_dir, request.dtype, request.device, nullptr);
  if (!student.ok()) return BadData(Annotate(student.status(), request.model_dir));
  const ModelConfig& model = student->decoder->config();
  InferenceRequest generation;
  generation.request_id = "generate";
  if (!request.prompt_ids.empty()) {
    for (int64_t id : request.prompt_ids) {
      if (id < 0 || id >= model.vocab_size) {
        return BadConfig(InvalidArgument("--prompt-ids: ", id, " is not below the vocabulary size ", model.vocab_size));
      }
      generation.token_ids.push_back(static_cast<int32_t>(id));
    }
  } else if (student->tokenizer == nullptr) {
    return BadConfig(InvalidArgument(request.model_dir, " has no tokenizer.json: give --prompt-ids"));
  } else {
    generation.token_ids = student->tokenizer->Encode(request.prompt, /*add_special_tokens=*/true);
  }
  if (generation.token_ids.empty()) return BadConfig(InvalidArgument("the prompt is empty"));
  EngineOptions options;
  options.max_num_seqs = 1;
  options.max_model_len = static_cast<int64_t>(generation.token_ids.size()) + request.max_new_tokens;
  if (options.max_model_len > model.max_position_embeddings) {
    return BadConfig(InvalidArgument("prompt of ", generation.token_ids.size(), " tokens + --max-new-tokens ",
                                     request.max_new_tokens, " exceeds max_position_embeddings ",
                                     model.max_position_embeddings));
  }
  auto engine = MakeTorchEngine(student->decoder, options);
  if (!engine.ok()) return BadConfig(engine.status());
  SamplingParams sampling;
  sampling.max_new_tokens = request.max_new_tokens;
  sampling.temperature = static_cast<float>(request.temperature);
  sampling.top_p = static_cast<float>(request.top_p);
  sampling.top_k = static_cast<int32_t>(request.top_k);
  sampling.seed = static_cast<uint64_t>(request.seed);
  generation.sampling = sampling;
  TokenPrinter printer(student->tokenizer.get(), model.eos_token_ids);
  generation.on_token = [&printer](int32_t id, float) { printer.Print(id); };

  absl::Notification finished;
  absl::Status status;
  (*engine)->Submit(std::move(generation), [&](absl::StatusOr<InferenceResult> result) {
    status = result.status();
    finished.Notify();
  });
  finished.WaitForNotification();
  if (!status.ok()) return BadConfig(status);
  printer.End();
  return std::nullopt;
}

}  // namespace

std::optional<RunFailure> RunEval(TrainConfig config, const EvalRequest& request) {
  try {
    return Evaluate(std::move(config), request);
  } catch (const c10::Error& error) {
    return RunFailure{ExitCode::kInternal, Internal(error.what_without_backtrace())};
  }
}

std::optional<RunFailure> RunGenerate(const GenerateRequest& request) {
  try {
    return Generate(request);
  } catch (const c10::Error& error) {
    return RunFailure{ExitCode::kInternal, Internal(error.what_without_backtrace())};
  }
}

}  // namespace taopd
