// The prompt that the teacher sees instead of the student's: privileged context such as a worked
// solution, a hint, or another response to the same prompt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/config/settings.h"
#include "trainer/data/row_template.h"

namespace taopd {

// The treatment of a row, or of a response, for which a part of the teacher's prompt is missing.
enum class MissingTeacherPrompt {
  kError,  // the row is an error
  kPlain,  // the teacher sees the student's prompt
  kSkip,   // the row is dropped; a response without a sibling has no part in the loss
};
inline EnumNames<MissingTeacherPrompt> NamesOf(MissingTeacherPrompt) {
  return {{MissingTeacherPrompt::kError, "error"},
          {MissingTeacherPrompt::kPlain, "plain"},
          {MissingTeacherPrompt::kSkip, "skip"}};
}

// The name that stands in a template for a correct response to the same prompt, and its mark in a
// text.
inline constexpr char kSibling[] = "sibling";
inline constexpr char kSiblingMark[] = "{sibling}";

struct TeacherPromptOptions {
  // The prompt is the one at `key`, read like the student's, or the student's prompt with
  // `row_template` around it. If both are empty, the teacher sees the student's prompt.
  std::string key;
  RowTemplate row_template;
  MissingTeacherPrompt missing = MissingTeacherPrompt::kError;
  // Tokens. A longer prompt is an error, unless DatasetOptions::filter_overlong_prompts drops it.
  int64_t max_length = INT64_MAX;
  // The tokens that are reserved for each {sibling}.
  int64_t sibling_length = 0;
  bool is_used() const { return !key.empty() || !row_template.empty(); }
};

// The teacher's prompt of one row.
struct TeacherPrompt {
  // The text that the teacher sees; empty if the file gives token ids. If has_sibling is set, the
  // places of the sibling are still marked with {sibling}.
  std::string text;
  std::vector<int32_t> ids;  // empty if has_sibling is set
  bool has_sibling = false;
  bool add_special_tokens = false;  // how the text is tokenized once it is complete
  // True if the teacher sees the student's prompt.
  bool is_plain() const { return ids.empty() && !has_sibling; }
  friend bool operator==(const TeacherPrompt&, const TeacherPrompt&) = default;
};

}  // namespace taopd
