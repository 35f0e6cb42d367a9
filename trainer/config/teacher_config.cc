#include "trainer/config/teacher_config.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <map>

#include "trainer/teacher/transport/teacher_protocols.h"

namespace taopd {
namespace {

bool IsTeacherName(const std::string& name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-';
  });
}

absl::Status CheckEntry(const std::vector<TeacherEntryConfig>& teachers, size_t index,
                        std::map<std::string, std::string>* teacher_of_source) {
  const TeacherEntryConfig& entry = teachers[index];
  const std::string where = Concat("teachers[", index, "]");
  if (!IsTeacherName(entry.name)) {
    return InvalidArgument(where, ".name = \"", entry.name,
                           "\": must be letters, digits, _ and - (metrics are named after it)");
  }
  if (entry.kind == TeacherKind::kNone)
    return InvalidArgument(where, " ", entry.name, ": kind none teaches nothing");
  if (entry.kind == TeacherKind::kSelf) {
    if (!entry.endpoints.empty() || !entry.model.empty() || !entry.revision.empty()) {
      return InvalidArgument(where, " ", entry.name,
                             ": kind self has no endpoints, model or revision");
    }
  } else if (entry.endpoints.empty()) {
    return InvalidArgument(where, ".endpoints of ", entry.name, ": must name at least one server");
  }
  for (size_t i = 0; i < index; ++i) {
    if (teachers[i].name == entry.name) {
      return InvalidArgument("teachers has two entries of the name ", entry.name);
    }
    if (teachers[i].kind == TeacherKind::kSelf && entry.kind == TeacherKind::kSelf) {
      return InvalidArgument("teachers ", teachers[i].name, " and ", entry.name,
                             " are both of kind self: teacher.weights describes only one");
    }
    if (teachers[i].sources.empty() && entry.sources.empty()) {
      return InvalidArgument("teachers ", teachers[i].name, " and ", entry.name,
                             " both lack sources: only one teacher may take all remaining sources");
    }
  }
  for (const std::string& source : entry.sources) {
    const auto [other, is_new] = teacher_of_source->emplace(source, entry.name);
    if (!is_new) {
      return InvalidArgument("teachers: the source \"", source, "\" is taught by ", other->second,
                             " and ", entry.name);
    }
  }
  return absl::OkStatus();
}

// Refuses settings that the kind of the teacher does not read.
absl::Status CheckKinds(const TeacherConfig& teacher,
                        const std::vector<TeacherEntryConfig>& teachers) {
  const TeacherConfig defaults;
  if (teacher.kind != TeacherKind::kServer) {
    const std::string kind = NameOf(teacher.kind);
    if (!teachers.empty()) {
      return InvalidArgument("teacher.kind = ", kind,
                             ": with teachers, give an entry of it the kind self");
    }
    // connect_timeout_s is not among them: the service files give it to every run, and without a
    // server there is nothing to wait for.
    const std::string given =
        FirstGiven(teacher, {"endpoints", "model", "revision", "timeout_s", "outage_budget_s",
                             "hedge_after_s", "max_in_flight", "tls_ca_file", "tls_cert_file",
                             "api_key_env", "api_key_file", "cache_dir", "cache_gb"});
    if (!given.empty())
      return InvalidArgument("teacher.", given, " needs teacher.kind = server, not ", kind);
  }
  const bool sets_ema = teacher.ema != defaults.ema, refreshes = teacher.refresh_every > 0;
  if (HasSelfTeacher(teacher, teachers)) {
    if (sets_ema && teacher.weights != TeacherWeights::kEma) {
      return InvalidArgument("teacher.ema = ", teacher.ema, " needs teacher.weights = ema, not ",
                             NameOf(teacher.weights));
    }
    if (refreshes && teacher.weights != TeacherWeights::kStart) {
      return InvalidArgument("teacher.refresh_every = ", teacher.refresh_every,
                             " needs teacher.weights = start, not ", NameOf(teacher.weights));
    }
    return absl::OkStatus();
  }
  if (sets_ema || refreshes || teacher.weights != defaults.weights) {
    return InvalidArgument(
        "teacher.weights, teacher.ema and teacher.refresh_every are for a teacher of kind self");
  }
  return absl::OkStatus();
}

}  // namespace

bool HasSelfTeacher(const TeacherConfig& teacher, const std::vector<TeacherEntryConfig>& teachers) {
  return teacher.kind == TeacherKind::kSelf ||
         std::ranges::any_of(teachers, [](const TeacherEntryConfig& entry) {
           return entry.kind == TeacherKind::kSelf;
         });
}

bool KeepsAverage(const TeacherConfig& teacher, const std::vector<TeacherEntryConfig>& teachers) {
  return HasSelfTeacher(teacher, teachers) && KeepsAverage(teacher.weights, teacher.refresh_every);
}

bool FollowsStudent(const TeacherConfig& teacher, const std::vector<TeacherEntryConfig>& teachers) {
  return HasSelfTeacher(teacher, teachers) &&
         (teacher.weights != TeacherWeights::kStart || teacher.refresh_every > 0);
}

