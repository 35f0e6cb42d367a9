#include "server/serving/policy/policy_updates.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/base/log.h"
#include "common/io/file.h"
#include "common/io/sha256.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

constexpr size_t kMaxNameBytes = 128;
// Beside a model's weights, a directory has small files: headers, config.json, an index.
constexpr int64_t kOtherFileBytes = int64_t{256} << 20;

// Returns INVALID_ARGUMENT unless the name can be that of a file or a directory inside another one.
absl::Status CheckName(const char* field, const std::string& name) {
  const bool is_plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
  if (is_plain && !name.empty() && name.size() <= kMaxNameBytes && name[0] != '.')
    return absl::OkStatus();
  return InvalidArgument(field, " \"", Excerpt(name), "\" must be 1 to ", kMaxNameBytes,
                         " letters, digits, '-', '_' and '.', not beginning with '.'");
}

// The size of a file, or 0 if there is none.
int64_t SizeOf(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 ? static_cast<int64_t>(info.st_size) : 0;
}

absl::Status AppendToFile(const std::string& path, std::string_view data) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return Internal(path, ": ", std::strerror(errno));
  const int64_t before = SizeOf(path);
  size_t num_written = 0;
  absl::Status status;
  while (status.ok() && num_written < data.size()) {
    const ssize_t n = ::write(file, data.data() + num_written, data.size() - num_written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      status = errno == ENOSPC || errno == EDQUOT
                   ? ResourceExhausted(path, ": ", std::strerror(errno))
                   : Internal(path, ": ", std::strerror(errno));
      break;
    }
    num_written += static_cast<size_t>(n);
  }
  // A part is there as a whole or not at all.
  if (!status.ok() && ::ftruncate(file, before) != 0) ::unlink(path.c_str());
  ::close(file);
  return status;
}

}  // namespace

PolicyUpdates::~PolicyUpdates() {
  absl::MutexLock lock(&mutex_);
  std::error_code error;
  if (!received_dir_.empty()) std::filesystem::remove_all(received_dir_, error);
}

void PolicyUpdates::Begin(ServedModel* model) {
  absl::MutexLock lock(&mutex_);
  engine_ = model->engine;
  {
    absl::MutexLock base_lock(&base_mutex_);
    base_revision_ = model->revision;
  }
  present_ = std::make_shared<VersionedEngine>(engine_);
  model->engine = present_;
}

absl::StatusOr<std::string> PolicyUpdates::base_revision() const {
  absl::MutexLock lock(&base_mutex_);
  if (base_revision_.empty()) return Unavailable("the model is loading");
  return base_revision_;
}

absl::Status PolicyUpdates::CheckDirectory(const std::string& directory) const {
  if (weights_dir_.empty()) return absl::OkStatus();
  std::error_code error;
  const auto root = std::filesystem::weakly_canonical(weights_dir_, error);
  const auto given = std::filesystem::weakly_canonical(directory, error);
  const auto [end, other] = std::mismatch(root.begin(), root.end(), given.begin(), given.end());
  if (!error && end == root.end()) return absl::OkStatus();
  return InvalidArgument("directory \"", Excerpt(directory), "\" is not under weights_dir");
}

