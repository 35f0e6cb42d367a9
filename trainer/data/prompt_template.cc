#include "trainer/data/prompt_template.h"

#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>

#include "common/config/settings.h"

namespace taopd {
namespace {

constexpr char kQuestion[] = "{question}";
constexpr char kBoxed[] = "Please reason step by step, and put your final answer within \\boxed{}.";

}  // namespace

const std::vector<PromptTemplate>& BuiltInPromptTemplates() {
  static const std::vector<PromptTemplate> templates = {
      {"ta_opd_eval",
       "Your task is to follow a systematic, thorough reasoning process before providing the final "
       "solution. This involves analyzing, summarizing, exploring, reassessing, and refining your "
       "thought process through multiple iterations. Structure your response into two sections: "
       "Thought and Solution. In the Thought section, present your reasoning using the format: "
       "\"<think>\n {thoughts} </think>\n\". Each thought should include detailed analysis, "
       "brainstorming, verification, and refinement of ideas. After \"</think>\n,\" in the "
       "Solution section, provide the final, logical, and accurate answer, clearly derived from "
       "the exploration in the Thought section. If applicable, include the answer in \\boxed{} for "
       "closed-form results like multiple choices or mathematical solutions.",
       kQuestion, "the paper's evaluation prompt"},
      {"boxed", "", std::string(kQuestion) + "\n" + kBoxed,
       "the usual suffix of mathematical data sets"},
      {"boxed_system", kBoxed, kQuestion, "Qwen2.5-Math"},
      {"dapo", "",
       "Solve the following math problem step by step. The last line of your response should be of "
       "the form Answer: $Answer (without quotes) where $Answer is the answer to the "
       "problem.\n\n{question}\n\nRemember to put your answer on its own line after \"Answer:\".",
       "DAPO-Math-17k as published"},
      {"gsm8k", "",
       "{question} Let's think step by step and output the final answer after \"####\".",
       "verl's GSM8K"},
  };
  return templates;
}

absl::StatusOr<PromptTemplate> MakePromptTemplate(const std::string& name_or_text,
                                                  const std::string& system) {
  PromptTemplate result;
  if (name_or_text.find(kQuestion) != std::string::npos) {
    result.name = "custom";
    result.user = name_or_text;
  } else if (!name_or_text.empty()) {
    std::vector<std::string> names;
    for (const PromptTemplate& built_in : BuiltInPromptTemplates()) {
      names.push_back(built_in.name);
      if (built_in.name == name_or_text) result = built_in;
    }
    if (result.name.empty()) {
      return InvalidArgument("prompt_template \"", name_or_text, "\" is not a built-in one (",
                             absl::StrJoin(names, ", "), ") and lacks ", kQuestion,
                             DidYouMean(name_or_text, names));
    }
  }
  if (!system.empty()) result.system = system;
  return result;
}

std::string FillTemplate(const PromptTemplate& prompt_template, const std::string& question) {
  return absl::StrReplaceAll(prompt_template.user, {{kQuestion, question}});
}

}  // namespace taopd
