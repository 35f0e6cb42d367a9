// The parts of a run that its configuration describes, made from it: the teacher's client, the
// rollout engine, the head's options, the model that renders prompts.
#pragma once

#include <memory>

#include "common/engine/engine.h"
#include "kernels/torch/head/student_head.h"
#include "trainer/commands/prompts.h"
#include "trainer/config/train_config.h"
#include "trainer/student/student.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// Makes the client of the teacher, or of all teachers, with its score cache. Connects to nothing.
// Returns INVALID_ARGUMENT for an endpoint that cannot be understood and for a TLS file, an API key
// or a cache directory that cannot be used.
absl::StatusOr<std::unique_ptr<TeacherClient>> MakeTeacherClient(const TrainConfig& config);

// The same for one teacher, without the cache. If `retry` is false, the first failure of a request
// is its answer. REQUIRES: config.teachers is empty.
absl::StatusOr<std::unique_ptr<TeacherClient>> MakeUncachedClient(const TrainConfig& config,
                                                                  bool retry);

// INVALID_ARGUMENT if a setting asks for what only a GPU has. REQUIRES: the device is a CPU.
absl::Status CheckSettingsForCpu(const TrainConfig& config);

// The options of the rollout engine: as long as the longest prompt with the longest response of
// rollouts and evaluations, and with no more sequences at once than a step of one of `num_ranks`
// ranks and an evaluation have: the KV pool is not larger than what they fill.
EngineOptions RolloutEngineOptions(const TrainConfig& config, int64_t vocab_size,
                                   int64_t num_ranks = 1);
// The rollouts of a step that one of `num_ranks` ranks generates, at most.
int64_t NumRollouts(const TrainConfig& config, int64_t num_ranks);

// INVALID_ARGUMENT if the longest prompt with the longest response has more positions than the
// model.
absl::Status CheckLengthFits(const TrainConfig& config, const ModelConfig& student);

// Makes the engine that generates with the student's live weights, for rollouts and evaluation.
absl::StatusOr<std::unique_ptr<InferenceEngine>> MakeRolloutEngine(
    const TrainConfig& config, std::shared_ptr<Decoder> student);

HeadOptions MakeHeadOptions(const TrainConfig& config);

// `student` must outlive the result. Returns INVALID_ARGUMENT if the chat template cannot be
// parsed.
absl::StatusOr<PromptModel> PromptModelOf(const DataConfig& data, const Student& student);

}  // namespace taopd
