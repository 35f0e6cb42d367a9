#include "trainer/data/row_reader.h"

#include <charconv>
#include <cmath>
#include <memory>

#include "common/io/jsonl.h"
#include "common/io/parquet.h"

namespace taopd {

DataFormat DataFormatOf(const std::string& path) {
  const bool is_parquet = path.ends_with(".parquet") || HasParquetMagic(path);
  return is_parquet ? DataFormat::kParquet : DataFormat::kJsonl;
}

absl::Status ReadRows(
    const std::string& path, const std::vector<std::string>& columns,
    const std::function<absl::Status(const nlohmann::ordered_json& row, int64_t number)>& on_row) {
  if (DataFormatOf(path) == DataFormat::kJsonl) return ReadOrderedJsonl(path, on_row);
  TAOPD_ASSIGN_OR_RETURN(const std::unique_ptr<ParquetReader> reader, ParquetReader::Open(path));
  return reader->ForEachRow(columns, on_row);
}

const nlohmann::ordered_json* FindPath(const nlohmann::ordered_json& row, const std::string& path) {
  const nlohmann::ordered_json* value = &row;
  for (std::string_view rest = path;;) {
    if (!value->is_object()) return nullptr;
    if (const auto whole = value->find(std::string(rest)); whole != value->end()) return &*whole;
    const size_t dot = rest.find('.');
    if (dot == std::string_view::npos) return nullptr;
    const auto member = value->find(std::string(rest.substr(0, dot)));
    if (member == value->end()) return nullptr;
    value = &*member;
    rest.remove_prefix(dot + 1);
  }
}

const nlohmann::ordered_json* FindValue(const nlohmann::ordered_json& row,
                                        const std::string& path) {
  const nlohmann::ordered_json* value = FindPath(row, path);
  return value == nullptr || value->is_null() ? nullptr : value;
}

absl::StatusOr<std::string> ReadTextOrNumber(const nlohmann::ordered_json& value,
                                             const std::string& key) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number()) return InvalidArgument("\"", key, "\" is neither text nor a number");
  if (!value.is_number_float()) return value.dump();
  const double number = value.get<double>();
  if (!std::isfinite(number)) return std::string();
  if (std::abs(number) >= 0x1p63) {
    return InvalidArgument("\"", key, "\" = ", value.dump(),
                           " is a number beyond 64 bits, which loses digits: give it as text");
  }
  char buffer[400];  // a double has up to 325 decimals
  const auto end = std::to_chars(buffer, std::end(buffer), number, std::chars_format::fixed).ptr;
  const std::string text(buffer, end);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const nlohmann::ordered_json& list,
                                                  const std::string& key, int64_t num_ids) {
  if (!list.is_array()) return InvalidArgument("\"", key, "\" is not a list of token ids");
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const nlohmann::ordered_json& item : list) {
    const bool in_range =
        item.is_number_unsigned()  ? item.get<uint64_t>() < static_cast<uint64_t>(num_ids)
        : item.is_number_integer() ? item.get<int64_t>() >= 0 && item.get<int64_t>() < num_ids
                                   : false;
    if (!in_range) {
      return InvalidArgument("\"", key, "\"[", ids.size(), "] = ", item.dump(),
                             " is not a token id from 0 to ", num_ids - 1);
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

}  // namespace taopd
