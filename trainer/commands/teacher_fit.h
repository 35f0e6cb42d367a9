// Whether a teacher can do what a configuration asks of it.
#pragma once

#include "common/base/status.h"
#include "trainer/config/train_config.h"
#include "trainer/student/student.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// Compares the teacher's tokenizer, vocabulary, length, top-k and temperature with the student's
// and the configuration's. Returns FAILED_PRECONDITION for the first that does not fit; the message
// names the setting, its value and the teacher's limit.
absl::Status CheckTeacherFits(const TrainConfig& config, const TeacherInfo& teacher,
                              const Student& student);

}  // namespace taopd
