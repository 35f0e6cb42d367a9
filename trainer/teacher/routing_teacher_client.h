// Puts several teachers behind one client. The data set of a prompt (TeacherRequest::source)
// determines the teacher that scores its responses; the teacher's weight becomes
// TeacherScores::weight.
//
// Threads: the rules of TeacherClient apply.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainer/teacher/teacher_client.h"

namespace taopd {

// Lowers the limits of `all` to those of one more teacher, and adds its end-of-sequence ids.
void LowerLimits(const TeacherInfo& info, TeacherInfo* all);

struct RoutedTeacher {
  std::string name;
  std::unique_ptr<TeacherClient> client;
  std::vector<std::string> sources;  // if empty, all sources that no other teacher has
  double weight = 1.0;
};

class RoutingTeacherClient final : public TeacherClient {
 public:
  // REQUIRES: `teachers` is not empty, no source occurs twice, and at most one teacher has none.
  explicit RoutingTeacherClient(std::vector<RoutedTeacher> teachers);

  // Connects to one teacher after the other. The result joins their names and revisions with ","
  // and holds the smallest limit of each kind. Returns FAILED_PRECONDITION if two teachers have
  // different tokenizers.
  absl::StatusOr<TeacherInfo> Connect(absl::Duration timeout) override;
  absl::Status CheckSize(const TeacherRequest& request, const TeacherInfo& info) const override;
  // Answers INVALID_ARGUMENT on the calling thread for a source that no teacher has.
  void Score(TeacherRequest request, Done done) override;
  TeacherClientStats stats() const override;

 private:
  const RoutedTeacher* TeacherOf(const std::string& source) const;

  const std::vector<RoutedTeacher> teachers_;
  std::map<std::string, const RoutedTeacher*> by_source_;
  const RoutedTeacher* default_ = nullptr;  // for all other sources; may be null
};

}  // namespace taopd
