#include "server/http/http_answer.h"

#include <absl/strings/match.h>

#include <exception>
#include <utility>
#include <vector>

#include "common/base/log.h"

namespace taopd {
namespace {

bool MustClose(const httplib::Response& response, const AnswerStyle& style) {
  return style.close || !style.is_http_1_1 ||
         absl::EqualsIgnoreCase(response.get_header_value("Connection"), "close");
}

std::string HeadOf(const httplib::Response& response, BodyFraming framing, bool close) {
  const std::vector<std::pair<std::string, std::string>> headers(response.headers.begin(),
                                                                 response.headers.end());
  return AnswerHead(response.status, headers, framing, close);
}

// Runs a provider without a length. False if the client is gone, or the provider fails or throws.
bool StreamBody(httplib::Response& response, bool is_chunked, Exchange& exchange) {
  bool ok = true, more = true;
  httplib::DataSink sink;
  sink.write = [&](const char* data, size_t size) {
    // An empty chunk would end the body.
    if (ok && size > 0) {
      const std::string_view bytes(data, size);
      ok = is_chunked ? exchange.Write(Chunk(bytes)) : exchange.Write(bytes);
    }
    return ok;
  };
  sink.done = [&] { more = false; };
  sink.is_writable = [&] { return ok && !exchange.IsGone(); };
  size_t num_calls = 0;
  while (ok && more) {
    // The offset is not kept: providers of streams count for themselves.
    try {
      if (!response.content_provider_(num_calls++, 0, sink)) ok = false;
    } catch (const std::exception& error) {
      // The head has left: the only thing to do is to end the connection.
      LogError("a stream failed", {{"what", error.what()}});
      ok = false;
    }
  }
  response.content_provider_success_ = ok;
  return ok;
}

}  // namespace

httplib::Request ToHttplibRequest(Exchange& exchange) {
  ParsedRequest& parsed = exchange.request();
  httplib::Request request;
  request.method = parsed.head.method;
  request.target = parsed.head.target;
  request.path = std::string(parsed.head.path());
  request.version = parsed.head.is_http_1_1 ? "HTTP/1.1" : "HTTP/1.0";
  for (const Header& header : parsed.head.headers) {
    request.headers.emplace(header.name, header.value);
  }
  request.body = std::move(parsed.body);
  request.remote_addr = exchange.client();
  return request;
}

WireAnswer WholeAnswer(httplib::Response& response, const AnswerStyle& style) {
  WireAnswer answer;
  answer.close = MustClose(response, style);
  answer.body = std::move(response.body);
  answer.head = HeadOf(response, {BodyFraming::kLength, answer.body.size()}, answer.close);
  if (style.is_head) answer.body.clear();
  return answer;
}

WireAnswer SendAnswer(httplib::Response& response, const AnswerStyle& style, Exchange& exchange) {
  if (!response.content_provider_) return WholeAnswer(response, style);
  WireAnswer answer;
  answer.close = MustClose(response, style);
  const bool is_chunked = style.is_http_1_1;
  const BodyFraming framing = {is_chunked ? BodyFraming::kChunked : BodyFraming::kUntilClose};
  std::string head = HeadOf(response, framing, answer.close);
  if (style.is_head) {
    answer.head = std::move(head);
    return answer;
  }
  if (!exchange.Write(head) || !StreamBody(response, is_chunked, exchange)) {
    // Without the last chunk, so that the client sees that the body is not whole.
    answer.close = true;
    return answer;
  }
  if (is_chunked) answer.head = Chunk({});
  return answer;
}

}  // namespace taopd
