#include "server/metrics/access_log.h"

#include <spdlog/async.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace taopd {
namespace {

constexpr size_t kQueueLines = 8192;

}  // namespace

std::string AccessLine(const AccessRecord& record) {
  nlohmann::ordered_json line;
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", record.at, absl::UTCTimeZone());
  line["client"] = record.client;
  line["request_id"] = record.request_id;
  line["method"] = record.method;
  line["code"] = record.code;
  line["seconds"] = absl::ToDoubleSeconds(record.latency);
  return line.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

AccessLog::AccessLog(const std::string& path)
    : path_(path), thread_(std::make_shared<spdlog::details::thread_pool>(kQueueLines, 1)) {}

AccessLog::~AccessLog() {
  absl::MutexLock lock(&mutex_);
  if (logger_ != nullptr) logger_->flush();
  logger_.reset();
}  // the thread ends when its queue is empty

absl::StatusOr<std::unique_ptr<AccessLog>> AccessLog::Open(const std::string& path) {
  auto log = std::unique_ptr<AccessLog>(new AccessLog(path));
  TAOPD_RETURN_IF_ERROR(log->Reopen());
  return log;
}

absl::Status AccessLog::Reopen() {
  std::shared_ptr<spdlog::sinks::sink> sink;
  try {
    if (path_ == "-") {
      sink = std::make_shared<spdlog::sinks::stdout_sink_mt>();
    } else {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path_);
    }
  } catch (const spdlog::spdlog_ex& error) {
    return InvalidArgument("access_log \"", path_, "\": ", error.what());
  }
  auto logger = std::make_shared<spdlog::async_logger>(
      "access", std::move(sink), thread_, spdlog::async_overflow_policy::overrun_oldest);
  logger->set_pattern("%v");
  logger->flush_on(spdlog::level::info);
  absl::MutexLock lock(&mutex_);
  logger_ = std::move(logger);
  return absl::OkStatus();
}

void AccessLog::Write(const AccessRecord& record) {
  const std::string line = AccessLine(record);
  absl::ReaderMutexLock lock(&mutex_);
  logger_->log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
}

uint64_t AccessLog::num_lost() const { return thread_->overrun_counter(); }

}  // namespace taopd
