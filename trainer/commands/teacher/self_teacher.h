// The student as its own teacher, from the configuration.
#pragma once

#include "trainer/config/train_config.h"
#include "trainer/student/self_teacher.h"

namespace taopd {

SelfTeacherOptions MakeSelfTeacherOptions(const TrainConfig& config);

}  // namespace taopd
