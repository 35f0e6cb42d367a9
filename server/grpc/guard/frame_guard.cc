#include "server/grpc/guard/frame_guard.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/wire/teacher_protocol.h"

namespace taopd {
namespace {

// Error codes of RFC 9113, section 7.
constexpr uint32_t kNoError = 0x0, kProtocolError = 0x1, kCancel = 0x8, kEnhanceYourCalm = 0xb;
constexpr size_t kMaxStringBytes = 126;  // the length is one byte

std::string Bytes32(uint32_t value) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<char>(value >> shift & 0xff));
  return bytes;
}

// Returns a string of RFC 7541, section 5.2, without Huffman coding.
std::string HeaderString(std::string_view text) {
  text = text.substr(0, kMaxStringBytes);
  return static_cast<char>(text.size()) + std::string(text);
}

// Returns a header of RFC 7541, section 6.2.2: a literal without indexing and with a new name.
std::string Literal(std::string_view name, std::string_view value) {
  return std::string(1, '\0') + HeaderString(name) + HeaderString(value);
}

// Returns RST_STREAM with CANCEL.
std::string ResetFrame(uint32_t stream) {
  return MakeFrame(FrameType::kResetStream, 0, stream, Bytes32(kCancel));
}

// Returns a call's status in gRPC's trailers, and a RST_STREAM that tells the client to send no
// more. The trailers include HTTP's status unless the call has had headers. Returns nothing for an
// OK status. Names and values are not compressed, so that the server's compression state is not
// disturbed.
std::string RefusalFrames(uint32_t stream, bool has_headers, const absl::Status& status) {
  if (status.ok()) return "";
  std::string block;
  if (!has_headers) {
    block.push_back('\x88');  // ":status: 200" is entry 8 of the static table
    block += "\x0f\x10" + HeaderString("application/grpc");  // content-type is entry 31
  }
  block += Literal("grpc-status", std::to_string(status.raw_code()));
  block += Literal("grpc-message", std::string(status.message()));
  if (absl::IsResourceExhausted(status)) {
    block += Literal(kRetryPushbackKey, std::to_string(kRetryPushbackMs));
  }
  return MakeFrame(FrameType::kHeaders, kEndStreamFlag | kEndHeadersFlag, stream, block) +
         MakeFrame(FrameType::kResetStream, 0, stream, Bytes32(kNoError));
}

}  // namespace

absl::Status FrameGuard::FromClient(std::string_view bytes, absl::Time now,
                                    std::string* to_server) {
  TAOPD_RETURN_IF_ERROR(ReadPreface(&bytes, to_server));
  while (!bytes.empty()) {
    if (client_.is_between_frames()) begun_at_ = now;
    const Http2FrameReader::Step step = client_.Read(bytes);
    bytes.remove_prefix(step.num_bytes);
    if (step.is_header) {
      TAOPD_RETURN_IF_ERROR(BeginFrame(now));
      to_server->append(client_.header_bytes());
    }
    if (!step.payload.empty()) {
      if (client_.frame().type == FrameType::kData) {
        TAOPD_RETURN_IF_ERROR(CountData(step.payload, now));
      }
      to_server->append(step.payload);
    }
    if (step.is_end) AppendOwnFrames(to_server);
  }
  return absl::OkStatus();
}

absl::Status FrameGuard::ReadPreface(std::string_view* bytes, std::string* to_server) {
  const size_t size = std::min(kClientPreface.size() - num_preface_bytes_, bytes->size());
  const std::string_view part = bytes->substr(0, size);
  if (part != kClientPreface.substr(num_preface_bytes_, size)) {
    return InvalidArgument("the connection does not begin with HTTP/2's preface");
  }
  num_preface_bytes_ += size;
  to_server->append(part);
  bytes->remove_prefix(size);
  return absl::OkStatus();
}

absl::Status FrameGuard::BeginFrame(absl::Time now) {
  const Frame& frame = client_.frame();
  if (frame.length > kMaxFrameBytes) {
    return InvalidArgument("a frame has ", frame.length, " bytes, the limit is ", kMaxFrameBytes);
  }
  const bool continues = frame.type == FrameType::kContinuation;
  if (continues != (header_stream_ != 0) || (continues && frame.stream != header_stream_)) {
    return InvalidArgument("a header block must be in HEADERS and the CONTINUATIONs after it");
  }
  const auto stream = streams_.find(frame.stream);
  switch (frame.type) {
    case FrameType::kHeaders:
    case FrameType::kContinuation:
      return BeginHeaders(frame, now);
    case FrameType::kData:
      if (stream == streams_.end()) break;  // the stream has ended, and gRPC skips the frame
      stream->second.window_bytes -= static_cast<int64_t>(frame.length);
      return Charge(stream, now);
    case FrameType::kResetStream:
      if (stream == streams_.end()) break;
      Forget(stream);
      return CountReset(now);
    case FrameType::kSettings:
      if (!frame.has(kAckFlag)) unacknowledged_settings_.emplace_back();
      break;
    case FrameType::kPing:
      num_unread_pings_ += frame.has(kAckFlag) ? 0 : 1;
      break;
    default:
      break;
  }
  const int64_t num_unread =
      num_unread_pings_ + static_cast<int64_t>(unacknowledged_settings_.size());
  if (num_unread <= kMaxUnreadAnswers) return absl::OkStatus();
  return ResourceExhausted("the client has left ", num_unread,
                           " answers to PING and SETTINGS unread, the limit is ",
                           kMaxUnreadAnswers);
}

