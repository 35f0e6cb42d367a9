// What a run must have in common with the run that it continues, beside its settings.
#pragma once

#include <string>
#include <vector>

#include "trainer/data/prompt_dataset.h"
#include "trainer/run/resume_check.h"
#include "trainer/student/student.h"

namespace taopd {

// SHA-256 over the token ids of all prompts and given responses and over their answers, in order.
std::string DataFingerprint(const std::vector<PromptRecord>& records);

// data_fingerprint and tokenizer_hash, which is empty without a tokenizer.
RunFacts FactsOfData(const std::vector<PromptRecord>& records, const Student& student);

}  // namespace taopd
