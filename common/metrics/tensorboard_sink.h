// TensorBoard event files: scalars, and texts for the text dashboard (shown there as Markdown).
//
// Every sink writes a file of its own, "events.out.tfevents.<seconds>.<unique>", in the directory;
// TensorBoard joins the files of a directory to one run. Events are handed to the kernel whole:
// when one does not fit on the disk, the file is cut back to the last whole one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/metrics/sink.h"

namespace taopd {

struct TensorBoardOptions {
  std::string dir;
  // The file name's end; empty: host name and process number.
  std::string unique_suffix;
  // >= 0: the first step that a resumed run does (again). TensorBoard then drops what earlier files
  // of the directory hold from this step on.
  int64_t resume_step = -1;
};

class TensorBoardSink final : public MetricSink {
 public:
  // Makes the directory and the file; ALREADY_EXISTS when the file is there. `clock` must outlive
  // the sink.
  static absl::StatusOr<std::unique_ptr<TensorBoardSink>> Open(const TensorBoardOptions& options,
                                                               Clock* clock);
  TensorBoardSink(const TensorBoardSink&) = delete;
  TensorBoardSink& operator=(const TensorBoardSink&) = delete;
  ~TensorBoardSink() override;

  absl::Status Write(int64_t step, const Metrics& metrics) override;
  absl::Status WriteText(int64_t step, const std::string& name, const std::string& text) override;
  absl::Status Flush() override;

  const std::string& path() const { return path_; }

 private:
  TensorBoardSink(int fd, std::string path, Clock* clock)
      : fd_(fd), path_(std::move(path)), clock_(clock) {}
  absl::Status Append(const std::string& event);
  double NowSeconds() const;

  const int fd_;
  const std::string path_;
  Clock* const clock_;
  int64_t size_bytes_ = 0;  // of whole events
};

}  // namespace taopd
