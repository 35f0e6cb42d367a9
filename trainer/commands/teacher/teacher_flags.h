// The flags of the commands score and bench-teacher, which need a teacher and no run.
#pragma once

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

  void AddTo(CLI::App* command);
  // Errors have kExitUsage.
  absl::StatusOr<TrainConfig> Read() const;
};

}  // namespace taopd
