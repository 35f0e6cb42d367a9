#include "trainer/checkpoint/manifest.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/base/file_descriptor.h"
#include "common/io/atomic_file.h"
#include "common/io/file.h"
#include "common/io/jsonl.h"
#include "common/io/sha256.h"

namespace taopd {
namespace {

namespace fs = std::filesystem;

constexpr char kFormat[] = "taopd-checkpoint";
constexpr int64_t kVersion = 1;

// Syncs each file by itself, because the kernel reports a failed write-back once, to the next fsync
// of that file.
absl::Status SyncFile(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return FileError("open", path, errno);
  return fsync(file.get()) == 0 ? absl::OkStatus() : FileError("fsync", path, errno);
}

// Returns whether a name stays inside the checkpoint.
bool IsInside(const std::string& name) {
  const fs::path path(name);
  if (name.empty() || path.is_absolute()) return false;
  for (const fs::path& part : path) {
    if (part == ".." || part == "." || part.empty()) return false;
  }
  return true;
}

absl::StatusOr<CheckpointManifest> ParseManifest(const nlohmann::json& json) {
  if (!json.is_object()) return DataLoss("is not a JSON object");
  const auto integer = [](const nlohmann::json& object, const char* key) -> int64_t {
    const auto found = object.find(key);
    return found != object.end() && found->is_number_unsigned() ? found->get<int64_t>() : -1;
  };
  if (json.value("format", nlohmann::json()) != kFormat) {
    return DataLoss("has no format \"", kFormat, "\"");
  }
  if (integer(json, "version") != kVersion) {
    return DataLoss("has a version other than ", kVersion);
  }
  CheckpointManifest manifest;
  manifest.step = integer(json, "step");
  if (manifest.step < 0) return DataLoss("has no step");
  const auto files = json.find("files");
  if (files == json.end() || !files->is_object() || files->empty()) return DataLoss("has no files");
  for (const auto& [name, entry] : files->items()) {
    if (!IsInside(name)) return DataLoss("names the file \"", name, "\"");
    if (!entry.is_object()) return DataLoss("has a malformed entry for ", name);
    ManifestFile file;
    file.size_bytes = integer(entry, "size_bytes");
    const auto hash = entry.find("sha256");
    if (file.size_bytes < 0 || hash == entry.end() || !hash->is_string()) {
      return DataLoss("has no size_bytes or sha256 of ", name);
    }
    file.sha256 = hash->get<std::string>();
    manifest.files[name] = std::move(file);
  }
  return manifest;
}

}  // namespace

absl::Status WriteManifest(const std::string& dir, int64_t step) {
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  std::vector<std::string> directories;
  std::error_code error;
  std::map<std::string, fs::path> regular;  // sorted by relative name
  for (fs::recursive_directory_iterator it(dir, error), end; !error && it != end;
       it.increment(error)) {
    const fs::file_status status = it->symlink_status(error);
    if (error) break;
    const std::string name = it->path().lexically_relative(dir).string();
    if (fs::is_directory(status)) {
      directories.push_back(it->path().string());
    } else if (fs::is_regular_file(status)) {
      regular[name] = it->path();
    } else {
      return FailedPrecondition("checkpoint file ", name, " is neither a file nor a directory");
    }
  }
  if (error) return Internal("cannot list ", dir, ": ", error.message());
  if (regular.empty()) return FailedPrecondition("the checkpoint of step ", step, " has no files");
  if (regular.contains(kManifestName)) {
    return FailedPrecondition("the checkpoint has a file called ", kManifestName,
                              ", which is the store's own");
  }
  for (const auto& [name, path] : regular) {
    TAOPD_RETURN_IF_ERROR(SyncFile(path.string()));
    TAOPD_ASSIGN_OR_RETURN(const std::string hash, Sha256OfFile(path.string()));
    const auto size_bytes = fs::file_size(path, error);
    if (error) return Internal("cannot stat ", path.string(), ": ", error.message());
    files[name] = {{"size_bytes", size_bytes}, {"sha256", hash}};
  }
  for (const std::string& directory : directories) {
    TAOPD_RETURN_IF_ERROR(SyncDirectory(directory));
  }
  const nlohmann::ordered_json manifest = {
      {"format", kFormat}, {"version", kVersion}, {"step", step}, {"files", files}};
  std::string text;
  try {
    text = manifest.dump(1) + "\n";
  } catch (const nlohmann::json::exception&) {
    return FailedPrecondition("a file name of the checkpoint is not UTF-8");
  }
  // This call also syncs the directory.
  return WriteFileAtomically(dir + "/" + kManifestName, text);
}

absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& dir, int64_t step) {
  const std::string path = dir + "/" + kManifestName;
  const auto json = ReadJsonFile(path);
  if (!json.ok()) return DataLoss(json.status().message());
  auto manifest = ParseManifest(*json);
  if (!manifest.ok()) return DataLoss(path, " ", manifest.status().message());
  if (manifest->step != step) {
    return DataLoss(path, " is of step ", manifest->step, " instead of ", step);
  }
  return manifest;
}

absl::Status VerifyFiles(const CheckpointManifest& manifest, const std::string& prefix,
                         const std::string& dir, bool hashes) {
  // Compare all sizes before any hash: this finds missing files at no cost.
  for (const auto& [name, file] : manifest.files) {
    if (!name.starts_with(prefix)) continue;
    const std::string path = dir + "/" + name;
    std::error_code error;
    const auto size_bytes = fs::file_size(path, error);
    if (error) return DataLoss(path, ": ", error.message());
    if (static_cast<int64_t>(size_bytes) != file.size_bytes) {
      return DataLoss(path, " has ", size_bytes, " bytes instead of ", file.size_bytes);
    }
  }
  if (!hashes) return absl::OkStatus();
  for (const auto& [name, file] : manifest.files) {
    if (!name.starts_with(prefix)) continue;
    const std::string path = dir + "/" + name;
    const auto hash = Sha256OfFile(path);
    if (!hash.ok()) return DataLoss(hash.status().message());
    if (*hash != file.sha256) {
      return DataLoss(path, " has the SHA-256 ", *hash, " instead of ", file.sha256);
    }
  }
  return absl::OkStatus();
}

absl::Status VerifyCheckpoint(const std::string& dir, int64_t step, bool hashes) {
  TAOPD_ASSIGN_OR_RETURN(const CheckpointManifest manifest, ReadManifest(dir, step));
  return VerifyFiles(manifest, "", dir, hashes);
}

}  // namespace taopd
