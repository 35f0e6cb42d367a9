#include "common/io/jsonl.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/io/atomic_file.h"
#include "common/io/file.h"

namespace taopd {
namespace {

// nlohmann's SAX interface. It builds the value, refuses repeated keys, and limits the depth, the
// number of values and their memory. Json is nlohmann::json or nlohmann::ordered_json.
template <typename Json>
class LimitedBuilder {
 public:
  LimitedBuilder(Json* root, int64_t max_bytes, int64_t max_values)
      : root_(root), max_bytes_(max_bytes), max_values_(max_values) {}
  const std::string& error() const { return error_; }

  // The names are the library's.
  bool null() { return Add(nullptr) != nullptr; }
  bool boolean(bool value) { return Add(value) != nullptr; }
  bool number_integer(typename Json::number_integer_t value) { return Add(value) != nullptr; }
  bool number_unsigned(typename Json::number_unsigned_t value) { return Add(value) != nullptr; }
  bool number_float(typename Json::number_float_t value, const std::string&) {
    return Add(value) != nullptr;
  }
  bool string(std::string& value) {
    return Take(kStringBytes + value.size()) && Add(std::move(value)) != nullptr;
  }
  bool binary(typename Json::binary_t&) { return Fail("binary value"); }  // not in JSON text
  bool start_object(size_t) { return Take(kContainerBytes) && Push(Add(Json::object())); }
  bool start_array(size_t) { return Take(kContainerBytes) && Push(Add(Json::array())); }
  bool end_object() { return Pop(); }
  bool end_array() { return Pop(); }
  bool key(std::string& name) {
    auto& object = open_.back()->template get_ref<typename Json::object_t&>();
    if (kOrdered && object.size() >= kMaxOrderedJsonKeys) {
      return Fail(Concat("an object of more than the limit of ", kMaxOrderedJsonKeys, " keys"));
    }
    if (!Take(kKeyBytes + name.size())) return false;
    if constexpr (kOrdered) {
      // The object's own search for a key takes time in proportion to its size.
      if (!keys_.back().insert(name).second) return Fail(Concat("duplicate key \"", name, "\""));
      slot_ = &object.emplace_back(name, Json()).second;
    } else {
      const auto [entry, is_new] = object.emplace(name, Json());
      if (!is_new) return Fail(Concat("duplicate key \"", name, "\""));
      slot_ = &entry->second;
    }
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) {
    return Fail(e.what());
  }

 private:
  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }
  bool Push(Json* container) {
    if (container == nullptr) return false;
    if (open_.size() >= kMaxJsonDepth) {
      return Fail(Concat("nested deeper than the limit of ", kMaxJsonDepth));
    }
    open_.push_back(container);
    keys_.emplace_back();
    return true;
  }
  bool Pop() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }
  bool Take(size_t num_bytes) {
    num_bytes_ += static_cast<int64_t>(num_bytes);
    if (num_bytes_ <= max_bytes_) return true;
    return Fail(Concat("takes more than the limit of ", max_bytes_, " bytes of memory"));
  }
  template <typename T>
  Json* Add(T&& value) {
    if (!Take(sizeof(Json))) return nullptr;
    if (++num_values_ > max_values_) {
      Fail(Concat("more than the limit of ", max_values_, " values"));
      return nullptr;
    }
    Json* place = root_;
    if (!open_.empty() && open_.back()->is_array()) {
      auto& array = open_.back()->template get_ref<typename Json::array_t&>();
      place = &array.emplace_back();
    } else if (!open_.empty()) {
      place = slot_;
    }
    *place = std::forward<T>(value);
    return place;
  }

  // Includes malloc's overhead.
  static constexpr size_t kContainerBytes = 64;
  static constexpr size_t kStringBytes = 48;
  static constexpr size_t kKeyBytes = 96;  // includes a node of a map
  static constexpr bool kOrdered = std::is_same_v<Json, nlohmann::ordered_json>;

  Json* root_;
  // The containers from the root to the innermost open one. Pointers stay valid: a container grows
  // only while none of its elements is open.
  std::vector<Json*> open_;
  std::vector<std::unordered_set<std::string>> keys_;  // the keys of open_, if objects are ordered
  Json* slot_ = nullptr;                               // where the value of the last key goes
  const int64_t max_bytes_;
  const int64_t max_values_;
  int64_t num_bytes_ = 0;  // estimated
  int64_t num_values_ = 0;
  std::string error_;
};

bool IsBlank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// Calls a function with each line that is not blank and its 1-based number.
absl::Status ReadLines(
    const std::string& path,
    const std::function<absl::Status(const std::string& text, int64_t line)>& row) {
  std::string line;
  int64_t line_number = 1;

  const auto finish_line = [&]() -> absl::Status {
    if (!IsBlank(line)) TAOPD_RETURN_IF_ERROR(row(line, line_number));
    line.clear();
    ++line_number;
    return absl::OkStatus();
  };

  TAOPD_RETURN_IF_ERROR(ReadInPieces(path, [&](std::string_view rest) -> absl::Status {
    while (!rest.empty()) {
      const size_t newline = rest.find('\n');
      line += rest.substr(0, newline);
      if (static_cast<int64_t>(line.size()) > kMaxJsonlLineBytes) {
        return ResourceExhausted(path, ":", line_number, ": line is longer than the limit of ",
                                 kMaxJsonlLineBytes, " bytes");
      }
      if (newline == std::string_view::npos) break;
      rest.remove_prefix(newline + 1);
      TAOPD_RETURN_IF_ERROR(finish_line());
    }
    return absl::OkStatus();
  }));
  return finish_line();
}

