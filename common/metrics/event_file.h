// The bytes of a TensorBoard event file: TFRecord frames around Event messages (TensorFlow,
// core/util/event.proto and core/framework/summary.proto). The few fields that are needed are
// encoded here, so that code that writes metrics does not have to link protobuf.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/metrics/sink.h"

namespace taopd {

// Returns a frame, which contains in this order, little-endian:
//   - the payload's length
//   - the masked CRC-32C of the length
//   - the payload
//   - the masked CRC-32C of the payload
std::string TfRecordFrame(std::string_view payload);

// The functions below return Event messages. `wall_time_s` is in seconds since 1970.

// Returns the first event of every file.
std::string FileVersionEvent(double wall_time_s);
// Returns an event that starts a new session at `step`: TensorBoard drops the contents of earlier
// files from that step on.
std::string SessionStartEvent(double wall_time_s, int64_t step);
// Returns all scalars of a step. TensorBoard stores a scalar as a 32-bit float.
std::string ScalarsEvent(double wall_time_s, int64_t step, const Metrics& metrics);

}  // namespace taopd
