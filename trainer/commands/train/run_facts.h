// Facts of a run that no setting holds, and that a resumed run must have in common with the run
// that wrote its checkpoint (trainer/run/resume_check.h).
#pragma once

#include <string>
#include <vector>

#include "trainer/data/prompt_dataset.h"
#include "trainer/run/resume_check.h"
#include "trainer/student/student.h"

namespace taopd {

// What of the training data a step depends on beside the rows and their order.
struct DataUse {
  bool sources_choose_teachers = false;  // rows go to teachers by their source
  // How often the rows of each file are used (data.train_weights); empty if all are used once.
  std::vector<DataShare> shares;
};

// A hash of the token ids and answers of all rows, in their order, and of `use`.
std::string DataFingerprint(const std::vector<PromptRecord>& records, const DataUse& use = {});

// data_fingerprint, of `records`; data_val_fingerprint, of the bytes of the files `val`, if there
// are any; and tokenizer_hash. The latter is that of `tokenizer_dir`, where a new run takes its
// tokenizer from, rather than of the copy in the checkpoint. If the directory is gone, the log says
// so and the student's own counts. An error is that of a file that cannot be read.
absl::StatusOr<RunFacts> FactsOfData(const std::vector<PromptRecord>& records, const DataUse& use,
                                     const std::vector<std::string>& val, const Student& student,
                                     const std::string& tokenizer_dir);

}  // namespace taopd
