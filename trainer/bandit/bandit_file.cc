#include "trainer/bandit/bandit_file.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "common/io/jsonl.h"

namespace taopd::bandit {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr char kFormat[] = "taopd-bandit-1";
constexpr int64_t kMost = int64_t{1} << 53;  // every JSON reader keeps integers up to it exact

// Reads the fields of an object. `where` names the object in messages.
class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  absl::StatusOr<Json> Field(const char* name) const {
    const auto found = json_.is_object() ? json_.find(name) : json_.end();
    if (!json_.is_object() || found == json_.end()) {
      return DataLoss(where_, name, " is missing");
    }
    return *found;
  }
  absl::StatusOr<double> Number(const char* name) const {
    TAOPD_ASSIGN_OR_RETURN(const Json value, Field(name));
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      return DataLoss(where_, name, " is ", value.dump().substr(0, 40), ", must be a number");
    }
    return value.get<double>();
  }
  absl::StatusOr<int64_t> Integer(const char* name, int64_t low, int64_t high) const {
    TAOPD_ASSIGN_OR_RETURN(const double value, Number(name));
    if (value != std::floor(value) || value < static_cast<double>(low) ||
        value > static_cast<double>(high)) {
      return DataLoss(where_, name, " is ", value, ", must be an integer from ", low, " to ", high);
    }
    return static_cast<int64_t>(value);
  }
  absl::StatusOr<std::string> Text(const char* name) const {
    TAOPD_ASSIGN_OR_RETURN(const Json value, Field(name));
    if (!value.is_string()) return DataLoss(where_, name, " is not a text");
    return value.get<std::string>();
  }
  absl::StatusOr<std::vector<double>> Numbers(const char* name, size_t size) const {
    TAOPD_ASSIGN_OR_RETURN(const Json value, Field(name));
    return ToNumbers(value, Concat(where_, name), size);
  }
  absl::StatusOr<std::vector<int64_t>> Integers(const char* name, size_t size, int64_t low,
                                                int64_t high) const {
    TAOPD_ASSIGN_OR_RETURN(const std::vector<double> values, Numbers(name, size));
    for (double value : values) {
      if (value != std::floor(value) || value < static_cast<double>(low) ||
          value > static_cast<double>(high)) {
        return DataLoss(where_, name, " holds ", value, ", must be integers from ", low, " to ",
                        high);
      }
    }
    return std::vector<int64_t>(values.begin(), values.end());
  }
  absl::StatusOr<std::vector<double>> Policy(const char* name) const {
    TAOPD_ASSIGN_OR_RETURN(const std::vector<double> policy, Numbers(name, kNumArms));
    for (double p : policy) {
      if (p < 0 || p > 1) return DataLoss(where_, name, " holds ", p, ", not a probability");
    }
    return policy;
  }

  static absl::StatusOr<std::vector<double>> ToNumbers(const Json& value, const std::string& where,
                                                       size_t size) {
    if (!value.is_array() || value.size() != size) {
      return DataLoss(where, " must be a list of ", size, " numbers");
    }
    std::vector<double> numbers;
    for (const Json& number : value) {
      if (!number.is_number() || !std::isfinite(number.get<double>())) {
        return DataLoss(where, " holds ", number.dump().substr(0, 40), ", must be finite numbers");
      }
      numbers.push_back(number.get<double>());
    }
    return numbers;
  }

 private:
  const Json& json_;
  std::string where_;
};

absl::StatusOr<ObjectiveRun> ReadRun(const Json& json, const std::string& where) {
  const Reader reader(json, where);
  ObjectiveRun run;
  TAOPD_ASSIGN_OR_RETURN(run.objective, reader.Text("objective"));
  TAOPD_ASSIGN_OR_RETURN(run.policy, reader.Policy("policy"));
  TAOPD_ASSIGN_OR_RETURN(const Json trajectory, reader.Field("trajectory"));
  const Reader points(trajectory, where + "trajectory.");
  TAOPD_ASSIGN_OR_RETURN(const Json logits, points.Field("logits"));
  if (!logits.is_array() || logits.empty()) {
    return DataLoss(where, "trajectory.logits must be a list with at least one point");
  }
  TAOPD_ASSIGN_OR_RETURN(const auto steps, points.Integers("step", logits.size(), 0, kMost));
  TAOPD_ASSIGN_OR_RETURN(const auto kls, points.Numbers("full_kl", logits.size()));
  TAOPD_ASSIGN_OR_RETURN(const auto tails, points.Numbers("student_tail", logits.size()));
  for (size_t i = 0; i < logits.size(); ++i) {
    TrajectoryPoint point;
    point.step = steps[i];
    point.full_kl = kls[i];
    point.student_tail = tails[i];
    TAOPD_ASSIGN_OR_RETURN(
        point.logits,
        Reader::ToNumbers(logits[i], Concat(where, "trajectory.logits[", i, "]"), kNumArms));
    run.trajectory.push_back(std::move(point));
  }
  return run;
}

