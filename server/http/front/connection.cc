#include "server/http/front/connection.h"

#include <absl/time/clock.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "common/base/check.h"

namespace taopd {
namespace {

constexpr size_t kReadBytes = 64 << 10;
// Used while a head is read, so that little is read beyond it.
constexpr size_t kHeadReadBytes = Transport::kMaxTlsRecordBytes;
constexpr size_t kMaxDiscardedBytes = 64 << 20;
// Every connection may hold this much of a head and of bytes after a request without a reservation,
// so that probes are answered when the budget is used up.
constexpr size_t kFreeHeadBytes = 16 << 10;
constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";

}  // namespace

Connection::Connection(uint64_t id, const AcceptedSocket& socket, SSL_CTX* tls, Access access,
                       Shared* shared, absl::Time now)
    : id_(id),
      transport_(socket.fd, tls),
      peer_{socket.address, socket.subscriber, socket.subscriber},
      client_(peer_),
      access_(access),
      shared_(shared),
      state_(tls == nullptr ? State::kReading : State::kHandshake),
      waits_for_(EPOLLIN),
      state_since_(now),
      last_progress_at_(now),
      parser_(shared->limits.request) {
  shared_->connections.Add(client_.subscriber, 1);
}

Connection::~Connection() {
  ReleaseMemory();
  if (is_counted_) shared_->tracker.End();
  shared_->connections.Add(client_.subscriber, -1);
}

void Connection::Run(absl::Time now) {
  switch (state_) {
    case State::kHandshake: {
      const Transport::Status status = transport_.Handshake();
      if (status == Transport::Status::kClosed) return Close();
      waits_for_ = status == Transport::Status::kWantWrite ? EPOLLOUT : EPOLLIN;
      if (status != Transport::Status::kOk) return;
      state_ = State::kReading;
      state_since_ = now;
      return ReadSome(now);
    }
    case State::kReading:
      return ReadSome(now);
    case State::kSending:
      return SendSome(now);
    case State::kLingering:
      return Discard();
    case State::kWorking:
    case State::kClosed:
      return;
  }
}

void Connection::ReadSome(absl::Time now) {
  if (!unread_.empty()) return Consume(std::exchange(unread_, {}), now);
  thread_local std::array<char, kReadBytes> buffer;
  const size_t size = parser_.state() == RequestParser::State::kBody ? kReadBytes : kHeadReadBytes;
  const Transport::Result got = transport_.Read(buffer.data(), size);
  if (got.status == Transport::Status::kClosed) return Close();
  waits_for_ = got.status == Transport::Status::kWantWrite ? EPOLLOUT : EPOLLIN;
  if (got.status != Transport::Status::kOk) return;
  Consume(std::string_view(buffer.data(), got.num_bytes), now);
}

void Connection::Consume(std::string_view bytes, absl::Time now) {
  if (!parser_.has_begun()) {
    begun_at_ = now;
    window_ = {now, 0};
  }
  last_progress_at_ = now;
  window_.num_bytes += static_cast<int64_t>(bytes.size());
  const size_t taken = parser_.Consume(bytes);
  if (parser_.state() == RequestParser::State::kRefused) return Refuse(parser_.refusal(), now);
  // Bytes after the request wait for its answer. They are never read if that answer closes the
  // connection.
  if (taken < bytes.size()) unread_.assign(bytes.substr(taken));
  if (parser_.state() != RequestParser::State::kHead && !head_ended_ && !AdmitHead(now)) return;
  if (!ReserveArrived()) {
    return Refuse({429, "too many large requests at once; try again later"}, now);
  }
  if (parser_.state() == RequestParser::State::kDone) Dispatch();
}

bool Connection::AdmitHead(absl::Time now) {
  head_ended_ = true;
  const RequestHead& head = parser_.head();
  if (std::optional<WireAnswer> answer = shared_->handler.Admit(head, access_, peer_.address)) {
    // An unread body would be taken for the next request.
    TAOPD_CHECK(answer->close || !head.has_body());
    if (answer->close) {
      parser_.Drop();
    } else {
      parser_.Take();
    }
    BeginCall();
    StartSending(*std::move(answer), now);
    return false;
  }
  ClientIdentity client = shared_->handler.Identify(head, peer_.address);
  const bool is_peer = client.address == peer_.address;
  if (is_peer) client.subscriber = peer_.subscriber;
  const bool is_too_many =
      !is_peer &&
      shared_->connections.Of(client.subscriber) >= shared_->limits.max_connections_per_client &&
      !shared_->handler.IsProbe(head);
  SetClient(std::move(client));
  if (is_too_many) {
    Refuse({429, "the client has too many requests at once; try again later"}, now);
    return false;
  }
  if (head.expects_continue && parser_.state() == RequestParser::State::kBody) {
    // If it does not fit as a whole, the connection ends: a part of it would become the beginning
    // of the answer.
    const std::string_view text = kContinue;
    if (transport_.Write(text).num_bytes != text.size()) {
      Close();
      return false;
    }
  }
  return true;
}

bool Connection::TryReserveArrived(int64_t num_bytes) {
  ByteBudget::Reservation memory = shared_->budget.TryReserve(num_bytes, client_name());
  if (!memory) return false;
  HoldMemory(std::move(memory));
  arrived_bytes_ += num_bytes;
  return true;
}

bool Connection::ReserveArrived() {
  const size_t head_bytes = std::max(parser_.head_bytes(), kFreeHeadBytes) - kFreeHeadBytes;
  const int64_t missing = static_cast<int64_t>(head_bytes + parser_.body_bytes()) - arrived_bytes_;
  if (missing <= 0 || TryReserveArrived(missing)) return true;
  const bool exceeds_share =
      shared_->budget.Check(missing, client_name()) == ByteBudget::Refusal::kClientShare;
  return shared_->make_room(*this, exceeds_share) && TryReserveArrived(missing);
}

void Connection::SetClient(ClientIdentity client) {
  shared_->connections.Add(client_.subscriber, -1);
  client_ = std::move(client);
  shared_->connections.Add(client_.subscriber, 1);
}

void Connection::BeginCall() {
  if (!is_counted_) shared_->tracker.Begin();
  is_counted_ = true;
}

void Connection::Dispatch() {
  request_ = parser_.Take();
  BeginCall();
  state_ = State::kWorking;
  waits_for_ = 0;
  shared_->dispatch(*this);
}

void Connection::Refuse(const Refusal& refusal, absl::Time now) {
  parser_.Drop();
  ReleaseMemory();
  BeginCall();
  StartSending(shared_->handler.Refuse(refusal, parser_.head(), client_.address), now);
}

void Connection::SendFinishedAnswer(absl::Time now) {
  last_progress_at_ = now;
  WireAnswer answer = std::move(answer_);
  StartSending(std::move(answer), now);
}

void Connection::StartSending(WireAnswer answer, absl::Time now) {
  state_ = State::kSending;
  state_since_ = now;
  window_ = {now, 0};
  answer_ = std::move(answer);
  sent_bytes_ = 0;
  request_ = {};
  SendSome(now);
}

void Connection::SendSome(absl::Time now) {
  const size_t total = answer_.head.size() + answer_.body.size();
  while (sent_bytes_ < total) {
    const std::string_view bytes =
        sent_bytes_ < answer_.head.size()
            ? std::string_view(answer_.head).substr(sent_bytes_)
            : std::string_view(answer_.body).substr(sent_bytes_ - answer_.head.size());
    const Transport::Result sent = transport_.Write(bytes);
    if (sent.status == Transport::Status::kClosed) return Close();
    if (sent.status != Transport::Status::kOk) {
      waits_for_ = sent.status == Transport::Status::kWantRead ? EPOLLIN : EPOLLOUT;
      return;
    }
    sent_bytes_ += sent.num_bytes;
    window_.num_bytes += static_cast<int64_t>(sent.num_bytes);
    last_progress_at_ = now;
  }
  EndExchange(now);
}

void Connection::EndExchange(absl::Time now) {
  ReleaseMemory();
  if (is_counted_) shared_->tracker.End();
  is_counted_ = false;
  head_ended_ = false;
  SetClient(peer_);
  state_since_ = now;
  waits_for_ = EPOLLIN;
  state_ = answer_.close ? State::kLingering : State::kReading;
  if (answer_.close) transport_.ShutdownWrite();
  answer_ = {};
}

void Connection::Discard() {
  thread_local std::array<char, kReadBytes> buffer;
  const ssize_t got = ::recv(fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return Close();
  discarded_bytes_ += static_cast<size_t>(got);
  if (discarded_bytes_ > kMaxDiscardedBytes) Close();
}

void Connection::Close() {
  state_ = State::kClosed;
  waits_for_ = 0;
}

void Connection::Cut() {
  if (state_ != State::kWorking) return Close();
  ::shutdown(fd(), SHUT_RDWR);
}

bool Connection::IsTooSlow(absl::Duration length, absl::Time now) {
  if (now - window_.begun_at < length) return false;
  const double least =
      static_cast<double>(shared_->limits.min_bytes_per_second) * absl::ToDoubleSeconds(length);
  const bool too_slow = static_cast<double>(window_.num_bytes) < least;
  window_ = {now, 0};
  return too_slow;
}

void Connection::CheckDeadlines(absl::Time now) {
  const FrontLimits& limits = shared_->limits;
  switch (state_) {
    case State::kHandshake:
      if (now - state_since_ > limits.handshake_timeout) Close();
      return;
    case State::kLingering:
      if (now - state_since_ > limits.linger_timeout) Close();
      return;
    case State::kSending:
      if (IsTooSlow(limits.write_window, now)) Close();
      return;
    case State::kReading:
      if (!parser_.has_begun()) {
        if (now - state_since_ > limits.idle_timeout) Close();
      } else if (parser_.state() == RequestParser::State::kHead) {
        if (now - begun_at_ > limits.head_timeout) {
          Refuse({408, "the head of the request took too long"}, now);
        }
      } else if (now - begun_at_ > limits.request_timeout || IsTooSlow(limits.read_window, now)) {
        Refuse({408, "the body of the request took too long"}, now);
      }
      return;
    case State::kWorking:
    case State::kClosed:
      return;
  }
}

std::optional<int> Connection::EvictionRank() const {
  switch (state_) {
    case State::kLingering:
      return 0;
    case State::kReading:
      if (!parser_.has_begun() && unread_.empty()) return 1;
      return parser_.state() == RequestParser::State::kHead ? 2 : kRankOfBodies;
    case State::kHandshake:
      return 2;
    default:
      return std::nullopt;
  }
}

void Connection::Evict(absl::Time now) {
  if (state_ == State::kReading && parser_.has_begun()) {
    Refuse({503, "the server has too many other requests; try again later"}, now);
  }
}

void Connection::HoldMemory(ByteBudget::Reservation memory) {
  absl::MutexLock lock(&mutex_);
  memory_.push_back(std::move(memory));
}

void Connection::ReleaseMemory() {
  arrived_bytes_ = 0;
  absl::MutexLock lock(&mutex_);
  memory_.clear();
}

bool Connection::Write(std::string_view bytes) {
  const FrontLimits& limits = shared_->limits;
  const absl::Time deadline = absl::Now() + limits.write_window +
                              absl::Seconds(static_cast<double>(bytes.size()) /
                                            static_cast<double>(limits.min_bytes_per_second));
  while (!bytes.empty()) {
    const Transport::Result sent = transport_.Write(bytes);
    if (sent.status == Transport::Status::kClosed) return false;
    bytes.remove_prefix(sent.num_bytes);
    if (sent.status == Transport::Status::kOk) continue;
    const int64_t left_ms = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left_ms <= 0) return false;
    const bool wants_read = sent.status == Transport::Status::kWantRead;
    pollfd entry = {fd(), static_cast<short>(wants_read ? POLLIN : POLLOUT), 0};
    ::poll(&entry, 1, static_cast<int>(std::min<int64_t>(left_ms, 60'000)));
  }
  return true;
}

void Connection::Finish(WireAnswer answer) {
  answer_ = std::move(answer);
  shared_->on_finished(id_);
}

}  // namespace taopd
