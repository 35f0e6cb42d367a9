#include "common/io/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <utility>

#include "common/io/atomic_file.h"
#include "common/io/file.h"
#include "common/io/jsonl.h"
#include "common/io/safetensors_header.h"

namespace taopd {
namespace {

constexpr int64_t kLengthBytes = 8;  // the u64 in front of the header
constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

// A read-only mapping of a whole file.
class Mapping {
 public:
  static absl::StatusOr<std::unique_ptr<Mapping>> Map(const std::string& path) {
    // O_NONBLOCK: opening a named pipe must not wait for a writer.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return FileError("open", path, errno);
    auto mapping = MapDescriptor(fd, path);
    ::close(fd);  // the mapping stays
    return mapping;
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

  static absl::StatusOr<std::unique_ptr<Mapping>> MapDescriptor(int fd, const std::string& path) {
    struct stat info;
    if (::fstat(fd, &info) != 0) return FileError("stat", path, errno);
    if (!S_ISREG(info.st_mode)) return DataLoss(path, " is not a regular file");
    if (info.st_size < kLengthBytes) {
      return DataLoss(path, " has ", info.st_size, " bytes, too few for a header");
    }
    const size_t size_bytes = static_cast<size_t>(info.st_size);
    void* address = ::mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (address == MAP_FAILED) return FileError("map", path, errno);
    return std::unique_ptr<Mapping>(
        new Mapping({static_cast<const std::byte*>(address), size_bytes}));
  }

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
  for (int i = 0; i < kLengthBytes; ++i) value |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  return value;
}

// A shard must be a plain name in the directory of the index. (Links are followed: the Hugging Face
// cache is made of links to files outside of the model's directory.)
bool IsBareShardName(const std::string& name) {
  constexpr std::string_view kSuffix = ".safetensors";
  return name.size() > kSuffix.size() && name.ends_with(kSuffix) && name[0] != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

absl::Status AddFile(const std::string& path, SafetensorsModel* model) {
  TAOPD_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(path));
  for (const auto& [name, view] : file->tensors()) {
    const auto [entry, is_new] = model->tensors.try_emplace(name, view, file);
    if (!is_new) {
      return DataLoss("tensor \"", name, "\" is in both ", entry->second.second->path(), " and ",
                      path);
    }
  }
  model->files.push_back(std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsModel> OpenShards(const std::string& model_dir) {
  const std::string index_path = model_dir + "/" + kIndexFile;
  TAOPD_ASSIGN_OR_RETURN(const nlohmann::json index, ReadJsonFile(index_path));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return DataLoss(index_path, ": no object weight_map");
  }
  const nlohmann::json& weight_map = index["weight_map"];
  std::set<std::string> shard_names;
  for (const auto& [tensor, shard] : weight_map.items()) {
    if (!shard.is_string()) return DataLoss(index_path, ": \"", tensor, "\" names no file");
    const std::string name = shard.get<std::string>();
    if (!IsBareShardName(name)) {
      return DataLoss(index_path, ": \"", tensor, "\": \"", name,
                      "\" is not the bare name of a .safetensors file");
    }
    shard_names.insert(name);
  }

  SafetensorsModel model;
  for (const std::string& name : shard_names) {
    TAOPD_RETURN_IF_ERROR(Annotate(AddFile(model_dir + "/" + name, &model), index_path));
  }
  for (const auto& [tensor, shard] : weight_map.items()) {
    const auto found = model.tensors.find(tensor);
    const std::string shard_path = model_dir + "/" + shard.get<std::string>();
    if (found == model.tensors.end() || found->second.second->path() != shard_path) {
      return DataLoss(index_path, ": tensor \"", tensor, "\" is not in ", shard_path);
    }
  }
  for (const auto& [tensor, view] : model.tensors) {
    if (!weight_map.contains(tensor)) {
      return DataLoss(index_path, ": tensor \"", tensor, "\" of ", view.second->path(),
                      " is not in the index");
    }
  }
  return model;
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
  if (header_bytes > bytes.size() - kLengthBytes) {
    return DataLoss(path, ": header of ", header_bytes, " bytes is longer than the file of ",
                    bytes.size());
  }
  const std::string text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, header_bytes);
  const int64_t data_offset = kLengthBytes + static_cast<int64_t>(header_bytes);
  TAOPD_ASSIGN_OR_RETURN(
      SafetensorsHeader header,
      ParseSafetensorsHeader(text, static_cast<int64_t>(bytes.size()) - data_offset, path));
  return std::make_shared<const MappedSafetensors>(path, std::move(mapping), std::move(header),
                                                   data_offset);
}

absl::StatusOr<SafetensorsModel> OpenSafetensorsModel(const std::string& model_dir) {
  const std::string single_path = model_dir + "/" + kSingleFile;
  if (FileExists(single_path)) {
    SafetensorsModel model;
    TAOPD_RETURN_IF_ERROR(AddFile(single_path, &model));
    return model;
  }
  if (FileExists(model_dir + "/" + kIndexFile)) return OpenShards(model_dir);
  return NotFound("neither ", kSingleFile, " nor ", kIndexFile, " is in ", model_dir);
}

absl::Status WriteSafetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string> names = {"__metadata__"};
  int64_t position = 0;
  for (const TensorToWrite& tensor : tensors) {
    const std::string where = Concat(path, ": tensor \"", tensor.name, "\"");
    if (!names.insert(tensor.name).second) {
      return InvalidArgument(where, ": the name is taken or reserved");
    }
    const auto size_bytes = SafetensorsTensorBytes(tensor.dtype, tensor.shape);
    if (!size_bytes.ok()) return Annotate(size_bytes.status(), where);
    if (*size_bytes != static_cast<int64_t>(tensor.bytes.size())) {
      return InvalidArgument(where, " has ", tensor.bytes.size(),
                             " bytes, but its shape and dtype need ", *size_bytes);
    }
    // push_back of the pair: operator[] of an ordered object searches from the start every time.
    header.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(
        tensor.name, nlohmann::ordered_json{{"dtype", tensor.dtype},
                                            {"shape", tensor.shape},
                                            {"data_offsets", {position, position + *size_bytes}}});
    position += *size_bytes;
  }

  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& e) {
    return InvalidArgument(path, ": a name or metadata is not UTF-8: ", e.what());
  }
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  if (static_cast<int64_t>(text.size()) > kMaxSafetensorsHeaderBytes) {
    return InvalidArgument(path, ": header of ", text.size(), " bytes exceeds the limit of ",
                           kMaxSafetensorsHeaderBytes);
  }
  std::string length(kLengthBytes, '\0');
  for (int i = 0; i < kLengthBytes; ++i) {
    length[i] = static_cast<char>((text.size() >> (8 * i)) & 0xff);
  }

  TAOPD_ASSIGN_OR_RETURN(auto file, AtomicFile::Create(path));
  TAOPD_RETURN_IF_ERROR(file->Write(length + text));
  for (const TensorToWrite& tensor : tensors) TAOPD_RETURN_IF_ERROR(file->Write(tensor.bytes));
  return file->Commit();
}

}  // namespace taopd
