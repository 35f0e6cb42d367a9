#include "trainer/commands/teacher/teacher_flags.h"

#include <CLI/CLI.hpp>

namespace taopd {

void TeacherFlags::AddTo(CLI::App* command) {
  config.AddTo(command, /*required=*/false);
  command->add_option("--teacher", endpoints,
                      "URL of a server, instead of teacher.endpoints (repeatable)");
  command->add_option("--top-k", top_k,
                      "Number of teacher tokens per position, instead of teacher.top_k");
  command->add_option("--temperature", temperature,
                      "Temperature of the teacher, instead of teacher.temperature");
}

absl::StatusOr<TrainConfig> TeacherFlags::Read() const {
  TrainConfig train;
  train.student.model = "none";  // these commands have no student
  TAOPD_RETURN_IF_ERROR(config.Read(&train));
  if (!endpoints.empty()) {
    train.teacher.endpoints = endpoints;
    train.teachers.clear();
  }
  if (cache_dir) train.teacher.cache_dir = *cache_dir;
  if (top_k) train.teacher.top_k = *top_k;
  if (temperature) train.teacher.temperature = *temperature;
  TAOPD_RETURN_IF_ERROR(BadUsage(CheckTrainConfig(train)));
  return train;
}

}  // namespace taopd
