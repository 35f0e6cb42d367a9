#include "server/grpc/teacher/score_stream.h"

#include <utility>
#include <vector>

#include "common/wire/teacher_protocol.h"
#include "server/grpc/teacher/score_admission.h"

namespace taopd {
namespace {

constexpr char kMethod[] = "grpc/ScoreStream";

std::unique_ptr<v1::ScoreStreamResponse> MakeError(const std::string& request_id,
                                                   const absl::Status& status) {
  auto response = std::make_unique<v1::ScoreStreamResponse>();
  response->set_request_id(request_id);
  response->mutable_error()->set_code(status.raw_code());
  response->mutable_error()->set_message(std::string(status.message()));
  return response;
}

}  // namespace

template <typename Change>
void ScoreStream::Advance(bool may_read, const Change& change) {
  Next next;
  {
    absl::MutexLock lock(&mutex_);
    change();
    next = DecideLocked(may_read);
  }
  if (next.read) StartRead(&read_);
  if (next.write != nullptr) {
    written_ = SerializeMessage(*next.write);
    StartWrite(&written_);
  }
  if (next.finish) Finish(next.status);
}

void ScoreStream::Start() {
  Advance(/*may_read=*/true, [] {});
}

void ScoreStream::Drain() {
  Advance(/*may_read=*/false, [this] { draining_ = true; });
}

void ScoreStream::OnReadDone(bool ok) {
  // reading_ stays true until read_ is no longer needed: a write that ends meanwhile on another
  // thread must not start the next read into it.
  if (ok) Accept(&read_);
  Advance(/*may_read=*/true, [&] {
    reading_ = false;
    if (!ok) reads_ended_ = true;
  });
}

void ScoreStream::OnWriteDone(bool ok) {
  written_.Clear();
  if (!ok) CancelAll();
  Advance(/*may_read=*/true, [this] { writing_ = Answer(); });
}

void ScoreStream::OnCancel() {
  CancelAll();
  Advance(/*may_read=*/false, [] {});
  order_.CancelEnds();
}

void ScoreStream::OnDone() {
  order_.DoneBegins();
  {
    std::shared_ptr<const ServedModel> model;  // destroyed after the lock is released
    absl::MutexLock lock(&mutex_);
    model.swap(model_);
  }
  const std::function<void(ScoreStream*)> on_done = on_done_;  // outlives the object
  on_done(this);
}

void ScoreStream::Accept(CallBytes* message) {
  const absl::Time started_at = services_.state->clock()->Now();
  uint64_t number;
  {
    absl::MutexLock lock(&mutex_);
    // A cancellation or a drain may have ended the call after this message arrived. OnDone then
    // follows this reaction, and nothing may be left in the engine.
    if (broken_ || finished_) return;
    number = next_number_++;
    open_.emplace(number, 0);
  }
  v1::ScoreRequest request;
  const absl::Status parsed = ParseMessage(message, &request);
  const absl::Status status = parsed.ok() ? Submit(request, number, started_at) : parsed;
  if (status.ok()) return;
  const std::string request_id =
      parsed.ok() ? request.request_id().substr(0, kMaxRequestIdBytes) : std::string();
  RecordCall(services_, kMethod, status, started_at, address_, request_id);
  if (parsed.ok()) return Complete(number, {MakeError(request_id, status), {}});
  Advance(/*may_read=*/false, [&] {
    open_.erase(number);
    refusal_ = status;
  });
}

absl::Status ScoreStream::Submit(const v1::ScoreRequest& request, uint64_t number,
                                 absl::Time started_at) {
  TAOPD_ASSIGN_OR_RETURN(AdmittedRequest admitted, AdmitScore(request, caller_, *services_.state));
  const std::shared_ptr<const ServedModel> model = std::move(admitted.model);
  // Shared: the callback must be copyable.
  const auto pending =
      std::make_shared<Pending>(Pending{number, request.request_id(), model->revision, started_at,
                                        std::move(admitted.answer_memory)});
  // The callback owns a share of the stream: it may still run when gRPC is done with the call.
  auto done = [stream = shared_from_this(), pending](absl::StatusOr<InferenceResult> result) {
    Deliver(stream->services_.delivery, [stream, pending, result = std::move(result)] {
      stream->Respond(pending.get(), result);
    });
  };
  {
    absl::MutexLock lock(&mutex_);
    model_ = model;
  }
  const RequestHandle handle =
      model->engine->Submit(std::move(admitted.requests[0]), std::move(done));
  bool cancel = false;
  {
    absl::MutexLock lock(&mutex_);
    const auto open = open_.find(number);  // gone when `done` has run
    if (open != open_.end()) {
      open->second = handle;
      cancel = broken_;
    }
  }
  if (cancel) model->engine->Cancel(handle);
  return absl::OkStatus();
}

void ScoreStream::Respond(Pending* pending, const absl::StatusOr<InferenceResult>& result) {
  const std::string& id = pending->request_id;
  RecordCall(services_, kMethod, result.status(), pending->started_at, address_, id);
  std::unique_ptr<v1::ScoreStreamResponse> response;
  if (result.ok()) {
    response = std::make_unique<v1::ScoreStreamResponse>();
    response->set_request_id(id);
    *response->mutable_response() = ToScoreResponse(id, pending->revision, *result->score);
  } else {
    response = MakeError(id, result.status());
  }
  Complete(pending->number, {std::move(response), std::move(pending->memory)});
}

void ScoreStream::Complete(uint64_t number, Answer answer) {
  // No read from here: only inside a reaction is the object certain to outlive the call.
  Advance(/*may_read=*/false, [&] {
    open_.erase(number);
    answers_.push_back(std::move(answer));
  });
}

void ScoreStream::CancelAll() {
  std::shared_ptr<const ServedModel> model;
  std::vector<RequestHandle> handles;
  {
    absl::MutexLock lock(&mutex_);
    broken_ = true;
    model = model_;
    for (const auto& [number, handle] : open_) {
      if (handle != 0) handles.push_back(handle);
    }
  }
  for (const RequestHandle handle : handles) model->engine->Cancel(handle);
}

ScoreStream::Next ScoreStream::DecideLocked(bool may_read) {
  Next next;
  if (finished_) return next;
  if (broken_) answers_.clear();
  if (writing_.response == nullptr && !answers_.empty()) {
    writing_ = std::move(answers_.front());
    answers_.pop_front();
    next.write = writing_.response.get();
  }
  const int64_t num_in_flight =
      static_cast<int64_t>(open_.size() + answers_.size()) + (writing_.response != nullptr);
  const bool ended = reads_ended_ || broken_ || draining_ || !refusal_.ok();
  if (may_read && !ended && !reading_ && num_in_flight < kMaxInFlight) {
    reading_ = true;
    next.read = true;
  }
  if (ended && num_in_flight == 0) {
    finished_ = true;
    next.finish = true;
    if (broken_) {
      next.status = grpc::Status::CANCELLED;
    } else if (!refusal_.ok()) {
      next.status = ToGrpcStatus(refusal_);
    } else if (!reads_ended_) {
      next.status = grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is draining");
    }
  }
  return next;
}

}  // namespace taopd
