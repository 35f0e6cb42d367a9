#include "common/io/parquet.h"

#include <absl/strings/str_join.h>
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/exception.h>
#include <parquet/metadata.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "common/io/atomic_file.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// Deeper types are refused, because reading and converting recurse.
constexpr int kMaxNesting = 32;

absl::Status FromArrow(const arrow::Status& status, const std::string& where) {
  if (status.ok()) return absl::OkStatus();
  if (status.IsOutOfMemory()) return ResourceExhausted(where, ": ", status.message());
  return DataLoss(where, ": ", status.message());
}

absl::Status CheckType(const arrow::DataType& type, const std::string& column, int depth) {
  if (depth > kMaxNesting)
    return InvalidArgument("column \"", column, "\": nested deeper than ", kMaxNesting);
  using arrow::Type;
  const Type::type id = type.id();
  if (id == Type::NA || id == Type::BOOL || id == Type::FLOAT || id == Type::DOUBLE ||
      arrow::is_integer(id) || arrow::is_string(id)) {
    return absl::OkStatus();
  }
  switch (id) {
    case arrow::Type::DICTIONARY:
      return CheckType(*static_cast<const arrow::DictionaryType&>(type).value_type(), column,
                       depth + 1);
    case arrow::Type::LIST:
    case arrow::Type::LARGE_LIST:
    case arrow::Type::FIXED_SIZE_LIST:
    case arrow::Type::STRUCT:
      for (const auto& field : type.fields()) {
        const std::string name =
            type.id() == arrow::Type::STRUCT ? column + "." + field->name() : column;
        TAOPD_RETURN_IF_ERROR(CheckType(*field->type(), name, depth + 1));
      }
      return absl::OkStatus();
    default:
      return InvalidArgument("column \"", column, "\" has the type ", type.ToString(),
                             "; text, numbers, booleans, lists and structs are supported");
  }
}

// Returns the double with the float's own digits: 0.1 instead of 0.10000000149011612.
double AsWritten(float value) {
  char text[32];
  const char* end = std::to_chars(text, text + sizeof(text), value).ptr;
  double result = 0;
  std::from_chars(text, end, result);
  return result;
}

// Converts one row of a column, and counts the row's values and bytes.
class RowBuilder {
 public:
  explicit RowBuilder(const ParquetOptions& options) : options_(options) {}

  void StartRow() { num_bytes_ = num_values_ = 0; }

  absl::Status Convert(const arrow::Array& array, int64_t i, Json* out) {
    if (++num_values_ > options_.max_row_values) {
      return ResourceExhausted("more than the limit of ", options_.max_row_values, " values");
    }
    if (array.IsNull(i)) {
      *out = nullptr;
      return absl::OkStatus();
    }
    switch (array.type_id()) {
      case arrow::Type::NA:
        *out = nullptr;
        return absl::OkStatus();
      case arrow::Type::BOOL:
        *out = static_cast<const arrow::BooleanArray&>(array).Value(i);
        return absl::OkStatus();
      case arrow::Type::INT8:
        return Number<arrow::Int8Array>(array, i, out);
      case arrow::Type::INT16:
        return Number<arrow::Int16Array>(array, i, out);
      case arrow::Type::INT32:
        return Number<arrow::Int32Array>(array, i, out);
      case arrow::Type::INT64:
        return Number<arrow::Int64Array>(array, i, out);
      case arrow::Type::UINT8:
        return Number<arrow::UInt8Array>(array, i, out);
      case arrow::Type::UINT16:
        return Number<arrow::UInt16Array>(array, i, out);
      case arrow::Type::UINT32:
        return Number<arrow::UInt32Array>(array, i, out);
      case arrow::Type::UINT64:
        return Number<arrow::UInt64Array>(array, i, out);
      case arrow::Type::FLOAT:
        *out = AsWritten(static_cast<const arrow::FloatArray&>(array).Value(i));
        return absl::OkStatus();
      case arrow::Type::DOUBLE:
        return Number<arrow::DoubleArray>(array, i, out);
      case arrow::Type::STRING:
        return Text(static_cast<const arrow::StringArray&>(array).GetView(i), out);
      case arrow::Type::LARGE_STRING:
        return Text(static_cast<const arrow::LargeStringArray&>(array).GetView(i), out);
      case arrow::Type::DICTIONARY: {
        const auto& dictionary = static_cast<const arrow::DictionaryArray&>(array);
        return Convert(*dictionary.dictionary(), dictionary.GetValueIndex(i), out);
      }
      case arrow::Type::LIST:
        return List<arrow::ListArray>(array, i, out);
      case arrow::Type::LARGE_LIST:
        return List<arrow::LargeListArray>(array, i, out);
      case arrow::Type::FIXED_SIZE_LIST:
        return List<arrow::FixedSizeListArray>(array, i, out);
      case arrow::Type::STRUCT: {
        const auto& fields = static_cast<const arrow::StructArray&>(array);
        *out = Json::object();
        for (int f = 0; f < fields.num_fields(); ++f) {
          const std::string& name = fields.type()->field(f)->name();
          TAOPD_RETURN_IF_ERROR(Convert(*fields.field(f), i, &(*out)[name]));
        }
        return absl::OkStatus();
      }
      default:
        return InvalidArgument("type ", array.type()->ToString(), " is not read");
    }
  }