template <typename Json>
absl::StatusOr<Json> Parse(const std::string& text, const std::string& source,
                           int64_t max_value_bytes = INT64_MAX,
                           int64_t max_values = kMaxJsonValues) {
  // The library treats a NUL byte as the end of the text and would ignore the rest.
  if (const size_t nul = text.find('\0'); nul != std::string::npos) {
    return InvalidArgument(source, ": not JSON: NUL byte at offset ", nul);
  }
  Json value;
  LimitedBuilder<Json> builder(&value, max_value_bytes, max_values);
  if (!Json::sax_parse(text, &builder)) {
    return InvalidArgument(source, ": not JSON: ", builder.error());
  }
  return value;
}

template <typename Json>
absl::Status ReadValues(const std::string& path,
                        const std::function<absl::Status(const Json& value, int64_t line)>& row) {
  return ReadLines(path, [&](const std::string& text, int64_t line) -> absl::Status {
    const std::string where = Concat(path, ":", line);
    TAOPD_ASSIGN_OR_RETURN(const Json value, Parse<Json>(text, where));
    return Annotate(row(value, line), where);
  });
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(const std::string& text, const std::string& source,
                                         int64_t max_value_bytes, int64_t max_values) {
  return Parse<nlohmann::json>(text, source, max_value_bytes, max_values);
}

absl::StatusOr<nlohmann::ordered_json> ParseOrderedJson(const std::string& text,
                                                        const std::string& source,
                                                        int64_t max_value_bytes) {
  return Parse<nlohmann::ordered_json>(text, source, max_value_bytes);
}

absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path) {
  TAOPD_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(path, kMaxJsonFileBytes));
  return ParseJson(text, path);
}

std::string JsonText(const nlohmann::ordered_json& value) {
  using Handler = nlohmann::ordered_json::error_handler_t;
  return value.dump(-1, ' ', /*ensure_ascii=*/false, Handler::replace);
}

absl::Status ReadJsonl(
    const std::string& path,
    const std::function<absl::Status(const nlohmann::json& value, int64_t line)>& row) {
  return ReadValues(path, row);
}

absl::Status ReadOrderedJsonl(
    const std::string& path,
    const std::function<absl::Status(const nlohmann::ordered_json& value, int64_t line)>& row) {
  return ReadValues(path, row);
}

absl::StatusOr<JsonlWriter> JsonlWriter::Open(const std::string& path, int64_t truncate_to_bytes) {
  JsonlWriter writer(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666), path);
  if (writer.fd_.get() < 0) return FileError("open", path, errno);
  if (truncate_to_bytes >= 0) {
    TAOPD_ASSIGN_OR_RETURN(const int64_t size_bytes, writer.SizeBytes());
    if (size_bytes < truncate_to_bytes) {
      return DataLoss(path, " has ", size_bytes, " bytes, fewer than the ", truncate_to_bytes,
                      " it is to be cut to");
    }
    if (::ftruncate(writer.fd_.get(), truncate_to_bytes) != 0) {
      return FileError("truncate", path, errno);
    }
  }
  return writer;
}

absl::Status JsonlWriter::WriteLine(const std::string& line) {
  TAOPD_RETURN_IF_ERROR(RemoveHalfLine());
  TAOPD_ASSIGN_OR_RETURN(whole_bytes_, SizeBytes());
  const absl::Status status = WriteAll(fd_.get(), std::as_bytes(std::span(line)), path_);
  if (status.ok()) return status;
  // A full disk must not leave half a line to which the next one would be appended.
  half_line_ = Annotate(status, "an incomplete line remains");
  const absl::Status removed = RemoveHalfLine();
  return removed.ok() ? status : removed;
}

absl::Status JsonlWriter::RemoveHalfLine() {
  if (half_line_.ok()) return absl::OkStatus();
  if (::ftruncate(fd_.get(), whole_bytes_) != 0) return half_line_;
  half_line_ = absl::OkStatus();
  return absl::OkStatus();
}

absl::Status JsonlWriter::Sync() {
  return ::fsync(fd_.get()) == 0 ? absl::OkStatus() : FileError("fsync", path_, errno);
}

absl::StatusOr<int64_t> JsonlWriter::SizeBytes() const {
  if (!half_line_.ok()) return whole_bytes_;
  struct stat info;
  if (::fstat(fd_.get(), &info) != 0) return FileError("stat", path_, errno);
  return static_cast<int64_t>(info.st_size);
}

}  // namespace taopd
