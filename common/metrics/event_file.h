// The bytes of a TensorBoard event file: TFRecord frames around Event messages (TensorFlow,
// core/util/event.proto and core/framework/summary.proto; TensorBoard, plugins/hparams). The few
// fields that are needed are encoded here, so that code that writes metrics does not have to link
// protobuf.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/metrics/sink.h"

namespace taopd {

// CRC-32C (Castagnoli polynomial 0x1EDC6F41, reflected; RFC 3720, appendix B.4).
uint32_t Crc32c(std::string_view bytes);

// Returns a frame, which contains in this order, little-endian:
//   - the payload's length
//   - the masked CRC-32C of the length
//   - the payload
//   - the masked CRC-32C of the payload
// A masked checksum is rotated and offset, so that a checksum of data that contains such checksums
// stays meaningful (TensorFlow, lib/hash/crc32c.h).
std::string TfRecordFrame(std::string_view payload);

// The functions below return Event messages. `wall_time_s` is in seconds since 1970.

// Returns the first event of every file.
std::string FileVersionEvent(double wall_time_s);
// Returns an event that starts a new session at `step`: TensorBoard drops the contents of earlier
// files from that step on.
std::string SessionStartEvent(double wall_time_s, int64_t step);
// Returns all scalars of a step. TensorBoard stores a scalar as a 32-bit float.
std::string ScalarsEvent(double wall_time_s, int64_t step, const Metrics& metrics);

// Pairs of name and value for TensorBoard's page HPARAMS.
using Hparams = std::vector<std::pair<std::string, std::variant<bool, double, std::string>>>;
// Returns the event that gives a run its hyperparameters; `wall_time_s` is the run's start.
std::string HparamsEvent(double wall_time_s, const Hparams& hparams);

// A table of Markdown texts, row by row. All rows have the same number of columns.
using TextTable = std::vector<std::vector<std::string>>;
// Returns the event that shows a table on TensorBoard's page TEXT, under `tag`.
std::string TextEvent(double wall_time_s, int64_t step, const std::string& tag,
                      const TextTable& table);

}  // namespace taopd
