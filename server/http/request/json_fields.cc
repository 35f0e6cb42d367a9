#include "server/http/request/json_fields.h"

#include <absl/strings/ascii.h>
#include <absl/synchronization/mutex.h>

#include <charconv>
#include <cmath>
#include <utility>

#include "common/base/log.h"
#include "server/generation/request_fields.h"
#include "server/http/http_error.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxLoggedFields = 100;
constexpr size_t kMaxLoggedBytes = 64;

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();

struct Integral {
  int64_t nearest = 0;
  bool fits = true;  // `nearest` is the value itself
};

Integral OutOfRange(bool is_negative) { return {is_negative ? kLowest : kHighest, false}; }

// Returns nullopt unless the value is a number without a fraction.
std::optional<Integral> IntegralOf(const ordered_json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    return number > uint64_t{kHighest} ? OutOfRange(false) : Integral{static_cast<int64_t>(number)};
  }
  if (value.is_number_integer()) return Integral{value.get<int64_t>()};
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (!std::isfinite(number) || number != std::floor(number)) return std::nullopt;
  if (std::abs(number) >= 0x1p63) return OutOfRange(number < 0.0);
  return Integral{static_cast<int64_t>(number)};
}

std::optional<Integral> IntegralOfText(const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (end != text.data() + text.size() || error == std::errc::invalid_argument) return std::nullopt;
  return error == std::errc() ? Integral{number} : OutOfRange(text.front() == '-');
}

// Reads booleans and texts, too, as vLLM does.
std::optional<Integral> IntegralOfField(const ordered_json& value) {
  if (value.is_boolean()) return Integral{value.get<bool>() ? 1 : 0};
  if (value.is_string()) return IntegralOfText(value.get_ref<const std::string&>());
  return IntegralOf(value);
}

}  // namespace

std::optional<int64_t> AsClampedInteger(const ordered_json& value) {
  const std::optional<Integral> integral = IntegralOf(value);
  return integral ? std::optional(integral->nearest) : std::nullopt;
}

ordered_json* JsonFields::FindMutable(const std::string& name) {
  asked_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

ordered_json JsonFields::Take(const std::string& name) {
  ordered_json* value = FindMutable(name);
  return value == nullptr ? ordered_json() : std::exchange(*value, nullptr);
}

JsonFields& JsonFields::Nested(const std::string& name) {
  static ordered_json none = ordered_json::object();  // never changes
  std::unique_ptr<JsonFields>& nested = nested_[name];
  if (nested != nullptr) return *nested;
  ordered_json* value = FindMutable(name);
  const bool is_object = value != nullptr && value->is_object();
  if (value != nullptr && !is_object) Fail(WrongType(prefix_ + name, "a valid dictionary"));
  nested = std::make_unique<JsonFields>(is_object ? *value : none, prefix_ + name + ".");
  return *nested;
}

std::optional<bool> JsonFields::Bool(const std::string& name) {
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  if (value->is_string()) {
    static const std::set<std::string> kTrue = {"true", "t", "yes", "y", "on", "1"};
    static const std::set<std::string> kFalse = {"false", "f", "no", "n", "off", "0"};
    const std::string text = absl::AsciiStrToLower(value->get_ref<const std::string&>());
    if (kTrue.contains(text)) return true;
    if (kFalse.contains(text)) return false;
  }
  if (const std::optional<int64_t> number = AsClampedInteger(*value); number == 0 || number == 1) {
    return *number == 1;
  }
  Fail(WrongType(prefix_ + name, "a valid boolean"));
  return std::nullopt;
}

std::optional<int64_t> JsonFields::Integer(const std::string& name) {
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<Integral> number = IntegralOfField(*value);
  if (number && number->fits) return number->nearest;
  if (!number) {
    Fail(WrongType(prefix_ + name, "a valid integer"));
  } else {
    const std::string got(Excerpt(value->is_string() ? value->get<std::string>() : value->dump()));
    Fail(FieldValueError(name, got, name, " must be between ", kLowest, " and ", kHighest, ", got ",
                         got, "."));
  }
  return std::nullopt;
}

std::optional<int64_t> JsonFields::ClampedInteger(const std::string& name) {
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<Integral> number = IntegralOfField(*value);
  if (number) return number->nearest;
  Fail(WrongType(prefix_ + name, "a valid integer"));
  return std::nullopt;
}

std::optional<double> JsonFields::Number(const std::string& name) {
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->get<double>();
  if (value->is_boolean()) return value->get<bool>() ? 1.0 : 0.0;
  if (value->is_string()) {
    const std::string& text = value->get_ref<const std::string&>();
    double number = 0.0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool is_whole = error == std::errc() && end == text.data() + text.size();
    if (is_whole && std::isfinite(number)) return number;
  }
  Fail(WrongType(prefix_ + name, "a valid number"));
  return std::nullopt;
}

std::optional<std::string> JsonFields::Text(const std::string& name) {
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  Fail(WrongType(prefix_ + name, "a valid string"));
  return std::nullopt;
}

template <typename Item>
std::vector<Item> JsonFields::List(const std::string& name, const char* expected,
                                   std::optional<Item> (*convert)(const ordered_json&)) {
  const ordered_json* value = Find(name);
  std::vector<Item> items;
  if (value == nullptr) return items;
  if (!value->is_array()) {
    Fail(WrongType(prefix_ + name, "a valid list"));
    return items;
  }
  for (const ordered_json& part : *value) {
    std::optional<Item> item = convert(part);
    if (!item) {
      Fail(WrongType(prefix_ + name, expected));
      return {};
    }
    items.push_back(*std::move(item));
  }
  return items;
}

std::vector<int64_t> JsonFields::Integers(const std::string& name) {
  return List<int64_t>(name, "a list of valid integers", AsClampedInteger);
}

std::vector<std::string> JsonFields::Texts(const std::string& name) {
  return List<std::string>(name, "a list of valid strings", [](const ordered_json& part) {
    return part.is_string() ? std::optional(part.get<std::string>()) : std::nullopt;
  });
}

void JsonFields::LogUnknown(const std::string& path) const {
  ABSL_CONST_INIT static absl::Mutex mutex(absl::kConstInit);
  static auto* const logged = new std::set<std::string>();
  for (const auto& [key, value] : object_.items()) {
    if (asked_.contains(key)) continue;
    const std::string field = prefix_ + key.substr(0, kMaxLoggedBytes);
    {
      absl::MutexLock lock(&mutex);
      if (logged->size() >= kMaxLoggedFields) return;
      if (!logged->insert(path + " " + field).second) continue;
    }
    LogWarning("a field of requests is not known and has no effect",
               {{"path", path}, {"field", field}});
  }
  for (const auto& [name, nested] : nested_) nested->LogUnknown(path);
}

}  // namespace taopd
