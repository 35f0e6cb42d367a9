// Makes the parts of a run from its configuration: the teacher's client, the rollout engine, the
// head's options, the model that renders prompts.
#pragma once

#include <memory>

#include "common/engine/engine.h"
#include "kernels/torch/head/student_head.h"
#include "trainer/commands/prompts.h"
#include "trainer/config/train_config.h"
#include "trainer/student/self_teacher.h"
#include "trainer/student/student.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// Makes the client of the teacher, or of all teachers, with its score cache. Does not connect.
// `self` is asked for its engine when the client connects, and must outlive it; a command without a
// student has none, and a teacher of kind self is refused.
// Returns INVALID_ARGUMENT for a malformed endpoint and for a TLS file, an API key or a cache
// directory that cannot be used.
absl::StatusOr<std::unique_ptr<TeacherClient>> MakeTeacherClient(const TrainConfig& config,
                                                                 SelfTeacher* self = nullptr);

// Makes the client of one teacher without the cache. If `retry` is false, the first failure of a
// request is its result. REQUIRES: config.teachers is empty.
absl::StatusOr<std::unique_ptr<TeacherClient>> MakeUncachedClient(const TrainConfig& config,
                                                                  bool retry);

// Returns INVALID_ARGUMENT if a setting needs a GPU. REQUIRES: the device is a CPU.
absl::Status CheckSettingsForCpu(const TrainConfig& config);

// Returns the options of the rollout engine. Its sequences hold the longest prompt with the longest
// response of rollouts and evaluations. The number of concurrent sequences is that of a step of one
// of `num_ranks` ranks or of an evaluation, so that the KV pool is not larger than needed.
EngineOptions RolloutEngineOptions(const TrainConfig& config, int64_t vocab_size,
                                   int64_t num_ranks = 1);
// Returns the options of the engine of evaluations beside training (eval.mode). Those of the
// rollout engine leave the evaluations out then.
EngineOptions EvaluationEngineOptions(const TrainConfig& config);
// Returns the maximum number of rollouts of a step that one of `num_ranks` ranks generates.
int64_t NumRollouts(const TrainConfig& config, int64_t num_ranks);

// Returns INVALID_ARGUMENT if the longest prompt with the longest response has more positions than
// the model.
absl::Status CheckLengthFits(const TrainConfig& config, const ModelConfig& student);

// Makes the engine that generates with the student's live weights, for rollouts and evaluation.
absl::StatusOr<std::unique_ptr<InferenceEngine>> MakeRolloutEngine(
    const TrainConfig& config, std::shared_ptr<Decoder> student);

HeadOptions MakeHeadOptions(const TrainConfig& config);

// `student` must outlive the result. Returns INVALID_ARGUMENT if the chat template cannot be
// parsed.
absl::StatusOr<PromptModel> PromptModelOf(const DataConfig& data, const Student& student);

}  // namespace taopd
