#include "server/grpc/calls/call_services.h"

#include <string_view>

#include "server/grpc/score_conversion.h"
#include "server/net/client_name.h"

namespace taopd {
namespace {

constexpr char kAuthorization[] = "authorization";

// Empty without the header, and if there are several: a proxy could read them differently.
std::string_view AuthorizationOf(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(kAuthorization);
  if (found == metadata.end() || metadata.count(kAuthorization) != 1) return {};
  return std::string_view(found->second.data(), found->second.size());
}

}  // namespace

std::string ClientOf(const CallServices& services, const grpc::CallbackServerContext& context) {
  return ClientName(
      PeerAddress(context.peer()),
      services.keys == nullptr ? std::string() : services.keys->NameOf(AuthorizationOf(context)));
}

grpc::ServerUnaryReactor* FinishAtOnce(const CallServices& services,
                                       grpc::CallbackServerContext* context, const char* method,
                                       const std::function<absl::Status()>& work) {
  const absl::Time started_at = services.state->clock()->Now();
  const absl::Status status = work();
  services.metrics->RecordRequest(method, StatusCodeName(status),
                                  services.state->clock()->Now() - started_at,
                                  PeerAddress(context->peer()));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();  // makes it anew each time
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace taopd
