// metrics.jsonl: the record of a run that programs read (the report does).
//
// One object a line, in one of two forms:
//   {"step": 12, "time": 1767225600.25, "loss/mean": 0.25, "loss/grad_norm": null,
//    "non_finite": ["loss/grad_norm"]}
//   {"step": 12, "time": 1767225600.25, "text": {"sample/0": "..."}}
// `time` is seconds since 1970 (UTC). Numbers are the shortest texts that read back as the same
// double. NaN and infinities are null, and their names stand in "non_finite", which is absent when
// there are none. A text that is not UTF-8 has its bad bytes replaced by U+FFFD.
//
// Life cycle: Write hands each line to the kernel whole. A checkpoint stores SizeBytes(); a resumed
// run opens the file with that number, which removes the lines of the steps that it will do again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/io/jsonl.h"
#include "common/metrics/sink.h"

namespace taopd {

class JsonlSink final : public MetricSink {
 public:
  // Appends to the file at `path`, making it where there is none. `truncate_to_bytes` >= 0 first
  // cuts it there. `clock` must outlive the sink.
  static absl::StatusOr<std::unique_ptr<JsonlSink>> Open(const std::string& path, Clock* clock,
                                                         int64_t truncate_to_bytes = -1);

  // INVALID_ARGUMENT for a name that is used twice or is a key of the format ("step", "time",
  // "text", "non_finite"); nothing is written then.
  absl::Status Write(int64_t step, const Metrics& metrics) override;
  absl::Status WriteText(int64_t step, const std::string& name, const std::string& text) override;
  absl::Status Flush() override;

  absl::StatusOr<int64_t> SizeBytes() const;

 private:
  JsonlSink(JsonlWriter writer, Clock* clock) : writer_(std::move(writer)), clock_(clock) {}
  JsonlWriter writer_;
  Clock* clock_;
};

}  // namespace taopd
