// Steps of set-up that training, supervised training and evaluation share.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "kernels/torch/head/student_head.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/eval/accuracy.h"
#include "trainer/exit_code.h"
#include "trainer/rollout/rollout_engine.h"
#include "trainer/run/commands.h"
#include "trainer/run/prompt_setup.h"
#include "trainer/run/student.h"
#include "trainer/teacher/teacher_client.h"
#include "trainer/train_config.h"

namespace taopd {

// 0 = one a core.
void SetNumThreads(int64_t num_threads);

// Prints the settings as YAML, what a run directory's config.yaml holds, and returns that text.
std::string ShowEffectiveConfig(const SettingTable& settings);

// What a subcommand runs in: LibTorch's errors and a lack of memory become failures.
std::optional<RunFailure> CatchExceptions(const std::function<std::optional<RunFailure>()>& run);

absl::StatusOr<std::unique_ptr<TeacherClient>> MakeTeacherClient(const TeacherConfig& config);
// Vocabulary, tokenizer, length, top-k and temperature, each named with both values.
absl::Status CheckTeacherFits(const TrainConfig& config, const TeacherInfo& teacher,
                              const Student& student);

// `student` outlives the result. INVALID_ARGUMENT for a chat template that is none.
absl::StatusOr<PromptModel> PromptModelOf(const DataConfig& data, const Student& student);

// The engine for rollouts and evaluation with the student's live weights.
absl::StatusOr<std::unique_ptr<InferenceEngine>> MakeRolloutEngine(
    const TrainConfig& config, std::shared_ptr<Decoder> student);
HeadOptions MakeHeadOptions(const TrainConfig& config);

// By eval.measure. `engine` may be null for kl, `teacher` for accuracy.
absl::StatusOr<EvalResult> RunEvaluation(const TrainConfig& config,
                                         const std::vector<PromptRecord>& records, Student* student,
                                         RolloutEngine* engine, TeacherClient* teacher);

}  // namespace taopd
