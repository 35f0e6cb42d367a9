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

std::string PeerAddress(const std::string& peer) { return peer.substr(peer.rfind('/') + 1); }

void AddRetryPushback(const absl::Status& status, CallContext* context) {
  if (!absl::IsResourceExhausted(status)) return;
  context->AddTrailingMetadata(kRetryPushbackKey, std::to_string(kRetryPushbackMs));
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  // The numbers of absl::StatusCode are gRPC's.
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      std::string(status.message()));
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
  const std::string key_name =
      services.keys == nullptr
          ? ""
          : services.keys->NameOf(OnlyValueOf(context.client_metadata(), "authorization"));
  return ClientName(AddressOf(services, context), key_name);
}

absl::Time DeadlineOf(const CallContext& context) {
  const auto deadline = context.deadline();
  return deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture()
                                                                  : absl::FromChrono(deadline);
}

Caller CallerOf(const CallServices& services, const CallContext& context) {
  return {.client = ClientOf(services, context), .deadline = DeadlineOf(context)};
}

void RecordCall(const CallServices& services, const char* method, const absl::Status& status,
                absl::Time started_at, const std::string& address, const std::string& request_id) {
  services.metrics->RecordRequest(method, absl::StatusCodeToString(status.code()),
                                  services.state->clock()->Now() - started_at, address, request_id);
}

UnaryCall* FinishInHandler(const CallServices& services, CallContext* context, const char* method,
                           const std::function<absl::Status()>& work) {
  const absl::Time started_at = services.state->clock()->Now();
  const absl::Status status = work();
  RecordCall(services, method, status, started_at, AddressOf(services, *context));
  UnaryCall* reactor = context->DefaultReactor();  // makes it anew each time
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace taopd