void TeacherConfig::Declare(SettingTable& keys) {
  keys.Add("kind", &kind,
           "Where the scores come from. With server, they come from servers. With self, the "
           "student is its own teacher, with the weights of teacher.weights "
           "(docs/self-distillation.md). With none, there is no teacher, only a reward.")
      .DecidesScores();
  keys.Add("weights", &weights,
           "Weights of a teacher of kind self: those of student.model (start), an average over the "
           "steps (ema), or those of the step (live). No gradient flows through the teacher.")
      .DecidesScores();
  keys.Add("ema", &ema,
           "Decay of the average if teacher.weights is ema. After each step, average = ema * "
           "average + (1 - ema) * weights.",
           Must<double>("be in [0, 1)", [](double decay) { return decay >= 0 && decay < 1; }));
  keys.Add("refresh_every", &refresh_every,
           "Number of steps between replacements of the weights start by the current weights. 0 "
           "means that they are never replaced.",
           AtLeast<int64_t>(0));
  keys.AddMutable("endpoints", &endpoints,
                  "Servers of one model: " + DescribeSchemes(kTeacherProtocols) +
                      ". Requests go to the least busy one.",
                  Must<std::vector<std::string>>("name at least one server",
                                                 [](const auto& list) { return !list.empty(); }));
  keys.Add("model", &model,
           "Name of the model on a vLLM or SGLang server. If it is empty, the first model that the "
           "server lists is used.");
  keys.AddMutable(
      "revision", &revision,
      "Revision that the servers must serve, as in the log of taopd-teacher. Another revision is "
      "refused before the first step. If it is empty, any revision is accepted.");
  keys.Add("top_k", &top_k,
           "Number of teacher tokens per position. All other tokens together form the tail.",
           AtLeast<int64_t>(1));
  keys.Add("temperature", &temperature,
           "Temperature of the teacher's distribution. vLLM and SGLang support 1 only.",
           MoreThan(0.0))
      .DecidesScores();
  keys.AddMutable("timeout_s", &timeout_s,
                  "Time limit in seconds for one attempt to score one sequence.",
                  Between(0.001, 86400.0));
  keys.AddMutable("outage_budget_s", &outage_budget_s,
                  "Time in seconds for which a failed sequence is retried. After that, the run "
                  "ends with code 69.",
                  AtLeast(0.0));
  keys.AddMutable("connect_timeout_s", &connect_timeout_s,
                  "Time limit in seconds for the wait for a teacher at the start.", MoreThan(0.0));
  keys.AddMutable("hedge_after_s", &hedge_after_s,
                  "If a server has not answered after this many seconds, the request is also sent "
                  "to a second server, and the first valid answer counts. 0 means never.",
                  AtLeast(0.0));
  keys.AddMutable("max_in_flight", &max_in_flight,
                  "Maximum number of requests in flight per server.", AtLeast<int64_t>(1));
  DeclareAccess(keys);
  keys.AddMutable("cache_dir", &cache_dir,
                  "Directory of a score cache, which several processes may share. If it is empty, "
                  "scores are not cached.");
  keys.AddMutable("cache_gb", &cache_gb,
                  "Maximum size of the score cache in GiB. When it is full, the least recently "
                  "used entries are deleted.",
                  MoreThan(0.0));
  keys.AddMutable("cache_only", &cache_only,
                  "Take all scores from the cache and contact no server. This replays a run "
                  "without its teacher.");
}

void TeacherEntryConfig::Declare(SettingTable& keys) {
  keys.Add("name", &name,
           "Name of the teacher in messages and metrics, made of letters, digits, _ and -.");
  keys.Add("kind", &kind, "Same as teacher.kind. At most one teacher can be of kind self.");
  keys.Add("endpoints", &endpoints, "Same as teacher.endpoints.");
  keys.Add("model", &model, "Same as teacher.model.");
  keys.Add("revision", &revision, "Same as teacher.revision.");
  keys.Add("sources", &sources,
           "Data sources (data.source_key) whose responses this teacher scores. If the list is "
           "empty, it scores all sources that no other teacher names.");
  keys.Add("weight", &weight, "Factor by which the loss on this teacher's sequences is multiplied.",
           AtLeast(0.0));
}

absl::Status CheckTeachers(const TeacherConfig& teacher,
                           const std::vector<TeacherEntryConfig>& teachers) {
  TAOPD_RETURN_IF_ERROR(teacher.CheckAccess("teacher"));
  TAOPD_RETURN_IF_ERROR(CheckKinds(teacher, teachers));
  if (teacher.cache_only && teacher.cache_dir.empty()) {
    return InvalidArgument("teacher.cache_only = true needs teacher.cache_dir");
  }
  if (teachers.empty()) return absl::OkStatus();
  if (teacher.endpoints != TeacherConfig().endpoints || !teacher.model.empty() ||
      !teacher.revision.empty()) {
    return InvalidArgument(
        "teachers lists the teachers: teacher.endpoints, teacher.model and teacher.revision are "
        "for a single one");
  }
  std::map<std::string, std::string> teacher_of_source;
  for (size_t i = 0; i < teachers.size(); ++i) {
    TAOPD_RETURN_IF_ERROR(CheckEntry(teachers, i, &teacher_of_source));
  }
  return absl::OkStatus();
}

}  // namespace taopd
