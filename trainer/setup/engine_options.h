// Derives from a configuration the options of everything that computes with the student: the
// engines of rollouts, of evaluations and of a student that teaches, the servers of rollouts, and
// the head.
#pragma once

#include <memory>

#include "common/engine/engine.h"
#include "kernels/torch/head/student_head.h"
#include "trainer/config/train_config.h"
#include "trainer/rollout/endpoints/rollout_protocols.h"
#include "trainer/student/self_teacher.h"
#include "trainer/student/student.h"

namespace taopd {

// Returns INVALID_ARGUMENT if a setting needs a GPU. REQUIRES: the device is a CPU.
absl::Status CheckSettingsForCpu(const TrainConfig& config);

// Returns the options of the rollout engine. Its sequences hold the longest prompt with the longest
// response of rollouts and evaluations. It runs no more sequences at a time than a step on one of
// `num_ranks` ranks, or an evaluation, has, so that the KV pool is not larger than needed.
EngineOptions MakeRolloutEngineOptions(const TrainConfig& config, int64_t vocab_size,
                                       int64_t num_ranks = 1);
// Returns the options of the separate engine for evaluations beside training, which
// MakeRolloutEngineOptions leaves out.
EngineOptions MakeEvaluationEngineOptions(const TrainConfig& config);
// Returns the maximum number of concurrent sequences of an evaluation of `num_problems`. If that is
// 0, the number is not known before the data is read, and the result is rollout.max_num_seqs.
int64_t MaxEvaluationSequences(const TrainConfig& config, int64_t num_problems);
// Returns the maximum number of rollouts of a step that one of `num_ranks` ranks generates.
int64_t NumRollouts(const TrainConfig& config, int64_t num_ranks);

// Returns INVALID_ARGUMENT if the longest prompt with the longest response has more positions than
// the model.
absl::Status CheckLengthFits(const TrainConfig& config, const ModelConfig& student);

// Makes the engine that generates with the student's live weights, for rollouts and evaluation.
absl::StatusOr<std::unique_ptr<InferenceEngine>> MakeRolloutEngine(
    const TrainConfig& config, std::shared_ptr<Decoder> student);

// Returns the options that all servers of rollouts share. Returns INVALID_ARGUMENT if a key cannot
// be read.
absl::StatusOr<RolloutWorkerOptions> MakeWorkerOptions(const TrainConfig& config);

// Returns the requirements of a run with this student on the servers of rollouts.
RolloutNeeds RolloutNeedsOf(const TrainConfig& config, const Student& student);

HeadOptions MakeHeadOptions(const TrainConfig& config);

// Returns the options of the student as its own teacher.
SelfTeacherOptions MakeSelfTeacherOptions(const TrainConfig& config);

}  // namespace taopd
