#include "common/io/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "common/base/file_descriptor.h"
#include "common/io/atomic_file.h"

namespace taopd {

absl::Status ReadInPieces(const std::string& path,
                          const std::function<absl::Status(std::string_view bytes)>& piece) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return FileError("open", path, errno);
  std::string buffer(size_t{1} << 20, '\0');
  for (;;) {
    const ssize_t num_read = ::read(file.get(), buffer.data(), buffer.size());
    if (num_read == 0) return absl::OkStatus();
    if (num_read < 0 && errno == EINTR) continue;
    if (num_read < 0) return FileError("read", path, errno);
    TAOPD_RETURN_IF_ERROR(piece(std::string_view(buffer).substr(0, static_cast<size_t>(num_read))));
  }
}

absl::StatusOr<std::string> ReadFileToString(const std::string& path, int64_t max_bytes) {
  // Grows with the bytes read instead of using fstat, because the sizes of pipes and /proc files
  // are 0.
  std::string content;
  TAOPD_RETURN_IF_ERROR(ReadInPieces(path, [&](std::string_view bytes) {
    content += bytes;
    if (static_cast<int64_t>(content.size()) <= max_bytes) return absl::OkStatus();
    return ResourceExhausted(path, " is larger than the limit of ", max_bytes, " bytes");
  }));
  content.shrink_to_fit();
  return content;
}

absl::Status WriteFileAtomically(const std::string& path, std::string_view content) {
  TAOPD_ASSIGN_OR_RETURN(auto file, AtomicFile::Create(path));
  TAOPD_RETURN_IF_ERROR(file->Write(content));
  return file->Commit();
}

absl::Status MakeDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return FileError("create directory", path, error.value());
  return absl::OkStatus();
}

absl::Status ReplaceDirectory(const std::string& path,
                              const std::function<absl::Status(const std::string& dir)>& write) {
  namespace fs = std::filesystem;
  const std::string fresh = path + ".new", old = path + ".old";
  TAOPD_RETURN_IF_ERROR(RemoveAll(fresh));
  TAOPD_RETURN_IF_ERROR(MakeDirectories(fresh));
  if (const absl::Status written = write(fresh); !written.ok()) {
    RemoveAll(fresh).IgnoreError();
    return written;
  }
  TAOPD_RETURN_IF_ERROR(SyncDirectory(fresh));
  TAOPD_RETURN_IF_ERROR(RemoveAll(old));
  std::error_code ignored;
  const bool replaces = fs::exists(fs::symlink_status(path, ignored));
  if (replaces) TAOPD_RETURN_IF_ERROR(RenamePath(path, old));
  if (const absl::Status failed = RenamePath(fresh, path); !failed.ok()) {
    const bool is_back = !replaces || RenamePath(old, path).ok();
    return is_back ? failed : Annotate(failed, Concat(path, " is now ", old));
  }
  const fs::path parent = fs::path(path).parent_path();
  TAOPD_RETURN_IF_ERROR(SyncDirectory(parent.empty() ? "." : parent.string()));
  RemoveAll(old).IgnoreError();
  return absl::OkStatus();
}

absl::Status RemoveAll(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? FileError("remove", path, error.value()) : absl::OkStatus();
}

absl::Status RenamePath(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return FileError("rename", Concat(from, " to ", to), errno);
}

absl::Status SyncDirectory(const std::string& path) {
  const FileDescriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) return FileError("open directory", path, errno);
  if (::fsync(directory.get()) != 0) return FileError("fsync directory", path, errno);
  return absl::OkStatus();
}

bool FileExists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path) {
  std::error_code error;
  std::filesystem::directory_iterator entry(path, error);
  std::vector<std::string> names;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) return FileError("list directory", path, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace taopd
