// The subcommand score: fills the score cache with a teacher's scores of given sequences, after
// the teacher's own prompts if the configuration asks for them.
#include <absl/synchronization/mutex.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "trainer/cli/config_flags.h"
#include "trainer/cli/subcommand.h"
#include "trainer/commands/teacher/teacher_flags.h"
#include "trainer/data/prompt_reader.h"
#include "trainer/data/row_reader.h"
#include "trainer/setup/connect_teacher.h"
#include "trainer/setup/process.h"
#include "trainer/setup/prompts.h"
#include "trainer/step/support.h"

namespace taopd {
namespace {

absl::StatusOr<std::vector<int32_t>> ReadSomeIds(const nlohmann::ordered_json& row,
                                                 const char* key) {
  const auto found = row.find(key);
  if (found == row.end() || found->empty())
    return InvalidArgument(key, " must be a list of token ids that is not empty");
  return ReadTokenIds(*found, key, int64_t{INT32_MAX} + 1);
}

// The sequences of a file.
struct Sequences {
  std::vector<Rollout> rollouts;
  std::vector<std::vector<int32_t>> teacher_prompt_ids;  // empty where the teacher sees prompt_ids
  int64_t num_teacher_prompt_missing = 0;  // rows that lack the teacher's prompt, used or dropped
};

// Reads the teacher's prompts of a file's rows as those of data.train are read.
class TeacherPrompts {
 public:
  static absl::StatusOr<std::unique_ptr<TeacherPrompts>> Make(const TrainConfig& config) {
    auto prompts = std::make_unique<TeacherPrompts>();
    TAOPD_ASSIGN_OR_RETURN(prompts->student_, ReadStudentPrompts(config.student, config.data));
    TAOPD_ASSIGN_OR_RETURN(prompts->options_,
                           TrainingDatasetOptions(config.data, prompts->student_.model));
    prompts->options_.prompt_key = "prompt";
    prompts->options_.response_key.clear();
    prompts->options_.max_prompt_length = INT64_MAX;  // that of the teacher's prompt stays
    prompts->reader_.emplace(prompts->student_.tokenizer.get(), prompts->options_);
    return prompts;
  }
  absl::StatusOr<PromptReader::Row> Read(const nlohmann::ordered_json& row) const {
    return reader_->Read(row, PromptRecord());
  }

