#include "common/metrics/tensorboard_sink.h"

#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <utility>

#include "common/io/atomic_file.h"
#include "common/io/file.h"

namespace taopd {
namespace {

std::string HostAndProcess() {
  char host[HOST_NAME_MAX + 1] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) std::strcpy(host, "host");
  return Concat(host, ".", getpid());
}

constexpr int kMaxFilesPerSecond = 1000;

}  // namespace

absl::StatusOr<std::unique_ptr<TensorBoardSink>> TensorBoardSink::Open(
    const TensorBoardOptions& options, Clock* clock) {
  TAOPD_RETURN_IF_ERROR(MakeDirectories(options.dir));
  // Uses ten digits, because TensorBoard reads a directory's files in the order of their names.
  const std::string stem = absl::StrFormat(
      "%s/events.out.tfevents.%010d.%s", options.dir, absl::ToUnixSeconds(clock->Now()),
      options.unique_suffix.empty() ? HostAndProcess() : options.unique_suffix);
  // A run that is rolled back may open another file in the same second.
  std::string path = stem;
  int fd = -1;
  for (int i = 0; i < kMaxFilesPerSecond; ++i) {
    path = i == 0 ? stem : absl::StrFormat("%s.%03d", stem, i);
    fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd >= 0 || errno != EEXIST) break;
  }
  if (fd < 0) return FileError("create", path, errno);

  std::unique_ptr<TensorBoardSink> sink(new TensorBoardSink(fd, std::move(path), clock));
  const double now = sink->NowSeconds();
  TAOPD_RETURN_IF_ERROR(sink->Append(FileVersionEvent(now)));
  if (options.resume_step >= 0) {
    TAOPD_RETURN_IF_ERROR(sink->Append(SessionStartEvent(now, options.resume_step)));
  }
  return sink;
}

absl::Status TensorBoardSink::Write(int64_t step, const Metrics& metrics) {
  return Append(ScalarsEvent(NowSeconds(), step, metrics));
}

absl::Status TensorBoardSink::WriteHparams(const Hparams& hparams) {
  return Append(HparamsEvent(NowSeconds(), hparams));
}

absl::Status TensorBoardSink::WriteText(int64_t step, const std::string& tag,
                                        const TextTable& table) {
  return Append(TextEvent(NowSeconds(), step, tag, table));
}

absl::Status TensorBoardSink::Append(const std::string& event) {
  TAOPD_RETURN_IF_ERROR(RemoveHalfEvent());
  const std::string frame = TfRecordFrame(event);
  const absl::Status status = WriteAll(fd_.get(), std::as_bytes(std::span(frame)), path_);
  if (!status.ok()) {
    half_event_ = status;
    RemoveHalfEvent().IgnoreError();
    return status;
  }
  size_bytes_ += static_cast<int64_t>(frame.size());
  return absl::OkStatus();
}

absl::Status TensorBoardSink::RemoveHalfEvent() {
  if (half_event_.ok()) return absl::OkStatus();
  // A reader would stop forever at half an event.
  if (ftruncate(fd_.get(), size_bytes_) != 0 || lseek(fd_.get(), size_bytes_, SEEK_SET) < 0) {
    return half_event_;
  }
  half_event_ = absl::OkStatus();
  return absl::OkStatus();
}

}  // namespace taopd