absl::Status FrameGuard::BeginHeaders(const Frame& frame, absl::Time now) {
  if (frame.type == FrameType::kHeaders) {
    num_header_bytes_ = num_header_frames_ = 0;
    header_begun_at_ = now;
  }
  header_stream_ = frame.has(kEndHeadersFlag) ? 0 : frame.stream;
  num_header_bytes_ += static_cast<int64_t>(frame.length);
  if (num_header_bytes_ > kMaxHeaderBlockBytes || ++num_header_frames_ > kMaxHeaderFrames) {
    return ResourceExhausted("a header block has ", num_header_bytes_, " bytes in ",
                             num_header_frames_, " frames, the limits are ", kMaxHeaderBlockBytes,
                             " and ", kMaxHeaderFrames);
  }
  // The frame does not open a stream: it has trailers, possibly of a stream that has ended.
  if (frame.type != FrameType::kHeaders || frame.stream <= last_stream_) return absl::OkStatus();
  last_stream_ = frame.stream;
  if (static_cast<int64_t>(streams_.size()) >= limits_.max_streams) {
    return ResourceExhausted("a connection has more than ", limits_.max_streams, " open streams");
  }
  return Charge(streams_.emplace(frame.stream, Stream()).first, now);
}

absl::Status FrameGuard::CountReset(absl::Time now) {
  if (resets_->Take(now)) return absl::OkStatus();
  return ResourceExhausted("the client has had more than ", ResetRate::kBurst,
                           " streams reset, and ", ResetRate::kPerSecond, " per second");
}

absl::Status FrameGuard::CountData(std::string_view data, absl::Time now) {
  const auto found = streams_.find(client_.frame().stream);
  if (found == streams_.end()) return absl::OkStatus();
  Stream& stream = found->second;
  while (!data.empty()) {
    if (!stream.is_unfinished()) {  // the next message begins
      stream.num_prefix_bytes = 0;
      stream.num_bytes_held = stream.num_bytes_since_begun = 0;
      stream.begun_at = now;
    }
    if (stream.num_prefix_bytes < stream.prefix.size()) {
      stream.prefix[stream.num_prefix_bytes++] = static_cast<uint8_t>(data.front());
      data.remove_prefix(1);
      if (stream.num_prefix_bytes < stream.prefix.size()) continue;
      stream.num_bytes_left = BigEndian32(stream.prefix.data() + 1);
      if (stream.num_bytes_left <= limits_.max_message_bytes) continue;
      return Refuse(found,
                    ResourceExhausted("the message has ", stream.num_bytes_left,
                                      " bytes, the limit is ", limits_.max_message_bytes),
                    now);
    }
    const auto size = static_cast<size_t>(
        std::min<int64_t>(stream.num_bytes_left, static_cast<int64_t>(data.size())));
    stream.num_bytes_left -= static_cast<int64_t>(size);
    stream.num_bytes_held += static_cast<int64_t>(size);
    stream.num_bytes_since_begun += static_cast<int64_t>(size);
    data.remove_prefix(size);
  }
  return Charge(found, now);
}

absl::Status FrameGuard::Charge(Streams::iterator found, absl::Time now) {
  Stream& stream = found->second;
  // Small messages may wait in gRPC unread. The window shows them, because gRPC then keeps it
  // closed.
  const int64_t num_bytes =
      kStreamBytes + std::max(stream.num_bytes_held, kInitialWindowBytes - stream.window_bytes);
  if (memory_.Add(num_bytes - stream.num_bytes_charged)) {
    stream.num_bytes_charged = num_bytes;
    return absl::OkStatus();
  }
  return Refuse(found,
                ResourceExhausted("the message memory is full (max_message_memory_bytes, or the "
                                  "client's share of it)"),
                now);
}

absl::Status FrameGuard::Refuse(Streams::iterator found, absl::Status why, absl::Time now) {
  const uint32_t id = found->first;
  on_refusal_(why);
  // The server acknowledges the settings after its last frame on the stream. Then the client gets
  // the refusal.
  for_server_ += ResetFrame(id) + MakeFrame(FrameType::kSettings, 0, 0);
  unacknowledged_settings_.push_back({id, found->second.has_answer_headers, std::move(why)});
  Forget(found);
  return CountReset(now);
}

void FrameGuard::Forget(Streams::iterator stream) {
  memory_.Add(-stream->second.num_bytes_charged);
  streams_.erase(stream);
}

