#include "common/io/safetensors/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "common/io/jsonl.h"
#include "common/io/safetensors/safetensors.h"

namespace taopd {
namespace {

using nlohmann::json;

constexpr std::string_view kMetadataKey = "__metadata__";

constexpr std::array<std::pair<std::string_view, int64_t>, 19> kDtypeBytes = {{
    {"BOOL", 1},    {"U8", 1},          {"I8", 1},          {"F8_E5M2", 1}, {"F8_E4M3", 1},
    {"F8_E8M0", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1}, {"U16", 2},     {"I16", 2},
    {"F16", 2},     {"BF16", 2},        {"U32", 4},         {"I32", 4},     {"F32", 4},
    {"U64", 8},     {"I64", 8},         {"F64", 8},         {"C64", 8},
}};

// Returns a JSON number that is an integer in [0, 2^63).
absl::StatusOr<int64_t> ParseCount(const json& value, const std::string& what) {
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!value.is_number_unsigned() || value.get<uint64_t>() > kMax) {
    return DataLoss(what, " is not an integer from 0 to 2^63 - 1");
  }
  return static_cast<int64_t>(value.get<uint64_t>());
}

absl::StatusOr<SafetensorsEntry> ParseEntry(const json& value, const std::string& tensor) {
  if (!value.is_object()) return DataLoss(tensor, " is not an object");
  SafetensorsEntry entry;
  for (const auto& [key, field] : value.items()) {
    if (key == "dtype") {
      if (!field.is_string()) return DataLoss(tensor, ": dtype is not a string");
      entry.dtype = field.get<std::string>();
    } else if (key == "shape") {
      if (!field.is_array()) return DataLoss(tensor, ": shape is not an array");
      for (const json& dimension : field) {
        TAOPD_ASSIGN_OR_RETURN(const int64_t size, ParseCount(dimension, tensor + ": a dimension"));
        entry.shape.push_back(size);
      }
    } else if (key == "data_offsets") {
      if (!field.is_array() || field.size() != 2) {
        return DataLoss(tensor, ": data_offsets is not [begin, end]");
      }
      TAOPD_ASSIGN_OR_RETURN(entry.begin, ParseCount(field[0], tensor + ": data_offsets[0]"));
      TAOPD_ASSIGN_OR_RETURN(entry.end, ParseCount(field[1], tensor + ": data_offsets[1]"));
    } else {
      return DataLoss(tensor, ": unknown field \"", key, "\"");
    }
  }
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(field)) return DataLoss(tensor, ": no ", field);
  }
  return entry;
}

// In file order, the tensors must tile the data exactly, without holes, overlaps or trailing bytes.
absl::Status CheckOffsets(const std::map<std::string, SafetensorsEntry>& entries,
                          int64_t data_bytes, const std::string& source) {
  std::vector<std::pair<const std::string*, const SafetensorsEntry*>> in_file_order;
  for (const auto& [name, entry] : entries) in_file_order.emplace_back(&name, &entry);
  std::stable_sort(in_file_order.begin(), in_file_order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  int64_t position = 0;
  for (const auto& [name, entry] : in_file_order) {
    const std::string tensor = Concat(source, ": tensor \"", *name, "\"");
    if (entry->begin != position || entry->end < entry->begin) {
      return DataLoss(tensor, ": data_offsets [", entry->begin, ", ", entry->end,
                      "] do not continue at byte ", position, " where the tensor before it ends");
    }
    const auto expected_bytes = SafetensorsTensorBytes(entry->dtype, entry->shape);
    if (!expected_bytes.ok()) return DataLoss(tensor, ": ", expected_bytes.status().message());
    if (entry->end - entry->begin != *expected_bytes) {
      return DataLoss(tensor, ": data_offsets span ", entry->end - entry->begin,
                      " bytes, but its shape and dtype need ", *expected_bytes);
    }
    position = entry->end;
  }
  if (position != data_bytes) {
    return DataLoss(source, ": the tensors need ", position, " bytes of data, but the file holds ",
                    data_bytes);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> SafetensorsDtypeSize(const std::string& dtype) {
  for (const auto& [name, size_bytes] : kDtypeBytes) {
    if (name == dtype) return size_bytes;
  }
  return InvalidArgument("dtype \"", dtype, "\" is unknown or smaller than a byte");
}

absl::StatusOr<int64_t> SafetensorsTensorBytes(const std::string& dtype,
                                               const std::vector<int64_t>& shape) {
  TAOPD_ASSIGN_OR_RETURN(int64_t size_bytes, SafetensorsDtypeSize(dtype));
  for (const int64_t dimension : shape) {
    if (dimension < 0) return InvalidArgument("dimension ", dimension, " is negative");
    if (__builtin_mul_overflow(size_bytes, dimension, &size_bytes)) {
      return InvalidArgument("shape overflows 2^63 - 1 bytes at dimension ", dimension);
    }
  }
  return size_bytes;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(const std::string& text,
                                                         int64_t data_bytes,
                                                         const std::string& source) {
  if (text.empty() || text[0] != '{') return DataLoss(source, ": header does not start with {");
  const auto parsed = ParseJson(text, source + ": header");
  if (!parsed.ok()) return DataLoss(parsed.status().message());

  SafetensorsHeader header;
  for (const auto& [key, value] : parsed->items()) {
    if (key != kMetadataKey) {
      TAOPD_ASSIGN_OR_RETURN(header.entries[key],
                             ParseEntry(value, Concat(source, ": tensor \"", key, "\"")));
      continue;
    }
    if (!value.is_object()) return DataLoss(source, ": __metadata__ is not an object");
    for (const auto& [name, text_value] : value.items()) {
      if (!text_value.is_string()) {
        return DataLoss(source, ": __metadata__ \"", name, "\" is not a string");
      }
      header.metadata[name] = text_value.get<std::string>();
    }
  }
  TAOPD_RETURN_IF_ERROR(CheckOffsets(header.entries, data_bytes, source));
  return header;
}

}  // namespace taopd
