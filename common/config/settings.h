// Settings that are declared once. A configuration is a plain struct whose members hold the
// defaults and whose Visit lists, per setting, the name, the help and the check:
//
//   struct OptimizerConfig {
//     double lr = 1e-6;
//     int64_t warmup_steps = 0;
//     void Visit(SettingVisitor& v) {
//       v.Setting("lr", &lr, "Peak learning rate.", AtLeast(0.0));
//       v.Setting("warmup_steps", &warmup_steps, "Steps of linear warm-up.", AtLeast<int64_t>(0));
//     }
//   };
//   struct TrainConfig {
//     OptimizerConfig optimizer;
//     void Visit(SettingVisitor& v) { v.Section("optimizer", "AdamW and its schedule.", optimizer); }
//   };
//
// Reading YAML, --set overrides, command-line flags, printing and the reference in the README all
// come from that list (yaml.h, flags.h, reference.h). Nothing is read that is not declared: an
// unknown key is an error that names the nearest known one.
//
// A SettingTable points into the struct it was made from, which must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/status.h"

namespace taopd {

using SettingPointer = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*,
                                    std::vector<int64_t>*, std::vector<double>*>;

// Says what is wrong with a value ("must be at least 0"), or OK.
template <typename T>
using SettingCheck = std::function<absl::Status(const T&)>;

struct Setting {
  std::string path;  // "optimizer.lr"
  std::string help;
  SettingPointer value;
  std::function<absl::Status()> check;  // of the present value; the message holds no path
};

struct SettingSection {
  std::string path;  // "optimizer"
  std::string help;
};

class SettingVisitor {
 public:
  template <typename T>
  void Setting(const std::string& name, T* value, const std::string& help, SettingCheck<T> check = nullptr) {
    std::function<absl::Status()> bound;
    if (check) bound = [value, check = std::move(check)] { return check(*value); };
    settings_.push_back({prefix_ + name, help, SettingPointer(value), std::move(bound)});
  }

  template <typename Struct>
  void Section(const std::string& name, const std::string& help, Struct& section) {
    sections_.push_back({prefix_ + name, help});
    const std::string outer = prefix_;
    prefix_ += name + ".";
    section.Visit(*this);
    prefix_ = outer;
  }

  const std::vector<taopd::Setting>& settings() const { return settings_; }
  const std::vector<SettingSection>& sections() const { return sections_; }

 private:
  std::string prefix_;
  std::vector<taopd::Setting> settings_;
  std::vector<SettingSection> sections_;
};

using SettingTable = SettingVisitor;

template <typename Config>
SettingTable DescribeSettings(Config& config) {
  SettingTable table;
  config.Visit(table);
  return table;
}

// Runs every check; the message starts with the path: "optimizer.lr = -1: must be at least 0".
absl::Status CheckSettings(const SettingTable& table);

// The value as YAML flow text: 1e-06, true, "text", [1, 2].
std::string SettingText(const SettingPointer& value);
// "boolean", "integer", "number", "text", "list of text", ...
std::string SettingTypeName(const SettingPointer& value);

// " (did you mean \"lr\"?)" for the closest of `known` within two edits or a third of the length,
// else an empty text.
std::string DidYouMean(const std::string& unknown, const std::vector<std::string>& known);

// ---- Checks ----
template <typename T>
SettingCheck<T> AtLeast(T limit) {
  return [limit](const T& v) {
    return v >= limit ? absl::OkStatus() : InvalidArgument("must be at least ", limit);
  };
}
template <typename T>
SettingCheck<T> MoreThan(T limit) {
  return [limit](const T& v) {
    return v > limit ? absl::OkStatus() : InvalidArgument("must be more than ", limit);
  };
}
template <typename T>
SettingCheck<T> Between(T low, T high) {
  return [low, high](const T& v) {
    return v >= low && v <= high ? absl::OkStatus()
                                 : InvalidArgument("must be between ", low, " and ", high);
  };
}
SettingCheck<std::string> OneOf(std::vector<std::string> choices);
SettingCheck<std::string> NotEmpty();

}  // namespace taopd
