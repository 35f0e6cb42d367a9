#include "server/grpc/calls/call_services.h"

#include <string_view>
#include <vector>

#include "server/grpc/score_conversion.h"
#include "server/net/client_name.h"

namespace taopd {
namespace {

constexpr char kAuthorization[] = "authorization";

// Returns the header's value. It is empty without the header, and if there are several, which a
// proxy could read differently.
std::string_view AuthorizationOf(const CallContext& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(kAuthorization);
  if (found == metadata.end() || metadata.count(kAuthorization) != 1) return {};
  return std::string_view(found->second.data(), found->second.size());
}

}  // namespace

std::string AddressOf(const CallServices& services, const CallContext& context) {
  const std::string peer = PeerAddress(context.peer());
  const TrustedProxies& proxies = services.state->trusted_proxies();
  if (proxies.empty()) return peer;
  const auto& metadata = context.client_metadata();
  const bool forwarded = metadata.count("x-forwarded-for") == 0;
  const auto [begin, end] = metadata.equal_range(forwarded ? "forwarded" : "x-forwarded-for");
  std::vector<std::string_view> hops;
  for (auto hop = begin; hop != end; ++hop)
    hops.emplace_back(hop->second.data(), hop->second.size());
  return proxies.ClientAddress(peer, hops, forwarded);
}

std::string ClientOf(const CallServices& services, const CallContext& context) {
  return ClientName(
      AddressOf(services, context),
      services.keys == nullptr ? std::string() : services.keys->NameOf(AuthorizationOf(context)));
}

UnaryCall* FinishAtOnce(const CallServices& services, CallContext* context, const char* method,
                        const std::function<absl::Status()>& work) {
  const absl::Time started_at = services.state->clock()->Now();
  const absl::Status status = work();
  services.metrics->RecordRequest(method, StatusCodeName(status),
                                  services.state->clock()->Now() - started_at,
                                  AddressOf(services, *context));
  UnaryCall* reactor = context->DefaultReactor();  // makes it anew each time
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace taopd
