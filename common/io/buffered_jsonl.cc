#include "common/io/buffered_jsonl.h"

#include <utility>

#include "common/base/log.h"

namespace taopd {

absl::StatusOr<BufferedJsonlWriter> BufferedJsonlWriter::Open(const std::string& path,
                                                              int64_t truncate_to_bytes,
                                                              int64_t max_waiting_bytes) {
  TAOPD_ASSIGN_OR_RETURN(JsonlWriter writer, JsonlWriter::Open(path, truncate_to_bytes));
  return BufferedJsonlWriter(std::move(writer), path, max_waiting_bytes);
}

void BufferedJsonlWriter::Write(const nlohmann::ordered_json& value) {
  std::string line = JsonlWriter::LineOf(value);
  const auto size = static_cast<int64_t>(line.size());
  const bool waited = !waiting_.empty();
  absl::Status status = Flush();
  if (status.ok()) status = writer_.WriteLine(line);
  if (status.ok()) return;
  if (waiting_bytes_ + size > max_waiting_bytes_) {
    if (num_dropped_++ == 0) {
      LogError("records are lost: the file cannot be written, and the memory for them is full",
               {{"path", path_}, {"waiting_bytes", waiting_bytes_}, {"error", status}});
    }
    return;
  }
  if (!waited) {
    LogWarning("records wait in memory until they can be written",
               {{"path", path_}, {"error", status}});
  }
  waiting_bytes_ += size;
  waiting_.push_back(std::move(line));
}

absl::Status BufferedJsonlWriter::Flush() {
  if (waiting_.empty()) return absl::OkStatus();
  const size_t num_waited = waiting_.size();
  while (!waiting_.empty()) {
    TAOPD_RETURN_IF_ERROR(writer_.WriteLine(waiting_.front()));
    waiting_bytes_ -= static_cast<int64_t>(waiting_.front().size());
    waiting_.pop_front();
  }
  LogInfo("the waiting records have been written",
          {{"path", path_}, {"records", num_waited}, {"num_lost", num_dropped_}});
  return absl::OkStatus();
}

absl::Status BufferedJsonlWriter::Sync() {
  const absl::Status flushed = Flush();
  TAOPD_RETURN_IF_ERROR(writer_.Sync());
  return flushed;
}

}  // namespace taopd
