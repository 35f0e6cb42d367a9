// Settings that are declared once. A configuration is a plain struct. Its members hold the
// defaults, and its Declare lists the name, the help and the check of each setting:
//
//   struct OptimizerConfig {
//     double lr = 1e-6;
//     int64_t warmup_steps = 0;
//     void Declare(SettingTable& keys) {
//       keys.Add("lr", &lr, "Peak learning rate.", AtLeast(0.0));
//       keys.Add("warmup_steps", &warmup_steps, "Steps of warm-up.", AtLeast<int64_t>(0));
//     }
//   };
//   struct TrainConfig {
//     OptimizerConfig optimizer;
//     std::vector<TermConfig> terms;
//     void Declare(SettingTable& keys) {
//       keys.AddSection("optimizer", "AdamW and its schedule.", optimizer);
//       // terms: [{name: ta_opd, weight: 1}]
//       keys.AddList("terms", &terms, "Weighted objectives.");
//     }
//   };
//
// YAML files and --set (yaml.h), command-line flags, the printed configuration and the
// reference of all settings come from these declarations. A key that is not declared is an error
// that names the nearest declared key.
//
// A SettingTable points into the struct that it describes, which must outlive it. Nothing here is
// thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/status.h"

namespace taopd {

class SettingTable;

// A list whose items are sections (see SettingTable::AddList). Points into the configuration.
class SectionList {
 public:
  virtual ~SectionList() = default;
  virtual size_t size() const = 0;
  // Replaces the items by `num` new items with their defaults. Invalidates the tables of all items.
  virtual void Reset(size_t num) = 0;
  virtual SettingTable Item(size_t index) = 0;
  // The settings of an item that has its defaults, for the reference of all settings.
  virtual SettingTable Prototype() = 0;
};

// A setting that takes one of a fixed set of words. Its value is an enum, and a function next to
// the enum gives the words:
//
//   enum class Schedule { kConstant, kLinear };
//   inline EnumNames<Schedule> NamesOf(Schedule) {
//     return {{Schedule::kConstant, "constant"}, {Schedule::kLinear, "linear"}};
//   }
template <typename Enum>
using EnumNames = std::vector<std::pair<Enum, std::string>>;

// Returns the word of a value; empty if it has none.
template <typename Enum>
std::string NameOf(Enum value) {
  for (const auto& [known, word] : NamesOf(value)) {
    if (known == value) return word;
  }
  return "";
}

// Points into the configuration. SettingTable::Add makes it.
class EnumSetting {
 public:
  virtual ~EnumSetting() = default;
  virtual std::string word() const = 0;
  virtual std::vector<std::string> words() const = 0;
  // Returns INVALID_ARGUMENT with all words, and changes nothing, if there is no such word.
  virtual absl::Status Set(const std::string& word) = 0;
};

using SettingPointer =
    std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*,
                 std::vector<int64_t>*, std::vector<double>*, SectionList*, std::optional<int64_t>*,
                 std::optional<double>*,  // nullopt is "auto"
                 EnumSetting*>;

// Returns OK, or an error that says what is wrong with the value: "must be at least 0".
template <typename T>
using SettingCheck = std::function<absl::Status(const T&)>;

struct Setting {
  std::string path;  // "optimizer.lr"
  std::string help;
  SettingPointer pointer;
  // Checks the current value; its message does not name the path. Empty if there is nothing to
  // check.
  std::function<absl::Status()> check;
  // Owns the SectionList or EnumSetting that `pointer` points to; null for other types.
  std::shared_ptr<SectionList> list;
  std::shared_ptr<EnumSetting> word = nullptr;
  // Whether a run may be resumed with another value. If not, another value is an error unless the
  // user names the setting (trainer/run/resume/resume_check.h).
  bool may_change = false;
  // Whether the values of a rollout's scores and rewards depend on the setting. If so, a run with
  // another value cannot use the ones that a checkpoint stores
  // (trainer/step/rollouts/pending_step.h).
  bool decides_scores = false;

  // For declarations: keys.Add(...).DecidesScores().
  void DecidesScores() { decides_scores = true; }
};

struct SettingSection {
  std::string path;  // "optimizer"
  std::string help;
};

// Collects the declarations of a configuration. See the top of this file.
class SettingTable {
 public:
  // Declares a setting. `value` must have one of the types of SettingPointer. The result is valid
  // until the next declaration.
  template <typename T>
  std::enable_if_t<!std::is_enum_v<T>, Setting&> Add(
      const std::string& name, T* value, const std::string& help,
      std::type_identity_t<SettingCheck<T>> check = nullptr) {
    std::function<absl::Status()> bound;
    if (check) bound = [value, check = std::move(check)] { return check(*value); };
    settings_.push_back({prefix_ + name, help, SettingPointer(value), std::move(bound), nullptr});
    return settings_.back();
  }

  // Declares a setting of a fixed set of words (EnumSetting).
  template <typename Enum>
  std::enable_if_t<std::is_enum_v<Enum>, Setting&> Add(const std::string& name, Enum* value,
                                                       const std::string& help);

  // Declares a setting of which a resumed run may have another value (Setting::may_change). The
  // arguments are those of Add.
  template <typename... Arguments>
  void AddMutable(Arguments&&... arguments) {
    Add(std::forward<Arguments>(arguments)...).may_change = true;
  }

