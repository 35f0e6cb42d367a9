// The text that is put around a question before the chat template is applied: a system message and
// a user message with {question}.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

struct PromptTemplate {
  std::string name;
  std::string system;               // the system message; empty if there is none
  std::string user = "{question}";  // {question} stands for the row's prompt
  std::string source;               // the origin of the text
};

// Returns the templates that a configuration can name.
const std::vector<PromptTemplate>& BuiltInPromptTemplates();

// Makes a template from the name of a built-in one, from a text that contains {question}, or from
// an empty text, which leaves the question unchanged. `system` replaces the template's own system
// message unless it is empty. Returns INVALID_ARGUMENT for any other text.
absl::StatusOr<PromptTemplate> MakePromptTemplate(const std::string& name_or_text,
                                                  const std::string& system);

// Returns the template's user text with every {question} replaced by `question`.
std::string FillTemplate(const PromptTemplate& prompt_template, const std::string& question);

}  // namespace taopd
