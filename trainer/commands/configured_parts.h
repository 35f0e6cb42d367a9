// Makes the parts of a run from its configuration: the teacher's client, the rollout engine or the
// options of the servers of rollouts, the head's options, and the model that renders prompts.
#pragma once

#include <memory>

#include "common/engine/engine.h"
#include "common/wire/client_credentials.h"
#include "kernels/torch/head/student_head.h"
#include "trainer/commands/prompts.h"
#include "trainer/config/train_config.h"
#include "trainer/grading/grader.h"
#include "trainer/rollout/endpoints/rollout_protocols.h"
#include "trainer/step/teacher_views.h"
#include "trainer/student/self_teacher.h"
#include "trainer/student/student.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// Returns the credentials that `section` gives. The key is the value of the environment variable or
// the first line of the file; it is empty if neither is given. Returns an error that names the
// setting if the variable or the file holds no key.
absl::StatusOr<ClientCredentials> ReadCredentials(const std::string& section,
                                                  const ServerAccess& access);

// Makes the client of the teacher, or of all teachers, with its score cache. Does not connect.
// `self` starts the engine of a teacher of kind self when the client connects, and must outlive it.
// If it is null, such a teacher is refused. Returns an error that names the setting for a malformed
// endpoint and for a TLS file, an API key or a cache directory that cannot be used.
absl::StatusOr<std::unique_ptr<TeacherClient>> MakeTeacherClient(const TrainConfig& config,
                                                                 SelfTeacher* self = nullptr);

// Makes the client of one teacher without the cache and without retries: the first failure of a
// request is its result. REQUIRES: config.teachers is empty.
absl::StatusOr<std::unique_ptr<TeacherClient>> MakeClientWithoutRetries(const TrainConfig& config);

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

// Returns the options of a step's views. A response to a row without an answer is never right.
// `student` and `grader` must outlive the result. `grader` may be null without {sibling}.
// REQUIRES: config.data.HasTeacherPrompt().
TeacherViewOptions MakeTeacherViewOptions(const TrainConfig& config, const Student& student,
                                          const grading::Grader* grader);

// Returns INVALID_ARGUMENT if the responses to a prompt need each other, for {sibling} or for their
// rewards, but several ranks, or several of dist.shares, would generate them.
absl::Status CheckGroupsStayTogether(const TrainConfig& config, int64_t num_ranks);

// `student` must outlive the result. Returns INVALID_ARGUMENT if the chat template cannot be
// parsed.
absl::StatusOr<PromptModel> PromptModelOf(const DataConfig& data, const Student& student);

}  // namespace taopd
