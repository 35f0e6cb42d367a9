// The flags of the commands score and bench-teacher, which need a teacher and no run.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/cli/config_flags.h"

namespace taopd {

// The flags that describe the teacher: a configuration, and overrides of it.
struct TeacherFlags {
  ConfigFlags config;
  std::vector<std::string> endpoints;
  std::optional<std::string> cache_dir;
  std::optional<int64_t> top_k;
  std::optional<double> temperature;

  void AddTo(CLI::App* command) {
    config.AddTo(command, /*required=*/false);
    command->add_option("--teacher", endpoints,
                        "URL of a server; replaces teacher.endpoints (repeatable)");
    command->add_option("--top-k", top_k, "Replaces teacher.top_k");
    command->add_option("--temperature", temperature, "Replaces teacher.temperature");
  }

  // Errors have kExitUsage.
  absl::StatusOr<TrainConfig> Read() const {
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
};

}  // namespace taopd