  // Declares a section. Struct has its own Declare, and its settings get the prefix "name.".
  template <typename Struct>
  void AddSection(const std::string& name, const std::string& help, Struct& section) {
    sections_.push_back({prefix_ + name, help});
    const std::string outer = prefix_;
    prefix_ += name + ".";
    section.Declare(*this);
    prefix_ = outer;
  }

  // Declares a list of sections. Struct has its own Declare, which declares no lists. The result is
  // valid until the next declaration.
  template <typename Struct>
  Setting& AddList(const std::string& name, std::vector<Struct>* items, const std::string& help);

  const std::vector<Setting>& settings() const { return settings_; }
  const std::vector<SettingSection>& sections() const { return sections_; }

 private:
  std::string prefix_;
  std::vector<Setting> settings_;
  std::vector<SettingSection> sections_;
};

// Returns the settings of `config`, which must outlive the table.
template <typename Config>
SettingTable DescribeSettings(Config& config) {
  SettingTable table;
  config.Declare(table);
  return table;
}

// The SectionList over a vector. SettingTable::AddList makes it.
template <typename Struct>
class SectionListOf final : public SectionList {
 public:
  explicit SectionListOf(std::vector<Struct>* items) : items_(items) {}
  size_t size() const override { return items_->size(); }
  void Reset(size_t num) override { items_->assign(num, Struct()); }
  SettingTable Item(size_t index) override { return DescribeSettings((*items_)[index]); }
  SettingTable Prototype() override { return DescribeSettings(prototype_); }

 private:
  std::vector<Struct>* items_;
  Struct prototype_;
};

template <typename Struct>
Setting& SettingTable::AddList(const std::string& name, std::vector<Struct>* items,
                               const std::string& help) {
  auto list = std::make_shared<SectionListOf<Struct>>(items);
  settings_.push_back({prefix_ + name, help, SettingPointer(list.get()), nullptr, list});
  return settings_.back();
}

// The EnumSetting of an enum.
template <typename Enum>
class EnumSettingOf final : public EnumSetting {
 public:
  explicit EnumSettingOf(Enum* value) : value_(value) {}
  std::string word() const override { return NameOf(*value_); }
  std::vector<std::string> words() const override {
    std::vector<std::string> words;
    for (const auto& [value, word] : NamesOf(*value_)) words.push_back(word);
    return words;
  }
  absl::Status Set(const std::string& word) override;

 private:
  Enum* value_;
};

template <typename Enum>
std::enable_if_t<std::is_enum_v<Enum>, Setting&> SettingTable::Add(const std::string& name,
                                                                   Enum* value,
                                                                   const std::string& help) {
  auto word = std::make_shared<EnumSettingOf<Enum>>(value);
  settings_.push_back({prefix_ + name, help, SettingPointer(word.get()), nullptr, nullptr, word});
  return settings_.back();
}

// Runs the checks of all settings and returns the first error. Its message starts with the path:
// "optimizer.lr = -1: must be at least 0".
absl::Status CheckSettings(const SettingTable& table);

// Returns the value in YAML's flow style: 1e-06, true, "text", [1, 2], [{name: "a", weight: 1.0}].
std::string SettingText(const SettingPointer& pointer);
// Returns the type's name for messages: "boolean", "integer", "number", "text", "list of text", ...
std::string SettingTypeName(const SettingPointer& pointer);

// Returns a suggestion to append to a message: " (did you mean \"lr\"?)" for the member of `known`
// that is closest to `unknown`. Empty if none is within two edits (one edit if `unknown` has fewer
// than four characters) or within a third of the length of `unknown`.
std::string DidYouMean(const std::string& unknown, const std::vector<std::string>& known);

// The checks for SettingTable::Add. Must returns the check of any rule; `rule` ends the message
// "must ...".
template <typename T>
SettingCheck<T> Must(std::string rule, std::function<bool(const T&)> holds) {
  return [rule = std::move(rule), holds = std::move(holds)](const T& v) {
    return holds(v) ? absl::OkStatus() : InvalidArgument("must ", rule);
  };
}
template <typename T>
SettingCheck<T> AtLeast(T limit) {
  return Must<T>(Concat("be at least ", limit), [limit](const T& v) { return v >= limit; });
}
template <typename T>
SettingCheck<T> MoreThan(T limit) {
  return Must<T>(Concat("be more than ", limit), [limit](const T& v) { return v > limit; });
}
template <typename T>
SettingCheck<T> Between(T low, T high) {
  return Must<T>(Concat("be between ", low, " and ", high),
                 [low, high](const T& v) { return v >= low && v <= high; });
}
// Returns a check of a setting that may be auto: `check` applies to a number.
template <typename T>
SettingCheck<std::optional<T>> AutoOr(SettingCheck<T> check) {
  return [check](const std::optional<T>& v) { return v ? check(*v) : absl::OkStatus(); };
}
SettingCheck<std::string> OneOf(std::vector<std::string> choices);
SettingCheck<std::string> NotEmpty();
// Returns the check of a size that ParseMemoryBytes (common/base/memory.h) reads, such as 24GiB.
SettingCheck<std::string> MemorySize();

template <typename Enum>
absl::Status EnumSettingOf<Enum>::Set(const std::string& word) {
  for (const auto& [value, known] : NamesOf(*value_)) {
    if (known != word) continue;
    *value_ = value;
    return absl::OkStatus();
  }
  return OneOf(words())(word);
}

}  // namespace taopd
