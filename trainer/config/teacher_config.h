// The settings of teachers: their servers, the connections to them, and the requests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/config/settings.h"
#include "trainer/config/run_config.h"

namespace taopd {

// The source of a teacher's scores.
enum class TeacherKind { kServer, kSelf, kNone };
inline EnumNames<TeacherKind> NamesOf(TeacherKind) {
  return {
      {TeacherKind::kServer, "server"}, {TeacherKind::kSelf, "self"}, {TeacherKind::kNone, "none"}};
}
// The weights of the student that is its own teacher (trainer/student/self_teacher.h).
enum class TeacherWeights { kStart, kEma, kLive };
inline EnumNames<TeacherWeights> NamesOf(TeacherWeights) {
  return {{TeacherWeights::kStart, "start"},
          {TeacherWeights::kEma, "ema"},
          {TeacherWeights::kLive, "live"}};
}

// The section `teacher`. With several teachers, its settings apply to each of them, except `kind`,
// `endpoints`, `model` and `revision`, which each entry has.
struct TeacherConfig : ServerAccess {
  TeacherKind kind = TeacherKind::kServer;
  TeacherWeights weights = TeacherWeights::kStart;
  double ema = 0.99;
  int64_t refresh_every = 0;
  std::vector<std::string> endpoints = {"grpc://127.0.0.1:50051"};
  std::string model;
  std::string revision;
  int64_t top_k = 16;
  double temperature = 1.0;
  double timeout_s = 120;
  double outage_budget_s = 1800;
  double connect_timeout_s = 60;
  double hedge_after_s = 0;
  int64_t max_in_flight = 64;
  std::string cache_dir;
  double cache_gb = 64;
  bool cache_only = false;
  void Declare(SettingTable& keys);
};

// One entry of the list `teachers`.
struct TeacherEntryConfig {
  std::string name;
  TeacherKind kind = TeacherKind::kServer;
  std::vector<std::string> endpoints;
  std::string model;
  std::string revision;
  std::vector<std::string> sources;
  double weight = 1.0;
  void Declare(SettingTable& keys);
};

// Returns whether the student is a teacher.
bool HasSelfTeacher(const TeacherConfig& teacher, const std::vector<TeacherEntryConfig>& teachers);
// Returns whether these weights are an average that the optimizer keeps (AdamW).
inline bool KeepsAverage(TeacherWeights weights, int64_t refresh_every) {
  return weights == TeacherWeights::kEma || refresh_every > 0;
}
bool KeepsAverage(const TeacherConfig& teacher, const std::vector<TeacherEntryConfig>& teachers);
// Returns whether the student is a teacher whose weights change during the run.
bool FollowsStudent(const TeacherConfig& teacher, const std::vector<TeacherEntryConfig>& teachers);

// Returns INVALID_ARGUMENT, naming the setting, if the settings contradict each other: two teachers
// with one name, a source that two of them teach, a certificate without its key, ...
absl::Status CheckTeachers(const TeacherConfig& teacher,
                           const std::vector<TeacherEntryConfig>& teachers);

}  // namespace taopd
