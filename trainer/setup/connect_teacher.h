// Makes the client of the teacher that a configuration names, connects it, and checks that the
// teacher meets the needs of the configuration.
#pragma once

#include <memory>
#include <vector>

#include "common/base/status.h"
#include "trainer/config/train_config.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/run/exit_status.h"
#include "trainer/student/self_teacher.h"
#include "trainer/student/student.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// Makes the client of the teacher, or of all teachers, with its score cache. Does not connect.
// `self` starts the engine of a teacher of kind self when the client connects, and must outlive it.
// If it is null, such a teacher is refused. Returns an error that names the setting for a malformed
// endpoint and for a TLS file, an API key or a cache directory that cannot be used.
absl::StatusOr<std::unique_ptr<TeacherClient>> MakeTeacherClient(const TrainConfig& config,
                                                                 SelfTeacher* self = nullptr);

// Makes the client of one teacher without the cache and without retries: the first failure of a
// request is its result. REQUIRES: config.teachers is empty.
absl::StatusOr<std::unique_ptr<TeacherClient>> MakeClientWithoutRetries(const TrainConfig& config);

// Waits for the teacher for at most teacher.connect_timeout_s. The failure is kExitUsage if waiting
// does not help, as with another revision than the configuration's, and kExitUnavailable otherwise.
absl::StatusOr<TeacherInfo> ConnectTeacher(const TrainConfig& config, TeacherClient* client);

// Compares the teacher's tokenizer, vocabulary, length, top-k and temperature with those of the
// student and the configuration, and the largest reply with the limit of `client`, which has
// connected to the teacher. Returns FAILED_PRECONDITION for the first mismatch; the message names
// the setting, its value and the teacher's limit. Logs warnings of faults that may spoil the run
// of a teacher that fits, such as tokens that end its texts but not the student's.
absl::Status CheckTeacherFits(const TrainConfig& config, const TeacherClient& client,
                              const TeacherInfo& teacher, const Student& student);

// With several teachers, returns INVALID_ARGUMENT, naming the source, if a record has a source that
// no teacher has. `setting` names the records in messages.
absl::Status CheckSourcesAreTaught(const TrainConfig& config,
                                   const std::vector<PromptRecord>& records, const char* setting);
// With several teachers, returns INVALID_ARGUMENT if a teacher has a source that no record of the
// training data has, which is probably misspelled.
absl::Status CheckSourcesOccur(const TrainConfig& config, const std::vector<PromptRecord>& records);

}  // namespace taopd
