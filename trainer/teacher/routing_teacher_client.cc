#include "trainer/teacher/routing_teacher_client.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace taopd {

void LowerLimits(const TeacherInfo& info, TeacherInfo* all) {
  if (info.head_vocab_size > 0) {
    all->head_vocab_size = all->head_vocab_size > 0
                               ? std::min(all->head_vocab_size, info.head_vocab_size)
                               : info.head_vocab_size;
  }
  all->max_model_len = std::min(all->max_model_len, info.max_model_len);
  all->max_top_k = std::min(all->max_top_k, info.max_top_k);
  all->max_candidates = std::min(all->max_candidates, info.max_candidates);
  all->max_dense_vocab_size = std::min(all->max_dense_vocab_size, info.max_dense_vocab_size);
  all->supports_temperature &= info.supports_temperature;
  all->supports_entropy &= info.supports_entropy;
  all->sends_tail &= info.sends_tail;
  all->has_stable_scores &= info.has_stable_scores;
  for (const int32_t id : info.eos_token_ids) {
    std::vector<int32_t>& ids = all->eos_token_ids;
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  }
}

RoutingTeacherClient::RoutingTeacherClient(std::vector<RoutedTeacher> teachers)
    : teachers_(std::move(teachers)) {
  TAOPD_CHECK(!teachers_.empty());
  for (const RoutedTeacher& teacher : teachers_) {
    if (teacher.sources.empty()) {
      TAOPD_CHECK(default_ == nullptr);
      default_ = &teacher;
    }
    for (const std::string& source : teacher.sources) {
      TAOPD_CHECK(by_source_.emplace(source, &teacher).second);
    }
  }
}

absl::StatusOr<TeacherInfo> RoutingTeacherClient::Connect(absl::Duration timeout) {
  TeacherInfo all;
  std::string tokenizer_owner;
  for (size_t i = 0; i < teachers_.size(); ++i) {
    const RoutedTeacher& teacher = teachers_[i];
    auto info = teacher.client->Connect(timeout);
    if (!info.ok()) return Annotate(info.status(), teacher.name);
    if (!info->tokenizer_hash.empty()) {
      if (!all.tokenizer_hash.empty() && all.tokenizer_hash != info->tokenizer_hash) {
        return FailedPrecondition("the teachers ", tokenizer_owner, " and ", teacher.name,
                                  " have different tokenizers");
      }
      all.tokenizer_hash = info->tokenizer_hash;
      tokenizer_owner = teacher.name;
    }
    if (i == 0) {
      const std::string hash = all.tokenizer_hash;
      all = *info;
      all.tokenizer_hash = hash;
      all.model_name = all.revision = all.canary = "";
    }
    all.model_name += Concat(i > 0 ? "," : "", teacher.name, "=", info->model_name);
    all.revision += Concat(i > 0 ? "," : "", teacher.name, "=", info->revision);
    if (!info->canary.empty())
      all.canary += Concat(all.canary.empty() ? "" : ",", teacher.name, "=", info->canary);
    LowerLimits(*info, &all);
  }
  return all;
}

absl::Status RoutingTeacherClient::CheckSize(const TeacherRequest& request,
                                             const TeacherInfo& info) const {
  for (const RoutedTeacher& teacher : teachers_) {
    TAOPD_RETURN_IF_ERROR(Annotate(teacher.client->CheckSize(request, info), teacher.name));
  }
  return absl::OkStatus();
}

const RoutedTeacher* RoutingTeacherClient::TeacherOf(const std::string& source) const {
  const auto found = by_source_.find(source);
  return found == by_source_.end() ? default_ : found->second;
}

void RoutingTeacherClient::Score(TeacherRequest request, Done done) {
  const RoutedTeacher* teacher = TeacherOf(request.source);
  if (teacher == nullptr) {
    return done(InvalidArgument("no teacher has the source \"", request.source, "\" of request \"",
                                request.request_id, "\""));
  }
  teacher->client->Score(std::move(request),
                         [teacher, done = std::move(done)](absl::StatusOr<TeacherScores> scores) {
                           if (!scores.ok()) return done(Annotate(scores.status(), teacher->name));
                           scores->weight *= teacher->weight;
                           done(std::move(scores));
                         });
}

TeacherClientStats RoutingTeacherClient::stats() const {
  TeacherClientStats all;
  const std::vector<uint64_t*> sums = all.Counters();
  for (const RoutedTeacher& teacher : teachers_) {
    TeacherClientStats stats = teacher.client->stats();
    stats.name = teacher.name;
    for (size_t i = 0; i < sums.size(); ++i) *sums[i] += *stats.Counters()[i];
    all.in_flight += stats.in_flight;
    all.queued += stats.queued;
    all.waiting |= stats.waiting;
    all.age = std::max(all.age, stats.age);
    all.teachers.push_back(std::move(stats));
  }
  return all;
}

}  // namespace taopd
