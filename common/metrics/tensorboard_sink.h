// Writes scalars, and a run's settings and texts, to a TensorBoard event file.
//
// Every sink writes its own file, "events.out.tfevents.<seconds>.<unique>", with ".001" and so on
// if that exists; TensorBoard joins the files of a directory into one run. Each event is handed to
// the kernel whole. If one does not fit on the disk, the file is cut back to the last whole event;
// until that succeeds, nothing else is written.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/file_descriptor.h"
#include "common/metrics/event_file.h"
#include "common/metrics/sink.h"

namespace taopd {

struct TensorBoardOptions {
  std::string dir;
  // The end of the file's name. If empty, the host's name and the process's number.
  std::string unique_suffix;
  // If >= 0, the first step that a resumed run repeats. TensorBoard then drops the contents of the
  // directory's earlier files from this step on.
  int64_t resume_step = -1;
};

class TensorBoardSink final : public MetricSink {
 public:
  // Creates the directory and the file. Returns the code of FileError (common/io/atomic_file.h) if
  // that fails. `clock` must outlive the sink.
  static absl::StatusOr<std::unique_ptr<TensorBoardSink>> Open(const TensorBoardOptions& options,
                                                               Clock* clock);

  absl::Status Write(int64_t step, const Metrics& metrics) override;
  // Gives the run its hyperparameters (the page HPARAMS).
  absl::Status WriteHparams(const Hparams& hparams);
  // Shows a table of Markdown texts under `tag` (the page TEXT).
  absl::Status WriteText(int64_t step, const std::string& tag, const TextTable& table);

  const std::string& path() const { return path_; }

 private:
  TensorBoardSink(int fd, std::string path, Clock* clock)
      : fd_(fd), path_(std::move(path)), clock_(clock) {}
  absl::Status Append(const std::string& event);
  // Cuts off half an event that a failure has left. Returns that failure if it cannot.
  absl::Status RemoveHalfEvent();
  double NowSeconds() const { return static_cast<double>(absl::ToUnixMicros(clock_->Now())) / 1e6; }

  const FileDescriptor fd_;
  const std::string path_;
  Clock* const clock_;
  int64_t size_bytes_ = 0;   // size of the whole events
  absl::Status half_event_;  // the error that has left half an event
};

}  // namespace taopd
