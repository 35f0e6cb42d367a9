#include "trainer/setup/connect_teacher.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/log.h"
#include "common/base/memory.h"
#include "trainer/step/support.h"
#include "trainer/teacher/cache/cached_teacher_client.h"
#include "trainer/teacher/engine_teacher_client.h"
#include "trainer/teacher/network_teacher_client.h"
#include "trainer/teacher/no_teacher_client.h"
#include "trainer/teacher/routing_teacher_client.h"

namespace taopd {
namespace {

TeacherClientOptions MakeClientOptions(const TrainConfig& config) {
  const TeacherConfig& teacher = config.teacher;
  TeacherClientOptions options;
  options.endpoints = teacher.endpoints;
  options.model = teacher.model;
  options.revision = teacher.revision;
  options.request_timeout = absl::Seconds(teacher.timeout_s);
  options.outage_budget = absl::Seconds(teacher.outage_budget_s);
  options.max_in_flight_per_endpoint = teacher.max_in_flight;
  if (teacher.hedge_after_s > 0) options.hedge_after = absl::Seconds(teacher.hedge_after_s);
  options.probe_top_k = teacher.top_k;
  if (config.eval.measure == EvalMeasure::kKl) {
    options.probe_top_k = std::max(options.probe_top_k, config.eval.kl_top_k);
  }
  return options;
}

// Makes a client of servers, and the cache in front of them.
absl::StatusOr<std::unique_ptr<TeacherClient>> MakeServerClient(
    const TeacherConfig& config, const TeacherClientOptions& options) {
  TAOPD_ASSIGN_OR_RETURN(auto client, MakeNetworkTeacherClient(options));
  if (config.cache_dir.empty()) return client;
  TAOPD_ASSIGN_OR_RETURN(auto cache,
                         Annotate(ScoreCache::Open(config.cache_dir, BytesOfGib(config.cache_gb)),
                                  "teacher.cache_dir"));
  if (config.cache_only) client.reset();
  return std::make_unique<CachedTeacherClient>(std::move(cache), options.endpoints,
                                               std::move(client), options.revision, options.model);
}

// Makes the client of one teacher. `self` is null if the command has no student.
absl::StatusOr<std::unique_ptr<TeacherClient>> MakeOneClient(TeacherKind kind,
                                                             const TeacherConfig& config,
                                                             const TeacherClientOptions& options,
                                                             SelfTeacher* self) {
  if (kind == TeacherKind::kServer) return MakeServerClient(config, options);
  if (kind == TeacherKind::kNone) return std::make_unique<NoTeacherClient>();
  if (self == nullptr)
    return InvalidArgument("kind self: this command has no student; it needs a server");
  return std::make_unique<EngineTeacherClient>([self] { return self->Start(); });
}

absl::Status CheckDense(const char* who, const TeacherInfo& teacher) {
  if (teacher.max_dense_vocab_size == 0) {
    return FailedPrecondition(who, " needs the teacher's log-probs of every token, and ",
                              teacher.model_name, " sends no dense log-probs");
  }
  if (teacher.head_vocab_size <= teacher.max_dense_vocab_size) return absl::OkStatus();
  return FailedPrecondition(who,
                            " needs the teacher's log-probs of every token: its vocabulary of ",
                            teacher.head_vocab_size, " exceeds its max_dense_vocab_size of ",
                            teacher.max_dense_vocab_size);
}

// Checks the requests that the objective and its support make to the teacher.
absl::Status CheckSupportFits(const TrainConfig& config, const TeacherInfo& teacher,
                              int64_t vocab_size) {
  const SupportOptions support = MakeSupportOptions(config, vocab_size);
  if (support.teacher_top_k > teacher.max_top_k) {
    return FailedPrecondition("teacher.top_k ", support.teacher_top_k,
                              " exceeds the teacher's limit of ", teacher.max_top_k);
  }
  if (support.student_top_k > 0 && teacher.max_candidates == 0) {
    return FailedPrecondition("objective.support ", NameOf(config.objective.support),
                              ": it needs the log-probs of given ids, and the teacher ",
                              teacher.model_name, " takes no candidates");
  }
  if (support.teacher_entropy && !teacher.supports_entropy) {
    return FailedPrecondition("the objective needs the teacher's entropy, and ", teacher.model_name,
                              " sends none");
  }
  if (support.student_top_k > teacher.max_candidates) {
    return FailedPrecondition("objective.student_top_k ", support.student_top_k,
                              " exceeds the teacher's limit of candidates, ",
                              teacher.max_candidates);
  }
  const EvalConfig& eval = config.eval;
  const int64_t kl_top_k = eval.kl_top_k > 0 ? eval.kl_top_k : config.teacher.top_k;
  for (const auto& [name, top_k] :
       {std::pair("teacher.top_k ", int64_t{support.teacher_top_k}),
        std::pair("objective.student_top_k ", int64_t{support.student_top_k}),
        std::pair(eval.kl_top_k > 0 ? "eval.kl_top_k " : "teacher.top_k ",
                  eval.measure == EvalMeasure::kKl ? kl_top_k : 0),
        std::pair("objective.support union: teacher.top_k + objective.student_top_k = ",
                  int64_t{support.teacher_top_k} + support.student_top_k)}) {
    if (top_k > vocab_size)
      return FailedPrecondition(name, top_k, " exceeds the vocabulary of ", vocab_size);
  }
  if (support.kind == SupportKind::kFullVocabulary)
    TAOPD_RETURN_IF_ERROR(CheckDense("the objective", teacher));
  if (config.objective.full_kl_rows > 0)
    TAOPD_RETURN_IF_ERROR(CheckDense("objective.full_kl_rows", teacher));
  return absl::OkStatus();
}

// Returns the setting that bounds the prompts that are sent to the teacher.
const char* LengthSetting(const DataConfig& data) {
  return data.LongestSentPrompt() == data.max_prompt_length ? "data.max_prompt_length"
                                                            : "data.max_teacher_prompt_length";
}

// Checks that the scores of the longest sequence fit in one reply of any protocol.
absl::Status CheckSizeFits(const TrainConfig& config, const TeacherClient& client,
                           const TeacherInfo& teacher, int64_t vocab_size) {
  TeacherRequest longest =
      MakeTeacherRequest(MakeSupportOptions(config, vocab_size), Rollout(), "");
  longest.score_start = config.data.LongestSentPrompt();
  longest.token_ids.resize(
      static_cast<size_t>(longest.score_start + config.data.max_response_length));
  const absl::Status fits = client.CheckSize(longest, teacher);
  if (fits.ok()) return absl::OkStatus();
  return FailedPrecondition(
      "the scores of a sequence of ", LengthSetting(config.data), " ", longest.score_start,
      " + data.max_response_length ", config.data.max_response_length, " tokens with ",
      longest.top_k,
      " log-probs each (teacher.top_k) are too many for one reply: ", fits.message());
}

// Warns of an evaluation that the teacher will refuse, which would end the run at that step. Its
// checkpoint would exist by then, but the user should know in advance.
void WarnOfEvaluation(const TrainConfig& config, const TeacherInfo& teacher) {
  if (config.eval.measure != EvalMeasure::kKl || config.eval.kl_top_k <= teacher.max_top_k) return;
  LogWarning("the teacher will refuse evaluations: eval.kl_top_k exceeds its limit, --max-logprobs",
             {{"kl_top_k", config.eval.kl_top_k}, {"limit", teacher.max_top_k}});
}

// Warns of a student that ends its responses with a token that does not end the teacher's. Such a
// student is taught not to end them, and responses grow until they are cut.
void WarnOfEndTokens(const TeacherInfo& teacher, const Student& student) {
  const std::vector<int32_t>& ours = student.decoder->config().eos_token_ids;
  if (teacher.eos_token_ids.empty() || ours.empty()) return;
  const auto missing = [&](const std::vector<int32_t>& from, const std::vector<int32_t>& in) {
    std::string names;
    for (const int32_t id : from) {
      if (std::ranges::find(in, id) != in.end()) continue;
      names += Concat(names.empty() ? "" : ", ", id);
      if (student.tokenizer) names += Concat(" ", student.tokenizer->IdToToken(id));
    }
    return names.empty() ? "none" : names;
  };
  const std::string only_teacher = missing(teacher.eos_token_ids, ours);
  const std::string only_student = missing(ours, teacher.eos_token_ids);
  if (only_teacher == "none" && only_student == "none") return;
  LogWarning(
      "teacher and student end a text with different tokens, so responses may grow until they are "
      "cut: compare eos_token_id in the models' config.json and generation_config.json",
      {{"teacher", teacher.model_name},
       {"only_teacher", only_teacher},
       {"only_student", only_student}});
}

// Warns of faults that may spoil a run but do not rule it out.
void WarnOfTeacher(const TrainConfig& config, const TeacherInfo& teacher, const Student& student) {
  WarnOfEvaluation(config, teacher);
  WarnOfEndTokens(teacher, student);
  if (!teacher.sends_tail) {
    LogWarning("the teacher sends no tail; it is derived from the top-k (policy/derived_tails)",
               {{"teacher", teacher.model_name}});
  }
  if (student.tokenizer && teacher.tokenizer_hash.empty()) {
    LogWarning("the teacher's tokenizer is not known and cannot be compared with the student's",
               {{"teacher", teacher.model_name}});
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<TeacherClient>> MakeTeacherClient(const TrainConfig& config,
                                                                 SelfTeacher* self) {
  TeacherClientOptions options = MakeClientOptions(config);
  if (!config.teacher.cache_only)
    TAOPD_RETURN_IF_ERROR(config.teacher.ReadCredentials("teacher", &options));
  if (config.teachers.empty()) {
    const bool is_server = config.teacher.kind == TeacherKind::kServer;
    return Annotate(MakeOneClient(config.teacher.kind, config.teacher, options, self),
                    is_server ? "teacher.endpoints" : "teacher");
  }
  std::vector<RoutedTeacher> teachers;
  for (const TeacherEntryConfig& entry : config.teachers) {
    options.endpoints = entry.endpoints;
    options.model = entry.model;
    options.revision = entry.revision;
    TAOPD_ASSIGN_OR_RETURN(auto client,
                           Annotate(MakeOneClient(entry.kind, config.teacher, options, self),
                                    Concat("teachers: ", entry.name)));
    teachers.push_back({entry.name, std::move(client), entry.sources, entry.weight});
  }
  return std::make_unique<RoutingTeacherClient>(std::move(teachers));
}

absl::StatusOr<std::unique_ptr<TeacherClient>> MakeClientWithoutRetries(const TrainConfig& config) {
  if (config.teacher.kind != TeacherKind::kServer) {
    return InvalidArgument("teacher.kind = ", NameOf(config.teacher.kind),
                           ": there is no server to measure");
  }
  TeacherClientOptions options = MakeClientOptions(config);
  TAOPD_RETURN_IF_ERROR(config.teacher.ReadCredentials("teacher", &options));
  options.retry = false;
  options.initial_backoff = options.max_backoff = absl::Milliseconds(10);
  return Annotate(MakeNetworkTeacherClient(options), "teacher.endpoints");
}

absl::StatusOr<TeacherInfo> ConnectTeacher(const TrainConfig& config, TeacherClient* client) {
  auto info = Annotate(client->Connect(absl::Seconds(config.teacher.connect_timeout_s)), "teacher");
  const bool is_usage = absl::IsInvalidArgument(info.status());
  return WithExitCode(is_usage ? kExitUsage : kExitUnavailable, std::move(info));
}

absl::Status CheckTeacherFits(const TrainConfig& config, const TeacherClient& client,
                              const TeacherInfo& teacher, const Student& student) {
  if (config.teacher.kind == TeacherKind::kNone) return absl::OkStatus();
  const ModelConfig& model = student.decoder->config();
  if (student.tokenizer && !teacher.tokenizer_hash.empty() &&
      teacher.tokenizer_hash != student.tokenizer->hash()) {
    return FailedPrecondition("the teacher ", teacher.model_name, " has another tokenizer (",
                              teacher.tokenizer_hash.substr(0, 12), ") than the student (",
                              student.tokenizer->hash().substr(0, 12),
                              "): their token ids do not mean the same; student.tokenizer lets the "
                              "student take over another model's tokenizer");
  }
  if (teacher.head_vocab_size > 0 && teacher.head_vocab_size < model.vocab_size) {
    return FailedPrecondition("the teacher's vocabulary of ", teacher.head_vocab_size,
                              " is smaller than the student's of ", model.vocab_size,
                              ": it cannot score the student's tokens");
  }
  TAOPD_RETURN_IF_ERROR(CheckSupportFits(config, teacher, model.vocab_size));
  if (config.teacher.temperature != 1.0 && !teacher.supports_temperature) {
    return FailedPrecondition("teacher.temperature ", config.teacher.temperature,
                              ": the teacher supports only 1");
  }
  const int64_t longest = config.data.LongestSentPrompt() + config.data.max_response_length;
  if (longest > teacher.max_model_len) {
    return FailedPrecondition(LengthSetting(config.data), " + data.max_response_length = ", longest,
                              " exceeds the teacher's max_model_len ", teacher.max_model_len);
  }
  TAOPD_RETURN_IF_ERROR(CheckSizeFits(config, client, teacher, model.vocab_size));
  WarnOfTeacher(config, teacher, student);
  return absl::OkStatus();
}

absl::Status CheckSourcesAreTaught(const TrainConfig& config,
                                   const std::vector<PromptRecord>& records, const char* setting) {
  std::set<std::string> taught;
  for (const TeacherEntryConfig& entry : config.teachers) {
    if (entry.sources.empty()) return absl::OkStatus();
    taught.insert(entry.sources.begin(), entry.sources.end());
  }
  if (config.teachers.empty()) return absl::OkStatus();
  for (const PromptRecord& record : records) {
    if (taught.contains(record.source)) continue;
    return InvalidArgument("teachers: no teacher has the source \"", record.source, "\" of ",
                           setting,
                           "; add it to the sources of one, or leave the sources of one empty");
  }
  return absl::OkStatus();
}

absl::Status CheckSourcesOccur(const TrainConfig& config,
                               const std::vector<PromptRecord>& records) {
  std::set<std::string> known;
  for (const PromptRecord& record : records) known.insert(record.source);
  for (const TeacherEntryConfig& entry : config.teachers) {
    for (const std::string& source : entry.sources) {
      if (known.contains(source)) continue;
      return InvalidArgument("teachers: the source \"", source, "\" of ", entry.name,
                             " does not occur in data.train",
                             DidYouMean(source, {known.begin(), known.end()}));
    }
  }
  return absl::OkStatus();
}

}  // namespace taopd