absl::StatusOr<int64_t> PolicyUpdates::SetWeights(const PolicyUpdate& update, absl::Time deadline) {
  TAOPD_RETURN_IF_ERROR(CheckName("version", update.version));
  absl::MutexLock lock(&mutex_);
  const std::shared_ptr<const ServedModel> model = state_->model();
  if (model == nullptr) return Unavailable("the model is loading");
  if (model->revision == update.version && model->engine == present_) return 0;
  std::string directory = update.directory;
  if (directory.empty()) {
    TAOPD_ASSIGN_OR_RETURN(directory, ReceivedDir(update.version));
  } else {
    TAOPD_RETURN_IF_ERROR(CheckDirectory(directory));
  }
  const absl::Time begun_at = absl::Now();
  TAOPD_ASSIGN_OR_RETURN(const std::unique_ptr<StagedWeights> staged,
                         model->weights->Stage(directory, update.sums));
  const absl::Time read_at = absl::Now();
  TAOPD_RETURN_IF_ERROR(present_->Close(update.drops, deadline));
  const absl::Time idle_at = absl::Now();
  if (const absl::Status applied = staged->Apply(); !applied.ok()) {
    LogError("no work is accepted until weights are set again",
             {{"error", std::string(applied.message())}});
    return applied;
  }
  present_ = std::make_shared<VersionedEngine>(engine_);
  auto next = std::make_shared<ServedModel>(*model);
  next->revision = update.version;
  next->engine = present_;
  state_->SetReady(std::move(next));
  if (update.directory.empty()) RemoveReceived(update.version);
  LogInfo("weights replaced", {{"version", update.version},
                               {"changed_tensors", staged->num_changed()},
                               {"read_s", absl::ToDoubleSeconds(read_at - begun_at)},
                               {"wait_s", absl::ToDoubleSeconds(idle_at - read_at)},
                               {"replace_s", absl::ToDoubleSeconds(absl::Now() - idle_at)}});
  return staged->num_changed();
}

absl::StatusOr<std::string> PolicyUpdates::ReceivedDir(const std::string& version) {
  if (received_dir_.empty()) {
    std::error_code error;
    const auto temporary = std::filesystem::temp_directory_path(error);
    const std::string parent = weights_dir_.empty() ? temporary.string() : weights_dir_;
    TAOPD_RETURN_IF_ERROR(MakeDirectories(parent));
    std::string name = parent + "/taopd-weights-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr)
      return Internal(parent, ": a directory for weights cannot be made: ", std::strerror(errno));
    received_dir_ = name;
  }
  return received_dir_ + "/" + version;
}

void PolicyUpdates::RemoveReceived(const std::string& version) {
  // Mapped files stay readable. Files of other versions were never completed.
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(received_dir_, error)) {
    std::error_code ignored;
    std::filesystem::remove_all(entry.path(), ignored);
  }
  if (error) LogWarning("received weights are not removed", {{"version", version}});
}

absl::StatusOr<int64_t> PolicyUpdates::PutPart(const WeightPart& part) {
  TAOPD_RETURN_IF_ERROR(CheckName("version", part.version));
  TAOPD_RETURN_IF_ERROR(CheckName("file", part.file));
  const auto size = static_cast<int64_t>(part.data.size());
  if (size > kMaxPartBytes)
    return InvalidArgument("data has ", size, " bytes, the limit is ", kMaxPartBytes);
  if (!part.data.empty() && Sha256Hex(part.data) != part.sha256) {
    return DataLoss("the ", size, " bytes of ", part.file, " at ", part.offset,
                    " do not have the checksum ", Excerpt(part.sha256));
  }
  absl::MutexLock lock(&mutex_);
  const std::shared_ptr<const ServedModel> model = state_->model();
  if (model == nullptr) return Unavailable("the model is loading");
  const int64_t limit = model->weights->num_bytes() + kOtherFileBytes;
  if (part.file_bytes < 0 || part.file_bytes > limit) {
    return InvalidArgument("file_bytes ", part.file_bytes, " of ", part.file,
                           " exceeds the model's ", limit);
  }
  TAOPD_ASSIGN_OR_RETURN(const std::string dir, ReceivedDir(part.version));
  TAOPD_RETURN_IF_ERROR(MakeDirectories(dir));
  const std::string path = dir + "/" + part.file, partial = path + ".part";
  if (SizeOf(path) > 0) return SizeOf(path);
  const int64_t here = SizeOf(partial);
  if (part.data.empty()) return here;
  if (part.offset != here || part.offset + size > part.file_bytes) {
    return absl::OutOfRangeError(Concat("offset ", part.offset, " and ", size, " bytes of ",
                                        part.file, ", of whose ", part.file_bytes, " bytes ", here,
                                        " are here"));
  }
  TAOPD_RETURN_IF_ERROR(AppendToFile(partial, part.data));
  if (here + size < part.file_bytes) return here + size;
  if (std::rename(partial.c_str(), path.c_str()) != 0)
    return Internal(path, ": ", std::strerror(errno));
  return here + size;
}

}  // namespace taopd
