// The bytes of a TensorBoard event file: TFRecord frames around Event messages (TensorFlow,
// core/util/event.proto and core/framework/summary.proto). The few fields that are needed are
// encoded here, so that nothing that writes metrics has to link protobuf.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/metrics/sink.h"

namespace taopd {

// Length, its masked CRC-32C, the payload, its masked CRC-32C; all little-endian.
std::string TfRecordFrame(std::string_view payload);

// Event messages. `wall_time_s` is seconds since 1970.
// The first event of every file.
std::string FileVersionEvent(double wall_time_s);
// A new session starts at `step`: TensorBoard drops what earlier files hold from that step on.
std::string SessionStartEvent(double wall_time_s, int64_t step);
// All scalars of a step. TensorBoard stores scalars as 32-bit floats.
std::string ScalarsEvent(double wall_time_s, int64_t step, const Metrics& metrics);
// One text for the text dashboard.
std::string TextEvent(double wall_time_s, int64_t step, std::string_view tag,
                      std::string_view text);

}  // namespace taopd
