#include "server/serving/policy/received_weights.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>

#include "common/base/file_descriptor.h"
#include "common/base/log.h"
#include "common/io/atomic_file.h"
#include "common/io/file.h"
#include "common/io/sha256.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

constexpr size_t kMaxNameBytes = 128;

// Returns the size of a file, or 0 if there is none.
int64_t SizeOf(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 ? static_cast<int64_t>(info.st_size) : 0;
}

absl::Status AppendToFile(const std::string& path, std::string_view data) {
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (file.get() < 0) return Internal(path, ": ", std::strerror(errno));
  const int64_t before = SizeOf(path);
  const absl::Status status = WriteAll(file.get(), std::as_bytes(std::span(data)), path);
  if (status.ok()) return status;
  // A part is written as a whole or not at all.
  if (::ftruncate(file.get(), before) != 0) ::unlink(path.c_str());
  return absl::IsResourceExhausted(status) ? status : Internal(status.message());
}

absl::Status CheckPart(const WeightFilePart& part) {
  TAOPD_RETURN_IF_ERROR(CheckPlainName("version", part.version));
  TAOPD_RETURN_IF_ERROR(CheckPlainName("file", part.file));
  const auto size = static_cast<int64_t>(part.data.size());
  if (size > ReceivedWeights::kMaxPartBytes) {
    return InvalidArgument("data has ", size, " bytes, the limit is ",
                           ReceivedWeights::kMaxPartBytes);
  }
  if (part.file_bytes < 0)
    return InvalidArgument("file_bytes ", part.file_bytes, " of ", part.file, " is negative");
  if (!part.data.empty() && Sha256Hex(part.data) != part.sha256) {
    return DataLoss("the ", size, " bytes of ", part.file, " at ", part.offset,
                    " do not have the checksum ", Excerpt(part.sha256));
  }
  return absl::OkStatus();
}

// Checks that a version with these files may have this file as well.
absl::Status CheckFits(const std::map<std::string, int64_t>& files, const WeightFilePart& part,
                       int64_t model_bytes) {
  int64_t others = 0;
  for (const auto& [name, bytes] : files) others += name == part.file ? 0 : bytes;
  const int64_t limit = model_bytes + ReceivedWeights::kOtherBytes;
  if (part.file_bytes > limit - others) {
    return InvalidArgument("file_bytes ", part.file_bytes, " of ", part.file, " and the ", others,
                           " of the version's other files exceed the model's ", limit);
  }
  if (!files.contains(part.file) && files.size() >= ReceivedWeights::kMaxFiles) {
    return InvalidArgument("file \"", part.file, "\": the version has ", files.size(),
                           " files already, which is the limit");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPlainName(const char* field, const std::string& name) {
  const bool is_plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
  if (is_plain && !name.empty() && name.size() <= kMaxNameBytes && name[0] != '.')
    return absl::OkStatus();
  return InvalidArgument(field, " \"", Excerpt(name), "\" must be 1 to ", kMaxNameBytes,
                         " letters, digits, '-', '_' and '.', not beginning with '.'");
}

ReceivedWeights::~ReceivedWeights() {
  if (!dir_.empty()) RemoveAll(dir_).IgnoreError();
}

std::string ReceivedWeights::PathOf(const WeightFilePart& part, bool is_whole) const {
  // No file that is sent has a name with a dot in front.
  return PathOf(part.version) + (is_whole ? "/" : "/.") + part.file;
}

absl::Status ReceivedWeights::MakeOwnDirectory() {
  if (!dir_.empty()) return absl::OkStatus();
  std::error_code error;
  const auto temporary = std::filesystem::temp_directory_path(error);
  const std::string parent = parent_.empty() ? temporary.string() : parent_;
  TAOPD_RETURN_IF_ERROR(MakeDirectories(parent));
  std::string name = parent + "/taopd-weights-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr)
    return Internal(parent, ": a directory for weights cannot be made: ", std::strerror(errno));
  dir_ = name;
  return absl::OkStatus();
}

std::list<ReceivedWeights::Version>::const_iterator ReceivedWeights::Find(
    const std::string& name) const {
  return std::find_if(versions_.begin(), versions_.end(),
                      [&](const Version& version) { return version.name == name; });
}

absl::StatusOr<std::string> ReceivedWeights::DirectoryOf(const std::string& version) const {
  if (Find(version) == versions_.end())
    return NotFound("no file of the version \"", version, "\" has been sent");
  return PathOf(version);
}

absl::StatusOr<ReceivedWeights::Version*> ReceivedWeights::Touch(const std::string& name) {
  if (const auto found = Find(name); found != versions_.end()) {
    versions_.splice(versions_.end(), versions_, found);
    return &versions_.back();
  }
  TAOPD_RETURN_IF_ERROR(MakeOwnDirectory());
  TAOPD_RETURN_IF_ERROR(MakeDirectories(PathOf(name)));
  if (versions_.size() >= kMaxVersions) {
    Remove(versions_.front());
    versions_.pop_front();
  }
  versions_.push_back({name, {}});
  return &versions_.back();
}

absl::StatusOr<int64_t> ReceivedWeights::Put(const WeightFilePart& part, int64_t model_bytes) {
  TAOPD_RETURN_IF_ERROR(CheckPart(part));
  const auto known = Find(part.version);
  const Sizes files = known == versions_.end() ? Sizes() : known->file_bytes;
  TAOPD_RETURN_IF_ERROR(CheckFits(files, part, model_bytes));
  const auto file = files.find(part.file);
  const bool begins = file == files.end() || file->second != part.file_bytes;
  const int64_t here =
      begins ? 0 : std::max(SizeOf(PathOf(part)), SizeOf(PathOf(part, /*is_whole=*/false)));
  const bool asks_only = part.data.empty() && part.file_bytes > 0;  // an empty file has no parts
  if (asks_only || (!begins && here == part.file_bytes)) return here;
  const auto size = static_cast<int64_t>(part.data.size());
  if (part.offset != here || size > part.file_bytes - here) {
    return absl::OutOfRangeError(Concat(part.file, ": ", size, " bytes at offset ", part.offset,
                                        ", but ", here, " of its ", part.file_bytes,
                                        " bytes have arrived"));
  }
  TAOPD_ASSIGN_OR_RETURN(Version* const version, Touch(part.version));
  const std::string path = PathOf(part), unfinished = PathOf(part, /*is_whole=*/false);
  if (begins) {
    ::unlink(path.c_str());
    ::unlink(unfinished.c_str());
    version->file_bytes[part.file] = part.file_bytes;
  }
  TAOPD_RETURN_IF_ERROR(AppendToFile(unfinished, part.data));
  if (here + size < part.file_bytes) return here + size;
  if (const absl::Status renamed = RenamePath(unfinished, path); !renamed.ok()) {
    version->file_bytes.erase(part.file);  // so that the file starts over
    ::unlink(unfinished.c_str());
    return Internal(renamed.message());
  }
  return part.file_bytes;
}

void ReceivedWeights::Remove(const Version& version) {
  if (const absl::Status removed = RemoveAll(PathOf(version.name)); !removed.ok())
    LogWarning("received weights stay on the disk", {{"error", std::string(removed.message())}});
}

void ReceivedWeights::Clear() {
  for (const Version& version : versions_) Remove(version);
  versions_.clear();
}

}  // namespace taopd