absl::StatusOr<Result> FromJson(const Json& json) {
  const Reader reader(json, "");
  TAOPD_ASSIGN_OR_RETURN(const std::string format, reader.Text("format"));
  if (format != kFormat) return DataLoss("format is \"", format, "\", must be ", kFormat);
  Result result;
  Options& options = result.options;
  TAOPD_ASSIGN_OR_RETURN(const std::string support, reader.Text("support"));
  TAOPD_ASSIGN_OR_RETURN(options.support, ParseSupport(support));
  TAOPD_ASSIGN_OR_RETURN(const int64_t k, reader.Integer("k", 1, kNumArms));
  options.k = static_cast<int32_t>(k);
  TAOPD_ASSIGN_OR_RETURN(options.steps, reader.Integer("steps", 1, kMost));
  TAOPD_ASSIGN_OR_RETURN(const int64_t seed, reader.Integer("seed", 0, kMost));
  options.seed = static_cast<uint64_t>(seed);
  TAOPD_ASSIGN_OR_RETURN(options.learning_rate, reader.Number("learning_rate"));
  TAOPD_ASSIGN_OR_RETURN(options.weight_decay, reader.Number("weight_decay"));
  TAOPD_ASSIGN_OR_RETURN(options.record_every, reader.Integer("record_every", 1, kMost));
  TAOPD_ASSIGN_OR_RETURN(options.initial_logits, reader.Numbers("initial_logits", kNumArms));

  TAOPD_ASSIGN_OR_RETURN(const Json teacher_json, reader.Field("teacher"));
  const Reader teacher(teacher_json, "teacher.");
  TAOPD_ASSIGN_OR_RETURN(result.teacher, teacher.Policy("policy"));
  TAOPD_ASSIGN_OR_RETURN(result.teacher_tail, teacher.Number("tail"));
  TAOPD_ASSIGN_OR_RETURN(const auto ids, teacher.Integers("support", k, 0, kNumArms - 1));
  result.teacher_support.assign(ids.begin(), ids.end());
  for (double p : result.teacher) {
    if (p == 0) return DataLoss("teacher.policy holds 0, must be positive");
  }

  TAOPD_ASSIGN_OR_RETURN(const Json runs, reader.Field("runs"));
  if (!runs.is_array() || runs.empty())
    return DataLoss("runs must be a list with at least one run");
  for (size_t i = 0; i < runs.size(); ++i) {
    TAOPD_ASSIGN_OR_RETURN(result.runs.emplace_back(), ReadRun(runs[i], Concat("runs[", i, "].")));
  }
  return result;
}

}  // namespace

absl::Status WriteResult(const Result& result, const std::string& path) {
  const Options& options = result.options;
  OrderedJson json;
  json["format"] = kFormat;
  json["support"] = NameOf(options.support);
  json["k"] = options.k;
  json["steps"] = options.steps;
  json["seed"] = options.seed;
  json["learning_rate"] = options.learning_rate;
  json["weight_decay"] = options.weight_decay;
  json["record_every"] = options.record_every;
  json["initial_logits"] = options.initial_logits;
  json["teacher"] = {{"policy", result.teacher},
                     {"support", result.teacher_support},
                     {"tail", result.teacher_tail}};
  json["runs"] = OrderedJson::array();
  for (const ObjectiveRun& run : result.runs) {
    OrderedJson points;
    for (const TrajectoryPoint& point : run.trajectory) {
      points["step"].push_back(point.step);
      points["full_kl"].push_back(point.full_kl);
      points["student_tail"].push_back(point.student_tail);
      points["logits"].push_back(point.logits);
    }
    json["runs"].push_back({{"objective", run.objective},
                            {"policy", run.policy},
                            {"full_kl", run.trajectory.back().full_kl},
                            {"student_tail", run.trajectory.back().student_tail},
                            {"trajectory", std::move(points)}});
  }
  return WriteFileAtomically(path, json.dump() + "\n");
}

absl::StatusOr<Result> ReadResult(const std::string& path) {
  TAOPD_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  absl::StatusOr<Result> result = FromJson(json);
  if (!result.ok()) return DataLoss(path, ": ", result.status().message());
  return result;
}

}  // namespace taopd::bandit
