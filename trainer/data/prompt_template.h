// The words that are put around a question before the chat template is applied: a system message
// and a text with {question}.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

struct PromptTemplate {
  std::string name;
  std::string system;               // empty: none
  std::string user = "{question}";  // {question} stands for the row's prompt
  std::string source;               // where the words come from
};

// The templates that can be named in a configuration.
const std::vector<PromptTemplate>& BuiltInPromptTemplates();

// Makes a template from the name of a built-in one, from a text that holds {question}, or from an
// empty text, which leaves the question as it is. `system` replaces the template's own system
// message unless it is empty. Returns INVALID_ARGUMENT for any other text.
absl::StatusOr<PromptTemplate> MakePromptTemplate(const std::string& name_or_text,
                                                  const std::string& system);

// Returns the template's user text with every {question} replaced by `question`.
std::string FillTemplate(const PromptTemplate& prompt_template, const std::string& question);

}  // namespace taopd
