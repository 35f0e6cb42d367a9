#include "server/grpc/calls/parsed_size.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>

#include <algorithm>
#include <string>
#include <unordered_map>

namespace taopd {
namespace {

namespace io = google::protobuf::io;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// protobuf's own limit of messages and groups nested in each other.
constexpr int kMaxDepth = 100;

// The lowest three bits of a tag.
constexpr uint32_t kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kStartGroup = 3, kEndGroup = 4,
                   kFixed32 = 5;

// Returns the memory that malloc takes for this many bytes.
constexpr int64_t Allocated(int64_t num_bytes) {
  return std::max<int64_t>(32, (num_bytes + 8 + 15) / 16 * 16);
}

// Arrays and texts grow by doubling: half of one may be spare.
constexpr int64_t kGrowth = 2;
constexpr int64_t kPointerBytes = sizeof(void*);
constexpr int64_t kArraySlotBytes = kGrowth * kPointerBytes;
// The table of a map has up to 8/3 slots for each entry.
constexpr int64_t kMapSlotBytes = 3 * kPointerBytes;
// The first allocation of an array, and of a map's table.
constexpr int64_t kFirstArrayBytes = Allocated(2 * kPointerBytes);
constexpr int64_t kFirstTableBytes = Allocated(8 * kPointerBytes);
constexpr int64_t kUnknownFieldBytes = kGrowth * sizeof(google::protobuf::UnknownField);
constexpr int64_t kUnknownGroupBytes = Allocated(sizeof(google::protobuf::UnknownFieldSet));
// The set of a message's unknown fields, which exists as soon as there is one.
constexpr int64_t kUnknownFieldsBytes =
    Allocated(kPointerBytes + sizeof(google::protobuf::UnknownFieldSet));

int64_t StringBytes(int length) {
  const int64_t text = length < static_cast<int64_t>(sizeof(std::string)) / 2
                           ? 0  // inside the object
                           : Allocated(kGrowth * length);
  return Allocated(sizeof(std::string)) + text;
}

uint32_t WireTypeOf(const FieldDescriptor& field) {
  switch (field.type()) {
    case FieldDescriptor::TYPE_DOUBLE:
    case FieldDescriptor::TYPE_FIXED64:
    case FieldDescriptor::TYPE_SFIXED64:
      return kFixed64;
    case FieldDescriptor::TYPE_FLOAT:
    case FieldDescriptor::TYPE_FIXED32:
    case FieldDescriptor::TYPE_SFIXED32:
      return kFixed32;
    case FieldDescriptor::TYPE_STRING:
    case FieldDescriptor::TYPE_BYTES:
    case FieldDescriptor::TYPE_MESSAGE:
      return kLengthDelimited;
    case FieldDescriptor::TYPE_GROUP:
      return kStartGroup;
    default:
      return kVarint;
  }
}

// Returns the size of a number in an array.
int64_t NumberBytes(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return 1;
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT64:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return 8;
    default:
      return 4;
  }
}

int64_t SlotBytes(const FieldDescriptor& field) {
  if (!field.is_repeated()) return 0;
  return field.is_map() ? kMapSlotBytes : kArraySlotBytes;
}

int64_t ComputeObjectBytes(const Descriptor& type);

// Returns the size of a key or a value inside a map's entry.
int64_t InlineBytes(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return sizeof(std::string);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ComputeObjectBytes(*field.message_type());
    default:
      return 8;
  }
}

// Returns the size of an object and of the first allocations of its arrays, as if each had an
// element.
int64_t ComputeObjectBytes(const Descriptor& type) {
  if (const FieldDescriptor* key = type.map_key(); key != nullptr)
    return Allocated(kPointerBytes + InlineBytes(*key) + InlineBytes(*type.map_value()));
  const auto* prototype =
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type);
  int64_t bytes = Allocated(static_cast<int64_t>(prototype->SpaceUsedLong()));
  for (int i = 0; i < type.field_count(); ++i) {
    if (!type.field(i)->is_repeated()) continue;
    bytes += type.field(i)->is_map() ? kFirstTableBytes : kFirstArrayBytes;
  }
  return bytes;
}

// The functions return false at the first error.
class SizeWalk {
 public:
  SizeWalk(int num_bytes, int64_t max_bytes, io::ZeroCopyInputStream* bytes)
      : max_bytes_(max_bytes), input_(bytes) {
    input_.PushLimit(num_bytes);
  }

  bool Message(const Descriptor& type) {
    return Add(ObjectBytes(type)) && Fields(&type, /*end_tag=*/0, /*depth=*/0);
  }
  int64_t size() const { return size_; }
  bool is_too_large() const { return size_ > max_bytes_; }
  bool is_too_deep() const { return is_too_deep_; }

 private:
  bool Add(int64_t num_bytes) {
    size_ += num_bytes;
    return !is_too_large();
  }

  int64_t ObjectBytes(const Descriptor& type) {
    const auto [entry, is_new] = object_bytes_.try_emplace(&type, 0);
    if (is_new) entry->second = ComputeObjectBytes(type);
    return entry->second;
  }

