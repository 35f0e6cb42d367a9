#include "server/grpc/calls/call_services.h"

#include <string_view>

#include "server/grpc/score_conversion.h"

namespace taopd {
namespace {

constexpr char kAuthorization[] = "authorization";

}  // namespace

absl::Status CheckKey(const CallServices& services, const grpc::CallbackServerContext& context) {
  if (services.keys == nullptr || !services.keys->required()) return absl::OkStatus();
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(kAuthorization);
  // Two values could be read differently by a proxy.
  if (found != metadata.end() && metadata.count(kAuthorization) == 1 &&
      services.keys->Accepts(std::string_view(found->second.data(), found->second.size()))) {
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError("Unauthorized");
}

grpc::ServerUnaryReactor* AnswerAtOnce(const CallServices& services,
                                       grpc::CallbackServerContext* context, const char* method,
                                       const std::function<absl::Status()>& fill) {
  const absl::Time started_at = services.state->clock()->Now();
  absl::Status status = CheckKey(services, *context);
  if (status.ok()) status = fill();
  services.metrics->RecordRequest(method, StatusCodeName(status),
                                  services.state->clock()->Now() - started_at,
                                  PeerAddress(context->peer()));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();  // makes it anew each time
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace taopd
