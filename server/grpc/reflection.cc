#include "server/grpc/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/support/status.h>

#include <set>

#include "common/base/status.h"
#include "server/grpc/calls/message_bytes.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

namespace v1r = grpc::reflection::v1;
using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;

void SetError(grpc::StatusCode code, const std::string& message,
              v1r::ServerReflectionResponse* response) {
  response->mutable_error_response()->set_error_code(code);
  response->mutable_error_response()->set_error_message(message);
}

void SetNotFound(const char* what, const std::string& name,
                 v1r::ServerReflectionResponse* response) {
  SetError(grpc::StatusCode::NOT_FOUND, Concat(what, " ", Excerpt(name), " is not known"),
           response);
}

// Adds the file and its imports, each once.
void AddFiles(const google::protobuf::FileDescriptor& file, std::set<std::string>* seen,
              v1r::FileDescriptorResponse* out) {
  if (!seen->insert(file.name()).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  proto.SerializeToString(out->add_file_descriptor_proto());
  for (int i = 0; i < file.dependency_count(); ++i) AddFiles(*file.dependency(i), seen, out);
}

void SetFile(const google::protobuf::FileDescriptor* file, const char* what,
             const std::string& name, v1r::ServerReflectionResponse* response) {
  if (file == nullptr) return SetNotFound(what, name, response);
  std::set<std::string> seen;
  AddFiles(*file, &seen, response->mutable_file_descriptor_response());
}

void SetExtensionNumbers(const DescriptorPool& pool, const std::string& type,
                         v1r::ServerReflectionResponse* response) {
  const Descriptor* message = pool.FindMessageTypeByName(type);
  if (message == nullptr) return SetNotFound("message", type, response);
  std::vector<const FieldDescriptor*> extensions;
  pool.FindAllExtensions(message, &extensions);
  auto* numbers = response->mutable_all_extension_numbers_response();
  numbers->set_base_type_name(type);
  for (const FieldDescriptor* extension : extensions)
    numbers->add_extension_number(extension->number());
}

void SetExtensionFile(const DescriptorPool& pool, const v1r::ExtensionRequest& extension,
                      v1r::ServerReflectionResponse* response) {
  const Descriptor* message = pool.FindMessageTypeByName(extension.containing_type());
  if (message == nullptr) return SetNotFound("message", extension.containing_type(), response);
  const FieldDescriptor* field = pool.FindExtensionByNumber(message, extension.extension_number());
  SetFile(field == nullptr ? nullptr : field->file(), "extension",
          Concat(extension.extension_number(), " of ", extension.containing_type()), response);
}

// Alternately reads a request and writes its answer, one at a time. A request that cannot be parsed
// ends the call. Owns itself.
class ReflectionStream final : public BidiCall {
 public:
  ReflectionStream(const CallServices& services, CallContext* context,
                   const std::vector<std::string>* names)
      : services_(services),
        names_(names),
        address_(AddressOf(services, *context)),
        started_at_(services.state->clock()->Now()) {
    StartRead(&request_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    grpc::reflection::v1::ServerReflectionRequest request;
    status_ = ParseMessage(&request_, &request);
    if (!status_.ok()) return Finish(ToGrpcStatus(status_));
    answer_ = SerializeMessage(AnswerReflection(request, *names_));
    StartWrite(&answer_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    StartRead(&request_);
  }
  void OnDone() override {
    RecordCall(services_, "grpc/Reflection", status_, started_at_, address_);
    delete this;
  }

 private:
  const CallServices services_;
  const std::vector<std::string>* const names_;
  const std::string address_;
  const absl::Time started_at_;
  absl::Status status_;  // the final status of the call
  CallBytes request_;
  CallBytes answer_;
};

}  // namespace

v1r::ServerReflectionResponse AnswerReflection(const v1r::ServerReflectionRequest& request,
                                               const std::vector<std::string>& services) {
  v1r::ServerReflectionResponse response;
  if (const size_t size = request.ByteSizeLong(); size > kMaxReflectionRequestBytes) {
    SetError(grpc::StatusCode::INVALID_ARGUMENT,
             Concat("the request has ", size, " bytes, the limit is ", kMaxReflectionRequestBytes),
             &response);
    return response;
  }
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  switch (request.message_request_case()) {
    case v1r::ServerReflectionRequest::kFileByFilename:
      SetFile(pool.FindFileByName(request.file_by_filename()), "file", request.file_by_filename(),
              &response);
      break;
    case v1r::ServerReflectionRequest::kFileContainingSymbol:
      SetFile(pool.FindFileContainingSymbol(request.file_containing_symbol()), "symbol",
              request.file_containing_symbol(), &response);
      break;
    case v1r::ServerReflectionRequest::kFileContainingExtension:
      SetExtensionFile(pool, request.file_containing_extension(), &response);
      break;
    case v1r::ServerReflectionRequest::kAllExtensionNumbersOfType:
      SetExtensionNumbers(pool, request.all_extension_numbers_of_type(), &response);
      break;
    case v1r::ServerReflectionRequest::kListServices:
      for (const std::string& name : services)
        response.mutable_list_services_response()->add_service()->set_name(name);
      break;
    default:
      SetError(grpc::StatusCode::INVALID_ARGUMENT, "the request is empty", &response);
  }
  return response;
}

BidiCall* BeginReflection(const CallServices& services, CallContext* context,
                          const std::vector<std::string>* names) {
  return new ReflectionStream(services, context, names);
}

}  // namespace taopd
