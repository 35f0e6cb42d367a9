// Facts of a run besides its settings that a resumed run must have in common with the run that
// wrote its checkpoint (trainer/run/resume/resume_check.h).
#pragma once

#include <string>
#include <vector>

#include "trainer/data/prompt_dataset.h"
#include "trainer/run/resume/resume_check.h"
#include "trainer/student/student.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// The uses of the training data, besides the rows and their order, on which a step depends.
struct DataUse {
  bool sources_choose_teachers = false;  // rows go to teachers by their source
  bool has_teacher_prompts = false;      // the teacher sees prompts of its own
  // The weights of the files (data.train_weights); empty if all rows are used once.
  std::vector<DataShare> shares = {};
};

// Returns a hash of the token ids and answers of all rows, in their order, and of `use`.
std::string DataFingerprint(const std::vector<PromptRecord>& records, const DataUse& use = {});

// Returns data_fingerprint of `records`, data_val_fingerprint of the bytes of the files `val`, if
// there are any, and tokenizer_hash. tokenizer_hash is that of `tokenizer_dir`, from which a new
// run takes its tokenizer, not that of the copy in the checkpoint. If the directory is gone, the
// student's own tokenizer is hashed, and a line is logged. A student with adapters has
// base_revision as well. Returns the error of a file that cannot be read.
absl::StatusOr<RunFacts> FactsOfData(const std::vector<PromptRecord>& records, const DataUse& use,
                                     const std::vector<std::string>& val, const Student& student,
                                     const std::string& tokenizer_dir);

// Returns teacher_revision and, if there is a canary, teacher_canary, or teacher_canary.math for
// one of several teachers. A server may have a canary in only one of two runs (TeacherInfo).
RunFacts FactsOfTeacher(const TeacherInfo& teacher);

}  // namespace taopd
