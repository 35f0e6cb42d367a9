// Words that are put around a question before the chat template: a system message and a text with
// {question}.
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

// The built-in ones.
const std::vector<PromptTemplate>& BuiltInPromptTemplates();

// `name_or_text`: the name of a built-in one, a text that holds {question}, or empty (the question
// as it is). `system` is used in place of the template's own unless empty. INVALID_ARGUMENT for
// anything else.
absl::StatusOr<PromptTemplate> MakePromptTemplate(const std::string& name_or_text,
                                                  const std::string& system);

// The user text with every {question} replaced.
std::string FillTemplate(const PromptTemplate& prompt_template, const std::string& question);

}  // namespace taopd
