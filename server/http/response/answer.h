// The answer of a protocol: a JSON text, or a stream of pieces.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>

#include "common/base/status.h"

namespace taopd {

// Sends a piece. Returns false if the client has gone; further pieces are then of no use.
using SendPiece = std::function<bool(std::string_view)>;

// A text/event-stream whose pieces are sent as they are made. `run` is called once, blocks until
// the last piece is sent or the client has gone, and reports errors within the stream.
struct EventStream {
  std::function<void(const SendPiece&)> run;
};

using Answer = std::variant<std::string, EventStream>;

// Server-sent events.
inline std::string Event(const std::string& json) { return "data: " + json + "\n\n"; }
inline constexpr std::string_view kLastEvent = "data: [DONE]\n\n";

}  // namespace taopd