 private:
  template <typename Array>
  static absl::Status Number(const arrow::Array& array, int64_t i, Json* out) {
    *out = static_cast<const Array&>(array).Value(i);
    return absl::OkStatus();
  }
  absl::Status Text(std::string_view text, Json* out) {
    num_bytes_ += static_cast<int64_t>(text.size());
    if (num_bytes_ > options_.max_row_bytes) {
      return ResourceExhausted("more than the limit of ", options_.max_row_bytes, " bytes of text");
    }
    *out = std::string(text);
    return absl::OkStatus();
  }
  template <typename Array>
  absl::Status List(const arrow::Array& array, int64_t i, Json* out) {
    const auto& list = static_cast<const Array&>(array);
    *out = Json::array();
    const int64_t begin = list.value_offset(i), end = begin + list.value_length(i);
    for (int64_t item = begin; item < end; ++item) {
      TAOPD_RETURN_IF_ERROR(Convert(*list.values(), item, &out->emplace_back()));
    }
    return absl::OkStatus();
  }

  const ParquetOptions& options_;
  int64_t num_bytes_ = 0;
  int64_t num_values_ = 0;
};

class ArrowParquetReader final : public ParquetReader {
 public:
  ArrowParquetReader(std::string path, const ParquetOptions& options)
      : path_(std::move(path)),
        options_(options),
        pool_(std::make_unique<arrow::CappedMemoryPool>(arrow::system_memory_pool(),
                                                        options.max_decoded_bytes)) {}

  absl::Status Open() {
    if (::access(path_.c_str(), R_OK) != 0) return FileError("open", path_, errno);
    auto input = arrow::io::ReadableFile::Open(path_, pool_.get());
    if (!input.ok()) return FromArrow(input.status(), path_);
    parquet::ReaderProperties properties(pool_.get());
    properties.enable_buffered_stream();
    properties.set_page_checksum_verification(true);
    parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
    arrow_properties.set_batch_size(options_.batch_rows);
    arrow_properties.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    TAOPD_RETURN_IF_ERROR(FromArrow(builder.Open(*input, properties), path_));
    auto reader = builder.memory_pool(pool_.get())->properties(arrow_properties)->Build();
    if (!reader.ok()) return FromArrow(reader.status(), path_);
    reader_ = *std::move(reader);
    num_rows_ = reader_->parquet_reader()->metadata()->num_rows();
    if (num_rows_ < 0) return DataLoss(path_, ": the footer gives ", num_rows_, " rows");
    ListFields();
    return absl::OkStatus();
  }

  int64_t num_rows() const override { return num_rows_; }
  const std::vector<std::string>& fields() const override { return fields_; }

  absl::Status ForEachRow(const std::vector<std::string>& columns,
                          const std::function<absl::Status(const Json&, int64_t)>& row) override {
    try {
      return Read(columns, row);
    } catch (const parquet::ParquetException& error) {
      return DataLoss(path_, ": ", error.what());
    } catch (const std::bad_alloc&) {
      return ResourceExhausted(path_, ": out of memory");
    }
  }

 private:
  // Returns whether `field` is the requested column or a member of it.
  static bool Selects(const std::string& column, const std::string& field) {
    return field == column ||
           (field.size() > column.size() && field.compare(0, column.size(), column) == 0 &&
            field[column.size()] == '.');
  }

