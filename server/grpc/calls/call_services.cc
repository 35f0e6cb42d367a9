#include "server/grpc/calls/call_services.h"

#include <chrono>
#include <string_view>
#include <vector>

#include "common/wire/teacher_protocol.h"
#include "server/net/client_name.h"

namespace taopd {

std::string OnlyValueOf(const std::multimap<grpc::string_ref, grpc::string_ref>& headers,
                        const char* name) {
  const auto found = headers.find(name);
  if (found == headers.end() || headers.count(name) != 1) return "";
  return std::string(found->second.data(), found->second.size());
}

absl::Time DeadlineOf(const CallContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

std::string PeerAddress(const std::string& peer) {
  if (peer.starts_with("unix-abstract:taopd/")) return peer.substr(peer.rfind('/') + 1);
  const size_t scheme = peer.find(':');
  const size_t port = peer.rfind(':');
  if ((!peer.starts_with("ipv4:") && !peer.starts_with("ipv6:")) || port == scheme) return peer;
  std::string address = peer.substr(scheme + 1, port - scheme - 1);
  constexpr std::string_view kOpen = "%5B", kClose = "%5D";
  if (address.starts_with(kOpen)) address.erase(0, kOpen.size());
  if (address.ends_with(kClose)) address.resize(address.size() - kClose.size());
  if (address.starts_with('[')) address.erase(0, 1);
  if (address.ends_with(']')) address.pop_back();
  return address;
}

void AddRetryPushback(const absl::Status& status, CallContext* context) {
  if (!absl::IsResourceExhausted(status)) return;
  context->AddTrailingMetadata(kRetryPushbackKey, std::to_string(kRetryPushbackMs));
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  // The numbers of absl::StatusCode are gRPC's.
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      std::string(status.message()));
}

std::string StatusCodeName(const absl::Status& status) {
  return absl::StatusCodeToString(status.code());
}

std::string AddressOf(const CallServices& services, const CallContext& context) {
  return services.state->trusted_proxies().ClientAddress(
      PeerAddress(context.peer()), [&context](const char* name) {
        std::vector<std::string_view> values;
        const auto [begin, end] = context.client_metadata().equal_range(name);
        for (auto header = begin; header != end; ++header)
          values.emplace_back(header->second.data(), header->second.size());
        return values;
      });
}

std::string ClientOf(const CallServices& services, const CallContext& context) {
  const auto& headers = context.client_metadata();
  return ClientName(AddressOf(services, context),
                    services.keys == nullptr
                        ? std::string()
                        : services.keys->NameOf(OnlyValueOf(headers, "authorization")));
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
