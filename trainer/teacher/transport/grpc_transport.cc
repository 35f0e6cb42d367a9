#include "trainer/teacher/transport/grpc_transport.h"

#include <absl/strings/numbers.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "common/wire/teacher_protocol.h"
#include "trainer/teacher/verify_scores.h"

namespace taopd {
namespace {

// Returns the request to send. It requests only arrays that are checked on return.
v1::ScoreRequest ToProto(const TeacherRequest& request, const TeacherInfo& info) {
  v1::ScoreRequest proto;
  proto.set_request_id(request.request_id);
  proto.mutable_token_ids()->Add(request.token_ids.begin(), request.token_ids.end());
  proto.set_score_start(static_cast<uint32_t>(request.score_start));
  proto.set_top_k(static_cast<uint32_t>(request.top_k));
  proto.set_temperature(request.temperature);
  proto.set_expected_revision(info.revision);
  if (request.entropy) proto.mutable_options()->set_entropy(true);
  if (request.dense) proto.mutable_options()->set_dense(true);
  proto.set_num_candidates(static_cast<uint32_t>(request.num_candidates));
  proto.mutable_candidate_ids()->Add(request.candidate_ids.begin(), request.candidate_ids.end());
  return proto;
}

// Returns whether a message was too large. Such a message fails each time, although gRPC gives it
// the code of a full queue; only the text of the error differs.
bool IsMessageTooLarge(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
         status.error_message().find("larger than max") != std::string::npos;
}

std::optional<absl::Duration> PushbackOf(const grpc::ClientContext& context,
                                         const grpc::Status& status) {
  constexpr absl::Duration kNever = absl::Seconds(-1);
  if (IsMessageTooLarge(status)) return kNever;
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find(kRetryPushbackKey);
  if (status.ok() || found == trailers.end()) return std::nullopt;
  int64_t milliseconds = 0;
  // Text that is not a number means "do not retry" (gRPC proposal A6).
  if (!absl::SimpleAtoi(std::string(found->second.data(), found->second.size()), &milliseconds) ||
      milliseconds < 0) {
    return kNever;
  }
  return absl::Milliseconds(milliseconds);
}

}  // namespace

struct GrpcScoreTransport::Call {
  grpc::ClientContext context;
  v1::ScoreRequest proto;
  v1::ScoreResponse reply;
  grpc::Status status;
  const TeacherRequest* request;
  const TeacherInfo* info;
  std::function<void(Result)> done;
  // Declared last, because it must be destroyed before the context.
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::ScoreResponse>> reader;
};

GrpcScoreTransport::GrpcScoreTransport(const std::vector<TeacherEndpoint>& endpoints,
                                       const TlsPem& tls, const TeacherClientOptions& options)
    : max_message_bytes_(options.max_message_bytes), api_key_(options.api_key) {
  for (const TeacherEndpoint& endpoint : endpoints) {
    const GrpcChannelOptions channel = {endpoint.tls, tls, options.max_message_bytes,
                                        options.initial_backoff, options.max_backoff};
    stubs_.push_back(v1::Teacher::NewStub(MakeGrpcChannel(endpoint.GrpcTarget(), channel)));
  }
  for (int i = 0; i < kNumThreads; ++i) threads_.emplace_back([this] { RunCompletions(); });
}

GrpcScoreTransport::~GrpcScoreTransport() {
  completions_.Shutdown();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status GrpcScoreTransport::Check(const TeacherRequest& request,
                                       const TeacherInfo& info) const {
  const int64_t request_bytes =
      4 * static_cast<int64_t>(request.token_ids.size() + request.candidate_ids.size());
  const int64_t bytes = std::max(request_bytes, ScoreReplyBytes(request, info));
  if (bytes <= max_message_bytes_) return absl::OkStatus();
  return InvalidArgument("its messages need ", bytes, " bytes, above max_message_bytes ",
                         max_message_bytes_);
}

void GrpcScoreTransport::Start(size_t endpoint, const TeacherRequest& request,
                               const TeacherInfo& info, absl::Duration timeout,
                               std::function<void(Result)> done) {
  auto owned = std::make_shared<Call>();
  Call* call = owned.get();
  call->proto = ToProto(request, info);
  call->request = &request;
  call->info = &info;
  call->done = std::move(done);
  PrepareGrpcCall(api_key_, timeout, &call->context);
  {
    absl::MutexLock lock(&mutex_);
    calls_[call] = std::move(owned);
    if (is_cancelled_) call->context.TryCancel();
  }
  call->reader = stubs_[endpoint]->AsyncScore(&call->context, call->proto, &completions_);
  call->reader->Finish(&call->reply, &call->status, call);
}

void GrpcScoreTransport::RunCompletions() {
  void* tag = nullptr;
  bool ok = false;  // unused, because the status has more details
  while (completions_.Next(&tag, &ok)) {
    std::shared_ptr<Call> call;
    {
      absl::MutexLock lock(&mutex_);
      call = std::move(calls_.extract(static_cast<Call*>(tag)).mapped());
    }
    Result result{call->status.ok() ? ScoresOfReply(call->reply, *call->request, *call->info)
                                    : absl::StatusOr<TeacherScores>(ToAbsl(call->status)),
                  PushbackOf(call->context, call->status),
                  static_cast<int64_t>(call->proto.ByteSizeLong()),
                  call->status.ok() ? static_cast<int64_t>(call->reply.ByteSizeLong()) : 0};
    const std::function<void(Result)> done = std::move(call->done);
    call.reset();  // frees its memory before `done` starts more work
    done(std::move(result));
  }
}

void GrpcScoreTransport::CancelAll() {
  std::vector<std::shared_ptr<Call>> calls;
  {
    absl::MutexLock lock(&mutex_);
    is_cancelled_ = true;
    for (const auto& [key, call] : calls_) calls.push_back(call);
  }
  for (const auto& call : calls) call->context.TryCancel();
}

absl::StatusOr<TeacherInfo> GrpcScoreTransport::Ask(size_t endpoint, absl::Duration timeout) {
  grpc::ClientContext context;
  PrepareGrpcCall(api_key_, timeout, &context);
  v1::GetTeacherInfoResponse reply;
  TAOPD_RETURN_IF_ERROR(ToAbsl(stubs_[endpoint]->GetTeacherInfo(&context, {}, &reply)));
  return InfoOfReply(reply);
}

absl::StatusOr<TeacherScores> ScoresOfReply(const v1::ScoreResponse& reply,
                                            const TeacherRequest& request,
                                            const TeacherInfo& info) {
  if (reply.request_id() != request.request_id) {
    return DataLoss("teacher reply: request_id \"", reply.request_id(), "\" instead of \"",
                    request.request_id, "\"");
  }
  TeacherScores scores;
  scores.revision = reply.revision();
  // Values above the int32 range become negative, which is refused like any id out of range.
  scores.top_k = static_cast<int32_t>(reply.top_k());
  scores.ids.assign(reply.ids().begin(), reply.ids().end());
  scores.log_probs.assign(reply.logprobs().begin(), reply.logprobs().end());
  scores.log_tail.assign(reply.log_tail().begin(), reply.log_tail().end());
  scores.sampled_log_probs.assign(reply.sampled_logprobs().begin(), reply.sampled_logprobs().end());
  scores.entropy.assign(reply.entropy().begin(), reply.entropy().end());
  scores.candidate_log_probs.assign(reply.candidate_logprobs().begin(),
                                    reply.candidate_logprobs().end());
  scores.candidate_log_tail.assign(reply.candidate_log_tail().begin(),
                                   reply.candidate_log_tail().end());
  scores.dense_log_probs.assign(reply.dense_logprobs().begin(), reply.dense_logprobs().end());
  TAOPD_RETURN_IF_ERROR(VerifyTeacherScores(scores, request, info));
  return scores;
}

absl::StatusOr<TeacherInfo> InfoOfReply(const v1::GetTeacherInfoResponse& reply) {
  if (reply.protocol_version() != kTeacherProtocolVersion) {
    return FailedPrecondition("protocol_version ", reply.protocol_version(),
                              " of the teacher is not known; this client speaks version ",
                              kTeacherProtocolVersion);
  }
  if (reply.revision().empty()) return DataLoss("the teacher's revision is empty");
  if (reply.head_vocab_size() == 0 ||
      reply.head_vocab_size() > uint32_t{std::numeric_limits<int32_t>::max()}) {
    return DataLoss("the teacher's head_vocab_size ", reply.head_vocab_size(),
                    " is outside [1, 2^31)");
  }
  TeacherInfo info;
  info.model_name = reply.model_name();
  info.revision = reply.revision();
  info.tokenizer_hash = reply.tokenizer_hash();
  info.head_vocab_size = reply.head_vocab_size();
  info.max_model_len = reply.max_model_len();
  info.max_top_k = reply.max_top_k();
  info.max_candidates = reply.max_candidates();
  info.max_dense_vocab_size = reply.max_dense_vocab_size();
  info.eos_token_ids.assign(reply.eos_token_ids().begin(), reply.eos_token_ids().end());
  info.supports_temperature = reply.supports_temperature();
  return info;
}

}  // namespace taopd
