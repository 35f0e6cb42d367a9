#include "trainer/run/resume/run_facts.h"

#include <absl/strings/str_split.h>

#include <span>

#include "common/base/log.h"
#include "common/io/file.h"
#include "common/io/sha256.h"

namespace taopd {
namespace {

// Adds the values with their number, so that different lists of lists never have the same bytes.
template <typename T>
void Add(std::span<const T> values, Sha256* hash) {
  const auto size = static_cast<uint64_t>(values.size());
  hash->Update(std::as_bytes(std::span(&size, 1)));
  hash->Update(std::as_bytes(values));
}

absl::StatusOr<std::string> TokenizerHash(const Student& student, const std::string& dir) {
  const std::string own = student.tokenizer ? student.tokenizer->hash() : "";
  if (dir.empty() || dir == student.tokenizer_dir) return own;
  if (!FileExists(dir)) {
    LogWarning("the directory that the tokenizer came from is gone: it is not compared",
               {{"dir", dir}});
    return own;
  }
  const auto tokenizer = Tokenizer::Load(dir);
  if (absl::IsNotFound(tokenizer.status())) return std::string();
  TAOPD_RETURN_IF_ERROR(tokenizer.status());
  return (*tokenizer)->hash();
}

absl::StatusOr<std::string> FilesFingerprint(const std::vector<std::string>& paths) {
  Sha256 hash;
  for (const std::string& path : paths) {
    TAOPD_ASSIGN_OR_RETURN(const std::string digest, Sha256OfFile(path));
    Add(std::span<const char>(digest), &hash);
  }
  return hash.HexDigest();
}

}  // namespace

std::string DataFingerprint(const std::vector<PromptRecord>& records, const DataUse& use) {
  Sha256 hash;
  for (const PromptRecord& record : records) {
    Add(std::span<const int32_t>(record.prompt_ids), &hash);
    Add(std::span<const int32_t>(record.response_ids), &hash);
    Add(std::span<const char>(record.answer), &hash);
    if (use.sources_choose_teachers) Add(std::span<const char>(record.source), &hash);
    if (use.has_teacher_prompts) {
      Add(std::span<const char>(record.teacher_prompt.text), &hash);
      Add(std::span<const int32_t>(record.teacher_prompt.ids), &hash);
    }
  }
  for (const DataShare& share : use.shares) {
    Add(std::span<const int64_t>(&share.num_records, 1), &hash);
    Add(std::span<const double>(&share.weight, 1), &hash);
  }
  return hash.HexDigest();
}

absl::StatusOr<RunFacts> FactsOfData(const std::vector<PromptRecord>& records, const DataUse& use,
                                     const std::vector<std::string>& val, const Student& student,
                                     const std::string& tokenizer_dir) {
  RunFacts facts = {{"data_fingerprint", DataFingerprint(records, use), false}};
  if (!val.empty()) {
    TAOPD_ASSIGN_OR_RETURN(const std::string fingerprint, FilesFingerprint(val));
    facts.push_back({"data_val_fingerprint", fingerprint, false});
  }
  TAOPD_ASSIGN_OR_RETURN(const std::string hash, TokenizerHash(student, tokenizer_dir));
  facts.push_back({"tokenizer_hash", hash, false});
  // Checkpoints do not hold the base.
  if (!student.base_revision.empty())
    facts.push_back({"base_revision", student.base_revision, false});
  return facts;
}

RunFacts FactsOfTeacher(const TeacherInfo& teacher) {
  RunFacts facts = {{"teacher_revision", teacher.revision, false}};
  for (const absl::string_view canary : absl::StrSplit(teacher.canary, ',', absl::SkipEmpty())) {
    // It may be NAME=CANARY (RoutingTeacherClient). Without a name, equals + 1 is 0.
    const size_t equals = canary.find('=');
    const std::string name(equals == canary.npos ? "" : canary.substr(0, equals));
    facts.push_back({name.empty() ? "teacher_canary" : "teacher_canary." + name,
                     std::string(canary.substr(equals + 1)), false});
  }
  return facts;
}

}  // namespace taopd
