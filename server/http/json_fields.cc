#include "server/http/json_fields.h"

#include <cmath>

namespace taopd {

std::optional<int64_t> AsInteger(const nlohmann::json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::abs(number) < 9e15 && number == std::floor(number))
      return static_cast<int64_t>(number);
  }
  return std::nullopt;
}

const nlohmann::json* JsonFields::Find(const std::string& name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> JsonFields::Bool(const std::string& name) {
  const nlohmann::json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Fail(WrongType(name, "a valid boolean"));
  return std::nullopt;
}

std::optional<int64_t> JsonFields::Integer(const std::string& name, int64_t low, int64_t high) {
  const nlohmann::json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = AsInteger(*value);
  if (!number) {
    Fail(WrongType(name, "a valid integer"));
  } else if (*number < low || *number > high) {
    Fail(BadField(name, Concat(name, " must be between ", low, " and ", high, ", got ", *number,
                               ". (parameter=", name, ", value=", *number, ")")));
    return std::nullopt;
  }
  return number;
}

std::optional<double> JsonFields::Number(const std::string& name) {
  const nlohmann::json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->get<double>();
  Fail(WrongType(name, "a valid number"));
  return std::nullopt;
}

std::optional<std::string> JsonFields::Text(const std::string& name) {
  const nlohmann::json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  Fail(WrongType(name, "a valid string"));
  return std::nullopt;
}

std::vector<int64_t> JsonFields::Integers(const std::string& name) {
  const nlohmann::json* value = Find(name);
  std::vector<int64_t> numbers;
  if (value == nullptr) return numbers;
  if (!value->is_array()) {
    Fail(WrongType(name, "a valid list"));
    return numbers;
  }
  for (const nlohmann::json& item : *value) {
    const std::optional<int64_t> number = AsInteger(item);
    if (!number) {
      Fail(WrongType(name, "a list of valid integers"));
      return {};
    }
    numbers.push_back(*number);
  }
  return numbers;
}

std::vector<std::string> JsonFields::Texts(const std::string& name) {
  const nlohmann::json* value = Find(name);
  std::vector<std::string> texts;
  if (value == nullptr) return texts;
  if (!value->is_array()) {
    Fail(WrongType(name, "a valid list"));
    return texts;
  }
  for (const nlohmann::json& item : *value) {
    if (!item.is_string()) {
      Fail(WrongType(name, "a list of valid strings"));
      return {};
    }
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

}  // namespace taopd
