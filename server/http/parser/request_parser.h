// Reads HTTP/1.x requests from the bytes of a connection, in pieces of any size. It does not depend
// on sockets or clocks. A refusal is final: bytes after a refused request are never read as another
// one. Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/http/parser/chunk_decoder.h"
#include "server/http/parser/request_head.h"

namespace taopd {

struct ParsedRequest {
  RequestHead head;
  std::string body;  // without the chunks' framing
};

class RequestParser {
 public:
  enum class State {
    kHead,     // waits for more of the head; also before the first byte
    kBody,     // the head has arrived, the body has not
    kDone,     // the request is complete
    kRefused,  // final
  };

  explicit RequestParser(const RequestLimits& limits) : limits_(limits) {}

  // Reads up to the end of the request and returns the number of bytes taken: all of them, unless
  // the state is now kDone or kRefused.
  size_t Consume(std::string_view bytes);

  State state() const { return state_; }
  // Returns whether a byte of the current request has arrived.
  bool has_begun() const { return state_ != State::kHead || !head_text_.empty(); }
  // Returns the head of the current request; empty until it has arrived whole.
  const RequestHead& head() const { return request_.head; }
  // REQUIRES: kRefused.
  const Refusal& refusal() const { return *refusal_; }
  // Return the heap memory of the request's text; 0 for text that fits in the string objects.
  size_t head_bytes() const { return HeapBytes(head_text_); }
  size_t body_bytes() const { return HeapBytes(request_.body); }
  // Frees the text of a request that will not be answered by a route. REQUIRES: kRefused, or no
  // further calls.
  void Drop();
  // Returns the request and prepares the parser for the next one. REQUIRES: kDone.
  ParsedRequest Take();

 private:
  static size_t HeapBytes(const std::string& text) {
    static const size_t inside = std::string().capacity();
    return text.capacity() > inside ? text.capacity() : 0;
  }
  size_t ConsumeHead(std::string_view bytes);
  size_t ConsumeBody(std::string_view bytes);
  bool CheckHeadByte(char c);
  void EndHead();
  // Returns false.
  bool Refuse(Refusal refusal);

  const RequestLimits limits_;
  State state_ = State::kHead;
  std::string head_text_;
  size_t line_bytes_ = 0;  // bytes of the current line of the head
  int num_lines_ = 0;      // complete lines of the head
  ParsedRequest request_;
  std::optional<ChunkDecoder> chunks_;
  std::optional<Refusal> refusal_;
};

}  // namespace taopd