 private:
  StudentPrompts student_;
  DatasetOptions options_;
  std::optional<PromptReader> reader_;
};

// `prompts` may be null: the teacher then sees the rows' prompt_ids.
absl::StatusOr<Sequences> ReadSequences(const TrainConfig& config, const std::string& path,
                                        const TeacherPrompts* prompts) {
  Sequences sequences;
  const auto add = [&](const nlohmann::ordered_json& row, int64_t) -> absl::Status {
    if (!row.is_object()) return InvalidArgument("a row must be a JSON object");
    Rollout rollout;
    TAOPD_ASSIGN_OR_RETURN(rollout.prompt_ids, ReadSomeIds(row, "prompt_ids"));
    TAOPD_ASSIGN_OR_RETURN(rollout.response_ids, ReadSomeIds(row, "response_ids"));
    const auto source = row.find(config.data.source_key);
    if (source != row.end() && source->is_string()) rollout.source = source->get<std::string>();
    std::vector<int32_t> teacher_prompt_ids;
    if (prompts != nullptr) {
      TAOPD_ASSIGN_OR_RETURN(PromptReader::Row read, prompts->Read(row));
      sequences.num_teacher_prompt_missing += read.lacks_teacher_prompt ? 1 : 0;
      if (read.is_dropped) return absl::OkStatus();
      teacher_prompt_ids = std::move(read.record.teacher_prompt.ids);
    }
    sequences.rollouts.push_back(std::move(rollout));
    sequences.teacher_prompt_ids.push_back(std::move(teacher_prompt_ids));
    return absl::OkStatus();
  };
  TAOPD_RETURN_IF_ERROR(ReadRows(path, {}, add));
  if (sequences.rollouts.empty()) {
    return InvalidArgument(
        path, " has no rows",
        sequences.num_teacher_prompt_missing > 0 ? " with the teacher's prompt" : "");
  }
  return sequences;
}

struct ScoreProgress {
  absl::Mutex mutex;
  int64_t num_open ABSL_GUARDED_BY(mutex) = 0;
  int64_t num_tokens ABSL_GUARDED_BY(mutex) = 0;
  absl::Status error ABSL_GUARDED_BY(mutex);
};

// Scores all sequences with a bounded number of concurrent requests. Returns the number of scored
// tokens.
absl::StatusOr<int64_t> ScoreSequences(const SupportOptions& support, const Sequences& sequences,
                                       int64_t concurrency, TeacherClient* client) {
  ScoreProgress progress;
  const auto has_room = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(progress.mutex) {
    return progress.num_open < concurrency;
  };
  const auto is_idle = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(progress.mutex) {
    return progress.num_open == 0;
  };
  for (size_t i = 0; i < sequences.rollouts.size(); ++i) {
    {
      absl::MutexLock lock(&progress.mutex);
      progress.mutex.Await(absl::Condition(&has_room));
      if (!progress.error.ok()) break;
      ++progress.num_open;
    }
    client->Score(MakeTeacherRequest(support, sequences.rollouts[i], Concat("row-", i + 1),
                                     sequences.teacher_prompt_ids[i]),
                  [&progress](absl::StatusOr<TeacherScores> scores) {
                    absl::MutexLock lock(&progress.mutex);
                    --progress.num_open;
                    progress.error.Update(scores.status());
                    if (scores.ok()) {
                      progress.num_tokens += static_cast<int64_t>(scores->sampled_log_probs.size());
                    }
                  });
  }
  absl::MutexLock lock(&progress.mutex);
  progress.mutex.Await(absl::Condition(&is_idle));
  if (!progress.error.ok()) return progress.error;
  return progress.num_tokens;
}

struct ScoreFlags {
  TeacherFlags teacher;
  // JSON Lines with prompt_ids and response_ids, and with the keys of the teacher's own prompt if
  // the configuration has one.
  std::string input_path;
  int64_t concurrency = 256;
};

absl::Status CheckScores(const TrainConfig& config, const SupportOptions& support) {
  if (config.teacher.cache_dir.empty())
    return InvalidArgument("--cache-dir or teacher.cache_dir must name a directory");
  if (support.student_top_k > 0) {
    return InvalidArgument("objective.support = ", NameOf(config.objective.support),
                           " needs the student's tokens, which a file does not hold");
  }
  if (config.data.HasSibling()) {
    return InvalidArgument(
        "data.teacher_prompt_template has {sibling}, which only the responses of a step have");
  }
  return absl::OkStatus();
}

// Returns FAILED_PRECONDITION if the scores of the teacher, or of one of several, are not stable,
// because they would not be stored.
absl::Status CheckStable(const TeacherInfo& info) {
  if (info.has_stable_scores) return absl::OkStatus();
  return FailedPrecondition("teacher: the scores of ", info.model_name,
                            " are not the same twice, or differ between its endpoints: they cannot "
                            "be cached");
}

// Checks that the cache holds all scores at the end.
absl::Status CheckStored(const TrainConfig& config, const TeacherClientStats& stats) {
  if (stats.cache_failed_writes > 0) {
    return WithExitCode(kExitStorage,
                        DataLoss("teacher.cache_dir ", config.teacher.cache_dir, ": ",
                                 stats.cache_failed_writes, " entries could not be written"));
  }
  if (stats.cache_evicted_new == 0) return absl::OkStatus();
  return BadUsage(FailedPrecondition("teacher.cache_gb ", config.teacher.cache_gb,
                                     " is too small: ", stats.cache_evicted_new,
                                     " entries of this run were deleted to make room"));
}

absl::Status Score(const ScoreFlags& flags) {
  TAOPD_RETURN_IF_ERROR(CheckIsAlone("score"));
  TAOPD_ASSIGN_OR_RETURN(const TrainConfig config, flags.teacher.Read());
  const SupportOptions support = MakeSupportOptions(config, /*vocab_size=*/0);
  TAOPD_RETURN_IF_ERROR(BadUsage(CheckScores(config, support)));
  std::unique_ptr<TeacherPrompts> prompts;
  if (config.data.HasTeacherPrompt()) {
    TAOPD_ASSIGN_OR_RETURN(prompts, BadData(TeacherPrompts::Make(config)));
  }
  TAOPD_ASSIGN_OR_RETURN(
      const Sequences sequences,
      BadData(Annotate(ReadSequences(config, flags.input_path, prompts.get()), "--input")));
  TAOPD_ASSIGN_OR_RETURN(const auto client, BadUsage(MakeTeacherClient(config)));
  TAOPD_ASSIGN_OR_RETURN(const TeacherInfo info, ConnectTeacher(config, client.get()));
  TAOPD_RETURN_IF_ERROR(BadUsage(CheckStable(info)));
  auto scored = ScoreSequences(support, sequences, flags.concurrency, client.get());
  const bool is_away = absl::IsUnavailable(scored.status());
  TAOPD_ASSIGN_OR_RETURN(const int64_t num_tokens,
                         WithExitCode(is_away ? kExitUnavailable : kExitData, std::move(scored)));
  const TeacherClientStats stats = client->stats();
  std::cout << "sequences\t" << sequences.rollouts.size() << "\nscored_tokens\t" << num_tokens
            << "\nfrom_cache\t" << stats.cache_hits << "\nfrom_teacher\t"
            << stats.requests - stats.cache_hits << "\n";
  if (config.data.HasTeacherPrompt())
    std::cout << "teacher_prompt_missing\t" << sequences.num_teacher_prompt_missing << "\n";
  return CheckStored(config, stats);
}

}  // namespace

Subcommand AddScore(CLI::App& app) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* command =
      app.add_subcommand("score", "Fill a score cache with a teacher's scores of given sequences");
  flags->teacher.AddTo(command);
  command
      ->add_option("--input", flags->input_path, "JSON Lines file with prompt_ids and response_ids")
      ->required();
  command->add_option("--cache-dir", flags->teacher.cache_dir,
                      "Directory of the cache, instead of teacher.cache_dir");
  command->add_option("--concurrency", flags->concurrency, "Maximum number of requests in flight")
      ->check(PositiveNumber())
      ->capture_default_str();
  return {command, [flags] { return Score(*flags); }};
}

}  // namespace taopd
