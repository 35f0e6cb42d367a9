#include "server/grpc/calls/message_bytes.h"

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include "common/base/check.h"
#include "server/grpc/calls/parsed_size.h"

namespace taopd {

absl::Status ParseMessage(CallBytes* bytes, google::protobuf::Message* message) {
  CallBytes taken;
  taken.Swap(bytes);
  const google::protobuf::Descriptor& type = *message->GetDescriptor();
  if (!taken.Valid()) return InvalidArgument("the call has no ", type.full_name());
  grpc::ProtoBufferReader walked(&taken);
  TAOPD_RETURN_IF_ERROR(
      ParsedSize(type, static_cast<int>(taken.Length()), kMaxParsedBytes, &walked).status());
  grpc::ProtoBufferReader parsed(&taken);
  if (message->ParseFromZeroCopyStream(&parsed)) return absl::OkStatus();
  return InvalidArgument(type.full_name(), " of ", taken.Length(),
                         " bytes is malformed, or a text of it is not UTF-8");
}

CallBytes SerializeMessage(const google::protobuf::Message& message) {
  CallBytes bytes;
  bool owned = false;
  TAOPD_CHECK(
      grpc::SerializationTraits<google::protobuf::Message>::Serialize(message, &bytes, &owned)
          .ok());
  return bytes;
}

}  // namespace taopd
