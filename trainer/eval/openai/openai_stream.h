// Reads the reply of an OpenAI-compatible server to a request with "stream": true, as it comes:
// server-sent events whose data are JSON chunks of a completion or of a chat, then "[DONE]".
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace taopd {

// Not thread-safe.
class OpenAiStream {
 public:
  // `on_text` receives the text of the first choice, piece by piece.
  explicit OpenAiStream(std::function<void(std::string_view)> on_text)
      : on_text_(std::move(on_text)) {}

  // Parses the next bytes of the reply, which may be cut anywhere.
  void Push(std::string_view bytes);
  // Returns DATA_LOSS if the reply was not of this form or ended early, and INTERNAL with the
  // server's message if it reports an error within the stream.
  absl::Status End() const;
  // Returns the reason why the response ended: "stop", "length", ...
  const std::string& finish_reason() const { return finish_reason_; }

 private:
  void HandleLine(std::string_view line);

  const std::function<void(std::string_view)> on_text_;
  std::string line_;  // the bytes of a line that is not complete
  std::string finish_reason_;
  absl::Status status_;
  bool is_done_ = false;
};

}  // namespace taopd