  // Finds the leaf columns, in the file's order, and the field to which each of them belongs: its
  // path up to the first list.
  void ListFields() {
    const parquet::SchemaDescriptor& schema = *reader_->parquet_reader()->metadata()->schema();
    for (int leaf = 0; leaf < schema.num_columns(); ++leaf) {
      std::vector<std::string> parts;
      for (const parquet::schema::Node* node = schema.Column(leaf)->schema_node().get();
           node != nullptr && node->parent() != nullptr; node = node->parent()) {
        const bool is_list = node->is_repeated() || !node->logical_type()->is_none();
        if (is_list && node->is_group()) parts.clear();
        parts.push_back(node->name());
      }
      const std::string field = absl::StrJoin(parts.rbegin(), parts.rend(), ".");
      leaf_fields_.push_back(field);
      if (fields_.empty() || fields_.back() != field) fields_.push_back(field);
    }
  }

  // Returns the leaf columns of the requested columns.
  std::vector<int> LeavesOf(const std::vector<std::string>& columns) const {
    std::vector<int> leaves;
    for (int leaf = 0; leaf < static_cast<int>(leaf_fields_.size()); ++leaf) {
      const bool is_requested =
          columns.empty() ||
          std::any_of(columns.begin(), columns.end(), [&](const std::string& column) {
            return Selects(column, leaf_fields_[leaf]);
          });
      if (is_requested) leaves.push_back(leaf);
    }
    return leaves;
  }

  absl::Status Read(const std::vector<std::string>& columns,
                    const std::function<absl::Status(const Json&, int64_t)>& row) {
    const std::vector<int> leaves = LeavesOf(columns);
    if (fields_.empty()) return InvalidArgument(path_, ": has no columns");
    if (leaves.empty())
      return InvalidArgument(path_, ": has none of the columns ", List(columns), "; it has ",
                             List(fields_));

    std::vector<int> row_groups(reader_->num_row_groups());
    for (size_t i = 0; i < row_groups.size(); ++i) row_groups[i] = static_cast<int>(i);
    auto batches = reader_->GetRecordBatchReader(row_groups, leaves);
    if (!batches.ok()) return FromArrow(batches.status(), path_);
    for (const auto& field : (*batches)->schema()->fields()) {
      TAOPD_RETURN_IF_ERROR(Annotate(CheckType(*field->type(), field->name(), 0), path_));
    }
    RowBuilder builder(options_);
    int64_t number = 0;
    for (;;) {
      const std::string where = Concat(path_, ": rows from ", number + 1);
      auto batch = (*batches)->Next();
      if (!batch.ok()) return FromArrow(batch.status(), where);
      if (*batch == nullptr) break;
      // Checks what a damaged page may have broken: offsets, dictionary indices and UTF-8.
      TAOPD_RETURN_IF_ERROR(FromArrow((*batch)->ValidateFull(), where));
      for (int64_t i = 0; i < (*batch)->num_rows(); ++i) {
        Json value = Json::object();
        builder.StartRow();
        absl::Status status;
        for (int c = 0; c < (*batch)->num_columns() && status.ok(); ++c) {
          const std::string& name = (*batch)->column_name(c);
          status = Annotate(builder.Convert(*(*batch)->column(c), i, &value[name]),
                            Concat("column \"", name, "\""));
        }
        ++number;
        if (status.ok()) status = row(value, number);
        TAOPD_RETURN_IF_ERROR(Annotate(status, Concat(path_, ": row ", number)));
      }
    }
    if (number != num_rows_)
      return DataLoss(path_, ": has ", number, " rows, but its footer promises ", num_rows_);
    return absl::OkStatus();
  }

  static std::string List(const std::vector<std::string>& names) {
    return "\"" + absl::StrJoin(names, "\", \"") + "\"";
  }

  const std::string path_;
  const ParquetOptions options_;
  std::unique_ptr<arrow::MemoryPool> pool_;  // outlives the reader
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::vector<std::string> leaf_fields_;  // by leaf column
  std::vector<std::string> fields_;
  int64_t num_rows_ = 0;
};

}  // namespace

bool HasParquetMagic(const std::string& path) {
  // Bytes that are read from a pipe are lost to its next reader.
  if (std::error_code ignored; !std::filesystem::is_regular_file(path, ignored)) return false;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             &std::fclose);
  char magic[4] = {};
  return file != nullptr && std::fread(magic, 1, 4, file.get()) == 4 &&
         std::memcmp(magic, "PAR1", 4) == 0;
}

absl::StatusOr<std::unique_ptr<ParquetReader>> ParquetReader::Open(const std::string& path,
                                                                   const ParquetOptions& options) {
  auto reader = std::make_unique<ArrowParquetReader>(path, options);
  try {
    TAOPD_RETURN_IF_ERROR(reader->Open());
  } catch (const parquet::ParquetException& error) {
    return DataLoss(path, ": ", error.what());
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(path, ": out of memory");
  }
  return reader;
}

}  // namespace taopd
