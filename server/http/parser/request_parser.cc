#include "server/http/parser/request_parser.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/base/status.h"

namespace taopd {
namespace {

// The limit of the request line's other parts besides the target.
constexpr size_t kMaxMethodAndVersionBytes = 64;

}  // namespace

bool RequestParser::Refuse(Refusal refusal) {
  refusal_ = std::move(refusal);
  state_ = State::kRefused;
  Drop();
  return false;
}

void RequestParser::Drop() {
  std::string().swap(head_text_);
  std::string().swap(request_.body);
}

size_t RequestParser::Consume(std::string_view bytes) {
  size_t count = 0;
  if (state_ == State::kHead) count = ConsumeHead(bytes);
  if (state_ == State::kBody) count += ConsumeBody(bytes.substr(count));
  return count;
}

// A head ends only at CRLF CRLF, so that no other reader finds an earlier end.
bool RequestParser::CheckHeadByte(char c) {
  const bool after_cr = !head_text_.empty() && head_text_.back() == '\r';
  if (after_cr != (c == '\n')) {
    return Refuse({400, after_cr ? "a carriage return without a line feed"
                                 : "a line must end with CRLF, not with a line feed alone"});
  }
  const auto byte = static_cast<unsigned char>(c);
  if ((byte < 0x20 && c != '\r' && c != '\n' && c != '\t') || byte == 0x7f)
    return Refuse({400, "the head holds a control character"});
  ++line_bytes_;
  if (num_lines_ == 0 && line_bytes_ > limits_.max_target_bytes + kMaxMethodAndVersionBytes) {
    return Refuse({414, Concat("the request line is too long; the limit of the target is ",
                               limits_.max_target_bytes, " bytes")});
  }
  // The line's own limit is checked again, exactly, when the head is complete.
  if (line_bytes_ > limits_.max_header_bytes + 2 || head_text_.size() >= limits_.max_head_bytes ||
      num_lines_ > limits_.max_headers + 1) {
    return Refuse({431, Concat("the headers are too large: at most ", limits_.max_headers, ", of ",
                               limits_.max_header_bytes, " bytes each and ", limits_.max_head_bytes,
                               " together")});
  }
  if (c == '\n') {
    ++num_lines_;
    line_bytes_ = 0;
  }
  return true;
}

size_t RequestParser::ConsumeHead(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (!CheckHeadByte(bytes[i])) return i;
    head_text_ += bytes[i];
    if (head_text_.ends_with("\r\n\r\n")) {
      EndHead();
      return i + 1;
    }
  }
  return bytes.size();
}

void RequestParser::EndHead() {
  const std::string_view text = std::string_view(head_text_).substr(0, head_text_.size() - 2);
  auto parsed = ParseRequestHead(text, limits_);
  if (Refusal* refusal = std::get_if<Refusal>(&parsed)) {
    Refuse(std::move(*refusal));
    return;
  }
  request_.head = std::get<RequestHead>(std::move(parsed));
  std::string().swap(head_text_);
  if (request_.head.is_chunked) chunks_.emplace(limits_);
  state_ = request_.head.has_body() ? State::kBody : State::kDone;
}

size_t RequestParser::ConsumeBody(std::string_view bytes) {
  if (chunks_) {
    std::string_view rest = bytes;
    const ChunkDecoder::State decoded = chunks_->Decode(&rest, &request_.body);
    if (decoded == ChunkDecoder::State::kRefused) Refuse(chunks_->refusal());
    if (decoded == ChunkDecoder::State::kDone) state_ = State::kDone;
    return bytes.size() - rest.size();
  }
  const uint64_t left = request_.head.content_length - request_.body.size();
  const size_t count = static_cast<size_t>(std::min<uint64_t>(left, bytes.size()));
  AppendToBody(bytes.substr(0, count), static_cast<size_t>(request_.head.content_length),
               &request_.body);
  if (count == left) state_ = State::kDone;
  return count;
}

ParsedRequest RequestParser::Take() {
  TAOPD_CHECK(state_ == State::kDone);
  state_ = State::kHead;
  line_bytes_ = 0;
  num_lines_ = 0;
  chunks_.reset();
  return std::exchange(request_, {});
}

}  // namespace taopd