void FrameGuard::AppendOwnFrames(std::string* to_server) {
  if (!has_preface() || !client_.is_between_frames() || header_stream_ != 0) return;
  to_server->append(for_server_);
  for_server_.clear();
}

absl::Status FrameGuard::FromServer(std::string_view bytes, absl::Time now,
                                    std::string* to_client) {
  while (!bytes.empty()) {
    const Http2FrameReader::Step step = server_.Read(bytes);
    bytes.remove_prefix(step.num_bytes);
    if (step.is_header && BeginAnswer()) to_client->append(server_.header_bytes());
    to_client->append(step.payload);
    payload_start_.append(step.payload.substr(0, 4 - std::min<size_t>(4, payload_start_.size())));
    if (!step.is_end) continue;
    TAOPD_RETURN_IF_ERROR(EndAnswer(now));
    if (is_answer_header_open_) continue;
    to_client->append(for_client_);
    for_client_.clear();
  }
  return absl::OkStatus();
}

bool FrameGuard::BeginAnswer() {
  const Frame& frame = server_.frame();
  payload_start_.clear();
  const auto stream = streams_.find(frame.stream);
  switch (frame.type) {
    case FrameType::kHeaders:
      is_answer_header_open_ = !frame.has(kEndHeadersFlag);
      if (stream != streams_.end()) stream->second.has_answer_headers = true;
      for (PendingSettings& call : unacknowledged_settings_) {
        if (call.stream == frame.stream) call.has_answer_headers = true;
      }
      [[fallthrough]];
    case FrameType::kData:
      if (frame.has(kEndStreamFlag)) EndByServer(frame.stream);
      return true;
    case FrameType::kContinuation:
      is_answer_header_open_ = !frame.has(kEndHeadersFlag);
      return true;
    case FrameType::kPing:
      num_unread_pings_ -= frame.has(kAckFlag) ? 1 : 0;
      return true;
    case FrameType::kSettings: {
      if (!frame.has(kAckFlag) || unacknowledged_settings_.empty()) return true;
      const PendingSettings call = std::move(unacknowledged_settings_.front());
      unacknowledged_settings_.pop_front();
      if (call.stream == 0) return true;
      for_client_ += RefusalFrames(call.stream, call.has_answer_headers, call.status);
      return false;
    }
    default:
      return true;
  }
}

absl::Status FrameGuard::EndAnswer(absl::Time now) {
  const Frame& frame = server_.frame();
  const auto stream = streams_.find(frame.stream);
  if (frame.type == FrameType::kResetStream && stream != streams_.end()) {
    EndByServer(frame.stream);
    // A client can send frames that make the server reset a stream.
    return CountReset(now);
  }
  if (frame.type != FrameType::kWindowUpdate || stream == streams_.end() ||
      payload_start_.size() < 4) {
    return absl::OkStatus();
  }
  const bool was_held_back = stream->second.window_bytes <= 0;
  stream->second.window_bytes +=
      BigEndian32(reinterpret_cast<const uint8_t*>(payload_start_.data()));
  if (was_held_back) {
    stream->second.begun_at = now;
    stream->second.num_bytes_since_begun = 0;
  }
  return Charge(stream, now);
}

void FrameGuard::EndByServer(uint32_t id) {
  if (const auto stream = streams_.find(id); stream != streams_.end()) Forget(stream);
  for (PendingSettings& call : unacknowledged_settings_) {
    // The entry stays for the acknowledgement of the guard's settings; the client already has a
    // status.
    if (call.stream == id) call.status = absl::OkStatus();
  }
}

absl::Status FrameGuard::CheckDeadlines(absl::Time now, std::string* to_server) {
  const bool waits = !has_preface() || !client_.is_between_frames();
  if ((waits && now - begun_at_ > kFrameTimeout) ||
      (header_stream_ != 0 && now - header_begun_at_ > kFrameTimeout)) {
    return ResourceExhausted("a frame or a header block has not ended within ",
                             absl::FormatDuration(kFrameTimeout));
  }
  for (auto stream = streams_.begin(); stream != streams_.end();) {
    const auto current = stream++;
    const Stream& state = current->second;
    if (!state.is_unfinished() || state.window_bytes <= 0) continue;
    const absl::Duration time =
        kMessageTimeout + absl::Seconds(state.num_bytes_since_begun / kMinBytesPerSecond);
    if (now - state.begun_at <= time) continue;
    TAOPD_RETURN_IF_ERROR(
        Refuse(current, absl::DeadlineExceededError("the message has not been sent in time"), now));
  }
  AppendOwnFrames(to_server);
  return absl::OkStatus();
}

std::string FrameGuard::GoAway(const absl::Status& why) const {
  if (!server_.is_between_frames() || is_answer_header_open_) return "";
  const uint32_t code = absl::IsInvalidArgument(why) ? kProtocolError : kEnhanceYourCalm;
  return MakeFrame(FrameType::kGoAway, 0, 0,
                   Bytes32(last_stream_) + Bytes32(code) + std::string(why.message()));
}

}  // namespace taopd
