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
//     void Visit(SettingVisitor& v) { v.Section("optimizer", "AdamW and its schedule.", optimizer);
//     }
//   };
//
// A list of sections has the same items each:
//
//   std::vector<TermConfig> terms;
//   v.List("terms", &terms, "Weighted objectives.");   // terms: [{name: ta_opd, weight: 1}, ...]
//
// Reading YAML, --set overrides, command-line flags, printing and the reference in the README all
// come from that list (yaml.h, flags.h, reference.h). Nothing is read that is not declared: an
// unknown key is an error that names the nearest known one.
//
// A SettingTable points into the struct it was made from, which must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/status.h"

namespace taopd {

class SettingVisitor;

// A list whose items are sections; see List below. Points into the configuration.
class SectionList {
 public:
  virtual ~SectionList() = default;
  virtual size_t size() const = 0;
  // Replaces the items by `num` new ones with their defaults; tables of items before are void.
  virtual void Reset(size_t num) = 0;
  virtual SettingVisitor Item(size_t index) = 0;
  // The settings of an item with its defaults, for references.
  virtual SettingVisitor Prototype() = 0;
};

using SettingPointer =
    std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*,
                 std::vector<int64_t>*, std::vector<double>*, SectionList*>;

// Says what is wrong with a value ("must be at least 0"), or OK.
template <typename T>
using SettingCheck = std::function<absl::Status(const T&)>;

struct Setting {
  std::string path;  // "optimizer.lr"
  std::string help;
  SettingPointer value;
  std::function<absl::Status()> check;  // of the present value; the message holds no path
  std::shared_ptr<SectionList> list;    // keeps the SectionList of `value`, where it is one
};

struct SettingSection {
  std::string path;  // "optimizer"
  std::string help;
};

class SettingVisitor {
 public:
  template <typename T>
  void Setting(const std::string& name, T* value, const std::string& help,
               SettingCheck<T> check = nullptr) {
    std::function<absl::Status()> bound;
    if (check) bound = [value, check = std::move(check)] { return check(*value); };
    settings_.push_back({prefix_ + name, help, SettingPointer(value), std::move(bound), nullptr});
  }

  template <typename Struct>
  void Section(const std::string& name, const std::string& help, Struct& section) {
    sections_.push_back({prefix_ + name, help});
    const std::string outer = prefix_;
    prefix_ += name + ".";
    section.Visit(*this);
    prefix_ = outer;
  }

  // Struct has a Visit of its own, as for Section, and no lists in it.
  template <typename Struct>
  void List(const std::string& name, std::vector<Struct>* items, const std::string& help);

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

template <typename Struct>
class SectionListOf final : public SectionList {
 public:
  explicit SectionListOf(std::vector<Struct>* items) : items_(items) {}
  size_t size() const override { return items_->size(); }
  void Reset(size_t num) override { items_->assign(num, Struct()); }
  SettingVisitor Item(size_t index) override { return DescribeSettings((*items_)[index]); }
  SettingVisitor Prototype() override { return DescribeSettings(prototype_); }

 private:
  std::vector<Struct>* items_;
  Struct prototype_;
};

template <typename Struct>
void SettingVisitor::List(const std::string& name, std::vector<Struct>* items,
                          const std::string& help) {
  auto list = std::make_shared<SectionListOf<Struct>>(items);
  settings_.push_back({prefix_ + name, help, SettingPointer(list.get()), nullptr, list});
}

// Runs every check; the message starts with the path: "optimizer.lr = -1: must be at least 0".
absl::Status CheckSettings(const SettingTable& table);

// The value as YAML flow text: 1e-06, true, "text", [1, 2], [{name: "a", weight: 1.0}].
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
