#include "common/metrics/event_file.h"

#include <array>
#include <bit>

namespace taopd {
namespace {

constexpr std::array<uint32_t, 256> kCrcOfByte = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0u);
    table[byte] = crc;
  }
  return table;
}();

uint32_t MaskedCrc32c(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

// The protobuf wire format: https://protobuf.dev/programming-guides/encoding
enum WireType { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

template <typename UInt>
void AppendLittleEndian(std::string* out, UInt value) {
  for (size_t i = 0; i < sizeof(UInt); ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

class Message {
 public:
  Message& Varint(int field, uint64_t value) {
    Key(field, kVarint);
    AppendVarint(value);
    return *this;
  }
  Message& Double(int field, double value) {
    Key(field, kFixed64);
    AppendLittleEndian(&bytes_, std::bit_cast<uint64_t>(value));
    return *this;
  }
  Message& Float(int field, float value) {
    Key(field, kFixed32);
    AppendLittleEndian(&bytes_, std::bit_cast<uint32_t>(value));
    return *this;
  }
  Message& Bytes(int field, std::string_view value) {
    Key(field, kLengthDelimited);
    AppendVarint(value.size());
    bytes_.append(value);
    return *this;
  }
  Message& Nested(int field, const Message& message) { return Bytes(field, message.bytes_); }
  std::string Take() { return std::move(bytes_); }

 private:
  void Key(int field, WireType type) {
    AppendVarint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type));
  }
  void AppendVarint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }
  std::string bytes_;
};

// Event {double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
//        SessionLog session_log = 7;}
Message Event(double wall_time_s, int64_t step) {
  Message event;
  event.Double(1, wall_time_s);
  if (step != 0) event.Varint(2, static_cast<uint64_t>(step));
  return event;
}

// TensorProto {DataType dtype = 1; TensorShapeProto tensor_shape = 2;
//              repeated bytes string_val = 8;}
enum DataType { kFloat = 1, kString = 7 };

// google.protobuf.Value {double number_value = 2; string string_value = 3; bool bool_value = 4;}
Message ProtobufValue(const std::variant<bool, double, std::string>& value) {
  if (const bool* is_true = std::get_if<bool>(&value)) return Message().Varint(4, *is_true ? 1 : 0);
  if (const double* number = std::get_if<double>(&value)) return Message().Double(2, *number);
  return Message().Bytes(3, std::get<std::string>(value));
}

// A value for a plugin:
// Value {string tag = 1; TensorProto tensor = 8; SummaryMetadata metadata = 9;}
// with SummaryMetadata {PluginData plugin_data = 1; DataClass data_class = 4;}.
std::string TensorEvent(double wall_time_s, int64_t step, const std::string& tag,
                        const Message& tensor, const Message& plugin_data) {
  const uint64_t kDataClassTensor = 2;
  const Message metadata = Message().Nested(1, plugin_data).Varint(4, kDataClassTensor);
  const Message value = Message().Bytes(1, tag).Nested(8, tensor).Nested(9, metadata);
  return Event(wall_time_s, step).Nested(5, Message().Nested(1, value)).Take();
}

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffffu;
  for (const char c : bytes) crc = kCrcOfByte[(crc ^ static_cast<uint8_t>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

std::string TfRecordFrame(std::string_view payload) {
  std::string frame;
  frame.reserve(payload.size() + 16);
  AppendLittleEndian(&frame, static_cast<uint64_t>(payload.size()));
  AppendLittleEndian(&frame, MaskedCrc32c(frame));
  frame.append(payload);
  AppendLittleEndian(&frame, MaskedCrc32c(payload));
  return frame;
}

std::string FileVersionEvent(double wall_time_s) {
  return Event(wall_time_s, 0).Bytes(3, "brain.Event:2").Take();
}

std::string SessionStartEvent(double wall_time_s, int64_t step) {
  const uint64_t kStart = 1;
  return Event(wall_time_s, step).Nested(7, Message().Varint(1, kStart)).Take();
}

std::string ScalarsEvent(double wall_time_s, int64_t step, const Metrics& metrics) {
  Message summary;  // Summary {repeated Value value = 1;}
  for (const auto& [name, value] : metrics) {
    // Value {string tag = 1; float simple_value = 2;}
    summary.Nested(1, Message().Bytes(1, name).Float(2, static_cast<float>(value)));
  }
  return Event(wall_time_s, step).Nested(5, summary).Take();
}

std::string HparamsEvent(double wall_time_s, const Hparams& hparams) {
  // SessionStartInfo {map<string, google.protobuf.Value> hparams = 1; double start_time_secs = 5;}
  Message session;
  for (const auto& [name, value] : hparams) {
    session.Nested(1, Message().Bytes(1, name).Nested(2, ProtobufValue(value)));
  }
  session.Double(5, wall_time_s);
  // HParamsPluginData {SessionStartInfo session_start_info = 3;}
  const Message data = Message().Nested(3, session);
  const Message no_tensor = Message().Varint(1, kFloat).Nested(2, Message().Nested(2, Message()));
  return TensorEvent(wall_time_s, 0, "_hparams_/session_start_info", no_tensor,
                     Message().Bytes(1, "hparams").Nested(2, data));
}

std::string TextEvent(double wall_time_s, int64_t step, const std::string& tag,
                      const TextTable& table) {
  const size_t num_columns = table.empty() ? 0 : table.front().size();
  Message shape;  // TensorShapeProto {repeated Dim {int64 size = 1;} dim = 2;}
  for (const size_t size : {table.size(), num_columns})
    shape.Nested(2, size == 0 ? Message() : Message().Varint(1, size));
  Message tensor = Message().Varint(1, kString).Nested(2, shape);
  for (const std::vector<std::string>& row : table) {
    for (const std::string& cell : row) tensor.Bytes(8, cell);
  }
  return TensorEvent(wall_time_s, step, tag, tensor, Message().Bytes(1, "text"));
}

}  // namespace taopd
