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

// A read-only mapping of a whole file.
class Mapping {
 public:
  static absl::StatusOr<std::unique_ptr<Mapping>> Map(const std::string& path) {
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
    return std::unique_ptr<Mapping>(
        new Mapping({static_cast<const std::byte*>(address), size_bytes}));
  }
  ~Mapping() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }
  // Drops the whole pages of a part.
  void Release(std::span<const std::byte> part) const {
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
    const auto end = (reinterpret_cast<uintptr_t>(part.data()) + part.size()) / page * page;
    if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }

 private:
  explicit Mapping(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

class MappedSafetensors final : public SafetensorsFile {
 public:
  MappedSafetensors(std::string path, std::unique_ptr<Mapping> mapping, SafetensorsHeader header,
                    int64_t data_offset)
      : path_(std::move(path)),
        mapping_(std::move(mapping)),
        metadata_(std::move(header.metadata)) {
    for (auto& [name, entry] : header.entries) {
      tensors_[name] = {
          std::move(entry.dtype), std::move(entry.shape),
          mapping_->bytes().subspan(data_offset + entry.begin, entry.end - entry.begin)};
    }
  }
  const std::map<std::string, TensorView>& tensors() const override { return tensors_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  const std::string& path() const override { return path_; }
  void Release(const TensorView& tensor) const override { mapping_->Release(tensor.bytes); }

 private:
  std::string path_;
  std::unique_ptr<Mapping> mapping_;
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

uint64_t LoadLittleEndian64(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (int i = 0; i < kSafetensorsLengthBytes; ++i)
    value |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  return value;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::Open(
    const std::string& path) {
  TAOPD_ASSIGN_OR_RETURN(auto mapping, Mapping::Map(path));
  const std::span<const std::byte> bytes = mapping->bytes();
  const uint64_t header_bytes = LoadLittleEndian64(bytes);
  if (header_bytes > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return DataLoss(path, ": header of ", header_bytes, " bytes exceeds the limit of ",
                    kMaxSafetensorsHeaderBytes);
  }
  if (header_bytes > bytes.size() - kSafetensorsLengthBytes) {
    return DataLoss(path, ": header of ", header_bytes, " bytes is longer than the file of ",
                    bytes.size());
  }
  const std::string text(reinterpret_cast<const char*>(bytes.data()) + kSafetensorsLengthBytes,
                         header_bytes);
  const int64_t data_offset = kSafetensorsLengthBytes + static_cast<int64_t>(header_bytes);
  TAOPD_ASSIGN_OR_RETURN(
      SafetensorsHeader header,
      ParseSafetensorsHeader(text, static_cast<int64_t>(bytes.size()) - data_offset, path));
  return std::make_shared<const MappedSafetensors>(path, std::move(mapping), std::move(header),
                                                   data_offset);
}

}  // namespace taopd
