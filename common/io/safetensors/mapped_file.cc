#include "common/io/safetensors/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/base/file_descriptor.h"
#include "common/io/atomic_file.h"
#include "common/io/safetensors/safetensors_header.h"

namespace taopd {
namespace {

// Maps a whole file to be read.
absl::StatusOr<std::span<const std::byte>> Map(const std::string& path) {
  // O_NONBLOCK prevents the opening of a named pipe from waiting for a writer.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return FileError("open", path, errno);
  struct stat info;
  if (::fstat(file.get(), &info) != 0) return FileError("stat", path, errno);
  if (!S_ISREG(info.st_mode)) return DataLoss(path, " is not a regular file");
  if (info.st_size < kSafetensorsLengthBytes) {
    return DataLoss(path, " has ", info.st_size, " bytes, too few for a header");
  }
  const size_t size_bytes = static_cast<size_t>(info.st_size);
  void* address = ::mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) return FileError("map", path, errno);
  return std::span(static_cast<const std::byte*>(address), size_bytes);
}

uint64_t LoadLittleEndian64(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (int i = 0; i < kSafetensorsLengthBytes; ++i)
    value |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  return value;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::Open(
    const std::string& path) {
  TAOPD_ASSIGN_OR_RETURN(const std::span<const std::byte> mapped, Map(path));
  const std::shared_ptr<SafetensorsFile> file(new SafetensorsFile(path, mapped));
  TAOPD_RETURN_IF_ERROR(file->ReadHeader());
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  ::munmap(const_cast<std::byte*>(mapped_.data()), mapped_.size());
}

void SafetensorsFile::Release(const TensorView& tensor) const {
  // Only whole pages can be dropped.
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(tensor.bytes.data());
  const uintptr_t begin = (address + page - 1) / page * page;
  const uintptr_t end = (address + tensor.bytes.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

absl::Status SafetensorsFile::ReadHeader() {
  const uint64_t header_bytes = LoadLittleEndian64(mapped_);
  if (header_bytes > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return DataLoss(path_, ": header of ", header_bytes, " bytes exceeds the limit of ",
                    kMaxSafetensorsHeaderBytes);
  }
  if (header_bytes > mapped_.size() - kSafetensorsLengthBytes) {
    return DataLoss(path_, ": header of ", header_bytes, " bytes is longer than the file of ",
                    mapped_.size());
  }
  const std::string text(reinterpret_cast<const char*>(mapped_.data()) + kSafetensorsLengthBytes,
                         header_bytes);
  const auto data = mapped_.subspan(kSafetensorsLengthBytes + header_bytes);
  TAOPD_ASSIGN_OR_RETURN(SafetensorsHeader header,
                         ParseSafetensorsHeader(text, static_cast<int64_t>(data.size()), path_));
  for (auto& [name, entry] : header.entries) {
    tensors_[name] = {std::move(entry.dtype), std::move(entry.shape),
                      data.subspan(entry.begin, entry.end - entry.begin)};
  }
  metadata_ = std::move(header.metadata);
  return absl::OkStatus();
}

}  // namespace taopd
