#include "server/grpc/call_services.h"

#include <string_view>

#include "server/grpc/score_conversion.h"

namespace taopd {
namespace {

constexpr char kAuthorization[] = "authorization";

}  // namespace

absl::Status CheckKey(const CallServices& services, const grpc::CallbackServerContext& context,
                      const char* method) {
  if (services.keys == nullptr || !services.keys->required()) return absl::OkStatus();
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(kAuthorization);
  // Two values could be read differently by a proxy.
  if (found != metadata.end() && metadata.count(kAuthorization) == 1 &&
      services.keys->Accepts(std::string_view(found->second.data(), found->second.size()))) {
    return absl::OkStatus();
  }
  const absl::Status status = absl::UnauthenticatedError("Unauthorized");
  services.metrics->RecordRequest(method, StatusCodeName(status), absl::ZeroDuration(),
                                  PeerAddress(context.peer()));
  return status;
}

}  // namespace taopd
