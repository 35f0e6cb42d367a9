// A summary of a data set, as JSON for programs and as text for people: counts by file and by
// source, prompt lengths, and samples.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/text/tokenizer/tokenizer.h"
#include "trainer/data/prompt_dataset.h"

namespace taopd {

struct SourceCounts {
  std::string source;
  int64_t num_records = 0;
  int64_t num_answers = 0;  // records with a reference answer
};

// The distribution of the prompt lengths, in tokens.
struct LengthHistogram {
  struct Bin {
    int64_t low = 0;   // included
    int64_t high = 0;  // not included
    int64_t count = 0;
  };
  std::vector<Bin> bins;  // at most 16, of equal width, which is a power of two
  int64_t min = 0, median = 0, p99 = 0, max = 0;
  double mean = 0;
  int64_t total = 0;
};

std::vector<SourceCounts> CountSources(const PromptDataset& dataset);  // sorted by name
LengthHistogram MeasureLengths(const PromptDataset& dataset);
LengthHistogram MeasureResponseLengths(const PromptDataset& dataset);  // of given responses
// Measures the teacher's own prompts. A {sibling} counts as its mark, which is not tokenized yet,
// so records with one are left out.
LengthHistogram MeasureTeacherLengths(const PromptDataset& dataset);

struct SummaryOptions {
  std::vector<double> weights;           // one per file; if empty, every file has the weight 1
  int64_t num_samples = 3;               // number of records shown, spread evenly over the data set
  const Tokenizer* tokenizer = nullptr;  // shows given responses as text; if null, as ids alone
};
// `name` is the setting that names the files: data.train or data.val.
nlohmann::ordered_json DatasetSummaryJson(const std::string& name, const PromptDataset& dataset,
                                          const SummaryOptions& options);
// Formats the JSON of DatasetSummaryJson as text.
std::string DatasetSummaryText(const nlohmann::ordered_json& summary);

}  // namespace taopd
