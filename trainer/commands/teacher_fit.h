// Whether a teacher can do what a configuration asks of it.
#pragma once

#include <vector>

#include "common/base/status.h"
#include "trainer/config/train_config.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/student/student.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// Compares the teacher's tokenizer, vocabulary, length, top-k and temperature with the student's
// and the configuration's, and the largest reply with what `client`, which has connected to it,
// accepts. Returns FAILED_PRECONDITION for the first that does not fit; the message
// names the setting, its value and the teacher's limit.
absl::Status CheckTeacherFits(const TrainConfig& config, const TeacherClient& client,
                              const TeacherInfo& teacher, const Student& student);

// With several teachers: returns INVALID_ARGUMENT, naming the source, if a record of `records` has
// a source that no teacher has. `setting` names the records in messages.
absl::Status CheckSourcesAreTaught(const TrainConfig& config,
                                   const std::vector<PromptRecord>& records, const char* setting);
// With several teachers: returns INVALID_ARGUMENT if a teacher has a source that no record of the
// training data has, which is a misspelling.
absl::Status CheckSourcesOccur(const TrainConfig& config, const std::vector<PromptRecord>& records);

}  // namespace taopd
