#include "trainer/objective/objective_cases.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <vector>

#include "common/io/file.h"
#include "common/io/jsonl.h"
#include "taopd/objective/check_objective.h"

namespace taopd {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// The fields of a case, besides the objectives' parameters.
constexpr std::array kKnownFields = {
    "id",
    "source",
    "objective",
    "terms",
    "vocab",
    "k",
    "logits",
    "support_ids",
    "teacher_logprobs",
    "sampled_id",
    "teacher_log_tail",
    "teacher_logprob_sampled",
    "expected",
    "behavior_logprob",
    "teacher_full_logprobs",
    "teacher_entropy",
    "advantage",
};

bool IsKnownField(const std::string& field) {
  return std::ranges::find(kKnownFields, field) != kKnownFields.end() ||
         std::ranges::any_of(kObjectiveParameters,
                             [&](const auto& parameter) { return parameter.name == field; });
}

bool Has(const Json& json, const char* field) {
  const auto found = json.find(field);
  return found != json.end() && !found->is_null();
}

absl::StatusOr<double> Number(const Json& json, const char* field) {
  if (!Has(json, field)) return InvalidArgument(field, " is missing");
  if (!json[field].is_number()) {
    return InvalidArgument(field, " is ", json[field].dump(), ", must be a number");
  }
  return json[field].get<double>();
}

// Reads a log-probability, which is at most 0 up to the rounding of float32 sums.
absl::StatusOr<double> LogProb(const Json& value, const std::string& field) {
  constexpr double kRounding = 1e-5;
  if (value.is_null()) return NegativeInfinity<double>();
  if (!value.is_number()) {
    return InvalidArgument(field, " is ", value.dump(), ", must be a number or null");
  }
  if (value.get<double>() > kRounding) {
    return InvalidArgument(field, " is ", value.get<double>(), ", must be at most 0");
  }
  return value.get<double>();
}

absl::StatusOr<std::vector<double>> LogProbs(const Json& json, const char* field, size_t size) {
  if (!Has(json, field)) return InvalidArgument(field, " is missing");
  const Json& list = json[field];
  if (!list.is_array() || list.size() != size) {
    return InvalidArgument(field, " has ", list.is_array() ? Concat(list.size()) : list.type_name(),
                           " entries, must have ", size);
  }
  std::vector<double> log_probs;
  for (size_t i = 0; i < size; ++i) {
    TAOPD_ASSIGN_OR_RETURN(log_probs.emplace_back(), LogProb(list[i], Concat(field, "[", i, "]")));
  }
  return log_probs;
}

absl::StatusOr<int32_t> TokenId(const Json& value, const std::string& field, size_t vocabulary) {
  const bool fits = value.is_number_integer() && value.get<double>() >= 0 &&
                    value.get<double>() < static_cast<double>(vocabulary);
  if (!fits) {
    return InvalidArgument(field, " is ", value.dump(), ", must be an id from 0 to ",
                           vocabulary - 1);
  }
  return value.get<int32_t>();
}

absl::StatusOr<Objective> NamedObjective(const Json& name, const Json& json) {
  if (!name.is_string()) return InvalidArgument("objective is ", name.dump(), ", must be a name");
  std::optional<Objective> objective = FindObjective(name.get<std::string>());
  if (!objective) {
    return InvalidArgument("objective is ", name.dump(),
                           ", must be a name that `taopd-trainer objectives` lists");
  }
  for (const ObjectiveParameter& parameter : kObjectiveParameters) {
    const std::string field(parameter.name);
    if (!Has(json, field.c_str())) continue;
    TAOPD_ASSIGN_OR_RETURN((*objective).*parameter.value, Number(json, field.c_str()));
  }
  return *objective;
}

absl::StatusOr<ObjectiveTerms> ReadTerms(const Json& json) {
  if (Has(json, "objective") == Has(json, "terms")) {
    return InvalidArgument("exactly one of objective and terms must be given");
  }
  ObjectiveTerms terms;
  if (Has(json, "objective")) {
    TAOPD_ASSIGN_OR_RETURN(terms, NamedObjective(json["objective"], json));
  } else {
    const Json& list = json["terms"];
    if (!list.is_array() || list.empty() || list.size() > kMaxObjectiveTerms) {
      return InvalidArgument("terms must be a list of 1 to ", kMaxObjectiveTerms, " terms");
    }
    terms.num_terms = static_cast<int32_t>(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      if (!list[i].is_object() || list[i].size() != 2 || !Has(list[i], "name")) {
        return InvalidArgument("terms[", i, "] is ", list[i].dump(), ", must be {name, weight}");
      }
      TAOPD_ASSIGN_OR_RETURN(terms.term[i].objective, NamedObjective(list[i]["name"], json));
      TAOPD_ASSIGN_OR_RETURN(terms.term[i].weight, Number(list[i], "weight"));
    }
  }
  const std::string problem = ProblemOf(terms);
  if (!problem.empty()) return InvalidArgument(problem);
  return terms;
}

absl::Status CheckSize(const Json& json, const char* field, size_t size) {
  if (!Has(json, field)) return absl::OkStatus();
  TAOPD_ASSIGN_OR_RETURN(const double given, Number(json, field));
  if (given == static_cast<double>(size)) return absl::OkStatus();
  return InvalidArgument(field, " is ", given, " but the arrays have ", size);
}

// Reads the support and the teacher's log-probabilities on it.
absl::Status ReadSupport(const Json& json, uint32_t traits, cpu::DenseRow* row) {
  const size_t vocabulary = row->logits.size();
  if (traits & kNeedsFullVocabulary) {
    TAOPD_ASSIGN_OR_RETURN(row->teacher_log_probs,
                           LogProbs(json, "teacher_full_logprobs", vocabulary));
    row->support_ids.resize(vocabulary);
    std::iota(row->support_ids.begin(), row->support_ids.end(), 0);
    row->teacher_log_tail = NegativeInfinity<double>();
    return absl::OkStatus();
  }
  if (!Has(json, "support_ids") && !(traits & kNeedsSupport)) return absl::OkStatus();
  if (!Has(json, "support_ids") || !json["support_ids"].is_array()) {
    return InvalidArgument("support_ids is missing");
  }
  const Json& ids = json["support_ids"];
  if (ids.size() > vocabulary || ids.empty()) {
    return InvalidArgument("support_ids has ", ids.size(), " ids, must have 1 to ", vocabulary);
  }
  for (size_t j = 0; j < ids.size(); ++j) {
    TAOPD_ASSIGN_OR_RETURN(row->support_ids.emplace_back(),
                           TokenId(ids[j], Concat("support_ids[", j, "]"), vocabulary));
  }
  TAOPD_RETURN_IF_ERROR(CheckSize(json, "k", ids.size()));
  TAOPD_ASSIGN_OR_RETURN(row->teacher_log_probs, LogProbs(json, "teacher_logprobs", ids.size()));
  if (Has(json, "teacher_log_tail")) {
    TAOPD_ASSIGN_OR_RETURN(row->teacher_log_tail,
                           LogProb(json["teacher_log_tail"], "teacher_log_tail"));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> LargestDifference(const Json& expected, const std::vector<double>& grad) {
  if (!expected.is_array() || expected.size() != grad.size()) {
    return InvalidArgument("expected.grad must have ", grad.size(), " numbers");
  }
  double largest = 0;
  for (size_t v = 0; v < grad.size(); ++v) {
    if (!expected[v].is_number()) return InvalidArgument("expected.grad[", v, "] is not a number");
    largest = std::max(largest, std::abs(expected[v].get<double>() - grad[v]));
  }
  return largest;
}

}  // namespace

absl::StatusOr<ObjectiveCase> ReadObjectiveCase(const Json& json) {
  if (!json.is_object()) return InvalidArgument("the case is not a JSON object");
  for (const auto& [field, value] : json.items()) {
    if (!IsKnownField(field)) {
      return InvalidArgument("\"", field, "\" is not a field of a case");
    }
  }
  ObjectiveCase one;
  if (Has(json, "id")) one.id = json["id"];
  TAOPD_ASSIGN_OR_RETURN(one.objective, ReadTerms(json));
  const uint32_t traits = TraitsOf(one.objective);

  if (!Has(json, "logits") || !json["logits"].is_array() || json["logits"].empty()) {
    return InvalidArgument("logits must be a list of at least one number");
  }
  for (size_t v = 0; v < json["logits"].size(); ++v) {
    const Json& logit = json["logits"][v];
    if (!logit.is_number() || !std::isfinite(logit.get<double>())) {
      return InvalidArgument("logits[", v, "] is ", logit.dump(), ", must be a finite number");
    }
    one.row.logits.push_back(logit.get<double>());
  }
  const size_t vocabulary = one.row.logits.size();
  TAOPD_RETURN_IF_ERROR(CheckSize(json, "vocab", vocabulary));
  TAOPD_RETURN_IF_ERROR(ReadSupport(json, traits, &one.row));

  if (!Has(json, "sampled_id")) return InvalidArgument("sampled_id is missing");
  TAOPD_ASSIGN_OR_RETURN(one.row.sampled_id, TokenId(json["sampled_id"], "sampled_id", vocabulary));
  if (json.contains("teacher_logprob_sampled")) {
    TAOPD_ASSIGN_OR_RETURN(one.row.teacher_sampled_log_prob,
                           LogProb(json["teacher_logprob_sampled"], "teacher_logprob_sampled"));
  } else if (traits & kNeedsTeacherSampled) {
    return InvalidArgument("teacher_logprob_sampled is missing; objective ", NameOf(one.objective),
                           " needs it");
  }
  if (Has(json, "behavior_logprob")) {
    TAOPD_ASSIGN_OR_RETURN(one.row.behavior_log_prob,
                           LogProb(json["behavior_logprob"], "behavior_logprob"));
  }
  if (Has(json, "teacher_entropy") || (traits & kNeedsTeacherEntropy)) {
    TAOPD_ASSIGN_OR_RETURN(one.row.teacher_entropy, Number(json, "teacher_entropy"));
    if (!(one.row.teacher_entropy >= 0)) {
      return InvalidArgument("teacher_entropy is ", one.row.teacher_entropy,
                             ", must be at least 0");
    }
  }
  if (Has(json, "advantage") || (traits & kNeedsAdvantage)) {
    TAOPD_ASSIGN_OR_RETURN(one.row.advantage, Number(json, "advantage"));
  }
  if (Has(json, "expected")) one.expected = json["expected"];
  return one;
}

absl::StatusOr<OrderedJson> EvaluateObjectiveCase(const ObjectiveCase& one) {
  cpu::DenseRowResult result;
  const cpu::RowStatus status = cpu::EvaluateDenseRow(one.objective, one.row, &result);
  if (status != cpu::RowStatus::kOk) return InvalidArgument(cpu::Describe(status));
  OrderedJson json;
  json["id"] = one.id;
  json["loss"] = result.loss;
  json["grad"] = result.gradient;
  for (size_t m = 0; m < kHeadMetrics.size(); ++m) {
    json["metrics"][std::string(kHeadMetrics[m].name)] = result.metrics[m];
  }
  for (int32_t i = 0; i < one.objective.num_terms; ++i) {
    json["metrics"]["term_loss"].push_back(result.metrics[kTermLoss + i]);
  }
  if (one.expected.is_null()) return json;
  if (!one.expected.is_object()) return InvalidArgument("expected must be {loss, grad}");
  TAOPD_ASSIGN_OR_RETURN(const double loss, Number(one.expected, "loss"));
  json["loss_difference"] = std::abs(result.loss - loss);
  if (Has(one.expected, "grad")) {
    TAOPD_ASSIGN_OR_RETURN(const double difference,
                           LargestDifference(one.expected["grad"], result.gradient));
    json["grad_difference"] = difference;
  }
  return json;
}

absl::StatusOr<ObjectiveCasesSummary> EvaluateObjectiveCases(const std::string& input_path,
                                                             const std::string& output_path) {
  std::error_code unreadable;
  if (std::filesystem::equivalent(input_path, output_path, unreadable)) {
    return InvalidArgument("the output ", output_path, " is the input");
  }
  if (!FileExists(input_path)) return NotFound(input_path, " does not exist");
  TAOPD_ASSIGN_OR_RETURN(JsonlWriter output, JsonlWriter::Open(output_path, 0));
  ObjectiveCasesSummary summary;
  const auto evaluate = [&](const Json& line, int64_t) -> absl::Status {
    ++summary.num_cases;
    absl::StatusOr<ObjectiveCase> one = ReadObjectiveCase(line);
    absl::StatusOr<OrderedJson> result =
        one.ok() ? EvaluateObjectiveCase(*one) : absl::StatusOr<OrderedJson>(one.status());
    if (!result.ok()) {
      ++summary.num_refused;
      OrderedJson refused;
      refused["id"] = line.is_object() && line.contains("id") ? OrderedJson(line["id"]) : nullptr;
      refused["error"] = std::string(result.status().message());
      return output.Write(refused);
    }
    if (result->contains("loss_difference")) {
      ++summary.num_expected;
      summary.max_loss_difference =
          std::max(summary.max_loss_difference, (*result)["loss_difference"].get<double>());
    }
    if (result->contains("grad_difference")) {
      summary.max_grad_difference =
          std::max(summary.max_grad_difference, (*result)["grad_difference"].get<double>());
    }
    return output.Write(*result);
  };
  TAOPD_RETURN_IF_ERROR(ReadJsonl(input_path, evaluate));
  return summary;
}

}  // namespace taopd
