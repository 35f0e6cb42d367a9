// metrics.jsonl: the record of a run that programs read, such as the report.
//
// Each line is one JSON object:
//   {"step": 12, "time": 1767225600.25, "loss/mean": 0.25, "loss/grad_norm": null,
//    "non_finite": ["loss/grad_norm"]}
// `time` is in seconds since 1970 (UTC). Each number is the shortest text that reads back as the
// same double. NaN and infinities are written as null, and "non_finite" lists their names; it is
// absent if there are none. Bytes of a name that are not UTF-8 are replaced by U+FFFD.
//
// Life cycle: Write hands each line to the kernel whole, or keeps it while the disk is full
// (buffered_jsonl.h). A checkpoint stores SizeBytes() after file().Sync(). A resumed run opens the
// file with that number, which removes the lines of the steps that it will repeat.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/io/buffered_jsonl.h"
#include "common/metrics/sink.h"

namespace taopd {

class JsonlSink final : public MetricSink {
 public:
  // Appends to the file at `path`, and creates it if it does not exist. If truncate_to_bytes >= 0,
  // the file is first cut to that size. `clock` must outlive the sink.
  static absl::StatusOr<std::unique_ptr<JsonlSink>> Open(const std::string& path, Clock* clock,
                                                         int64_t truncate_to_bytes = -1);

  // Returns INVALID_ARGUMENT, and writes nothing, if a name occurs twice or is a key of the format
  // itself ("step", "time" or "non_finite").
  absl::Status Write(int64_t step, const Metrics& metrics) override;

  absl::StatusOr<int64_t> SizeBytes() const { return writer_.SizeBytes(); }
  BufferedJsonlWriter& file() { return writer_; }

 private:
  JsonlSink(BufferedJsonlWriter writer, Clock* clock) : writer_(std::move(writer)), clock_(clock) {}
  BufferedJsonlWriter writer_;
  Clock* clock_;
};

}  // namespace taopd