  // Visits the fields of a message up to the limit of the input, or those of a group up to its
  // end_tag. `type` is null for an unknown group.
  bool Fields(const Descriptor* type, uint32_t end_tag, int depth) {
    if (depth > kMaxDepth) {
      is_too_deep_ = true;
      return false;
    }
    bool has_unknown = type == nullptr;  // counted with the group
    while (true) {
      const uint32_t tag = input_.ReadTag();
      if (tag == end_tag) return end_tag != 0 || input_.ConsumedEntireMessage();
      const uint32_t wire_type = tag & 7;
      const int number = static_cast<int>(tag >> 3);
      if (number == 0 || wire_type == kEndGroup) return false;
      const FieldDescriptor* field = type == nullptr ? nullptr : type->FindFieldByNumber(number);
      if (field != nullptr && IsOf(*field, wire_type)) {
        if (!Known(*field, wire_type, depth)) return false;
        continue;
      }
      if (!has_unknown && !Add(kUnknownFieldsBytes)) return false;
      has_unknown = true;
      if (!Unknown(number, wire_type, depth)) return false;
    }
  }

  // Returns whether protobuf reads a value of this form into the field; others stay unknown fields.
  static bool IsOf(const FieldDescriptor& field, uint32_t wire_type) {
    return wire_type == WireTypeOf(field) || (wire_type == kLengthDelimited && field.is_packable());
  }

  bool Known(const FieldDescriptor& field, uint32_t wire_type, int depth) {
    if (wire_type == kStartGroup) {
      return Add(ObjectBytes(*field.message_type()) + SlotBytes(field)) &&
             Fields(field.message_type(), EndTag(field.number()), depth + 1);
    }
    if (wire_type != kLengthDelimited) {
      return (!field.is_repeated() || Add(kGrowth * NumberBytes(field))) && SkipNumber(wire_type);
    }
    int length = 0;
    if (!ReadLength(&length)) return false;
    switch (field.type()) {
      case FieldDescriptor::TYPE_MESSAGE:
        return Add(ObjectBytes(*field.message_type()) + SlotBytes(field)) &&
               Nested(*field.message_type(), length, depth + 1);
      case FieldDescriptor::TYPE_STRING:
      case FieldDescriptor::TYPE_BYTES:
        return Add(StringBytes(length) + SlotBytes(field)) && input_.Skip(length);
      default:
        return Packed(field, length);
    }
  }

  bool Nested(const Descriptor& type, int length, int depth) {
    const io::CodedInputStream::Limit outer = input_.PushLimit(length);
    if (!Fields(&type, /*end_tag=*/0, depth)) return false;
    input_.PopLimit(outer);
    return true;
  }

  // Skips all numbers of a packed array.
  bool Packed(const FieldDescriptor& field, int length) {
    if (WireTypeOf(field) != kVarint) return Add(kGrowth * length) && input_.Skip(length);
    int64_t num_values = 0;
    while (length > 0) {
      const void* data = nullptr;
      int size = 0;
      if (!input_.GetDirectBufferPointer(&data, &size)) return false;
      size = std::min(size, length);
      const auto* bytes = static_cast<const uint8_t*>(data);
      num_values += std::count_if(bytes, bytes + size, [](uint8_t byte) { return byte < 0x80; });
      if (!input_.Skip(size)) return false;
      length -= size;
    }
    return Add(kGrowth * NumberBytes(field) * num_values);
  }

  bool Unknown(int number, uint32_t wire_type, int depth) {
    if (!Add(kUnknownFieldBytes)) return false;
    if (wire_type == kStartGroup)
      return Add(kUnknownGroupBytes) && Fields(nullptr, EndTag(number), depth + 1);
    if (wire_type != kLengthDelimited) return SkipNumber(wire_type);
    int length = 0;
    return ReadLength(&length) && Add(StringBytes(length)) && input_.Skip(length);
  }

  static uint32_t EndTag(int number) { return static_cast<uint32_t>(number) << 3 | kEndGroup; }

  bool ReadLength(int* length) {
    return input_.ReadVarintSizeAsInt(length) && *length <= input_.BytesUntilLimit();
  }

  bool SkipNumber(uint32_t wire_type) {
    uint64_t value = 0;
    switch (wire_type) {
      case kVarint:
        return input_.ReadVarint64(&value);
      case kFixed32:
        return input_.Skip(4);
      case kFixed64:
        return input_.Skip(8);
      default:
        return false;
    }
  }

  const int64_t max_bytes_;
  io::CodedInputStream input_;
  int64_t size_ = 0;
  bool is_too_deep_ = false;
  std::unordered_map<const Descriptor*, int64_t> object_bytes_;
};

}  // namespace

absl::StatusOr<int64_t> ParsedSize(const Descriptor& type, int num_bytes, int64_t max_bytes,
                                   io::ZeroCopyInputStream* bytes) {
  SizeWalk walk(num_bytes, max_bytes, bytes);
  if (walk.Message(type)) return walk.size();
  const std::string message = Concat(type.full_name(), " of ", num_bytes, " bytes ");
  if (walk.is_too_large())
    return InvalidArgument(message, "would take more than ", max_bytes,
                           " bytes of memory, the limit");
  if (walk.is_too_deep())
    return InvalidArgument(message, "is nested more than ", kMaxDepth, " levels deep, the limit");
  return InvalidArgument(message, "is malformed");
}

}  // namespace taopd
