#include "server/grpc/key_check.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <string>

#include "server/grpc/calls/call_services.h"

namespace taopd {
namespace {

constexpr char kHealth[] = "/grpc.health.v1.Health/";
constexpr char kOwn[] = "/taopd.v1.Teacher/";
constexpr char kReflection[] = "/grpc.reflection.";

// Returns the handlers' name of the method in the metrics. Clients may send any path, but the
// labels must be a fixed set.
std::string LabelOf(const std::string& path) {
  std::string name = path.substr(std::min<size_t>(path.size(), 1));
  std::replace(name.begin(), name.end(), '/', '.');
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  if (pool->FindMethodByName(name) == nullptr) return "grpc/unknown";
  if (path.starts_with(kReflection)) return "grpc/Reflection";
  return "grpc/" + path.substr(path.starts_with(kOwn) ? sizeof(kOwn) - 1 : 1);
}

}  // namespace

grpc::Status KeyCheck::Process(const InputMetadata& headers, grpc::AuthContext*, OutputMetadata*,
                               OutputMetadata*) {
  const std::string path = OnlyValueOf(headers, ":path");
  if (path.starts_with(kHealth) || keys_->Accepts(OnlyValueOf(headers, "authorization"))) {
    return grpc::Status::OK;
  }
  metrics_->RecordRequest(LabelOf(path), "UNAUTHENTICATED", absl::ZeroDuration());
  return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "Unauthorized");
}

}  // namespace taopd
