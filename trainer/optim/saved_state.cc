#include "trainer/optim/saved_state.h"

#include <utility>

#include "common/model/weights/weights.h"

namespace taopd {
namespace {

constexpr char kNumUpdates[] = "num_updates";

}  // namespace

void StateToWrite::Add(const std::string& name, std::vector<int64_t> shape,
                       const at::Tensor& values, bool copies) {
  on_cpu_.push_back(
      values.to(at::kCPU, values.scalar_type(), /*non_blocking=*/false, /*copy=*/copies));
  const at::Tensor& cpu = on_cpu_.back();
  tensors_.push_back({name,
                      SafetensorsDtype(cpu.scalar_type()),
                      std::move(shape),
                      {static_cast<const std::byte*>(cpu.const_data_ptr()), cpu.nbytes()}});
}

absl::Status StateToWrite::Write(const std::string& path,
                                 std::map<std::string, std::string> metadata) const {
  metadata[kNumUpdates] = std::to_string(num_updates_);
  return WriteSafetensors(path, tensors_, metadata);
}

absl::StatusOr<int64_t> NumUpdatesOf(const SafetensorsFile& file) {
  const auto found = file.metadata().find(kNumUpdates);
  if (found == file.metadata().end() || found->second.empty() || found->second.size() > 18 ||
      found->second.find_first_not_of("0123456789") != std::string::npos) {
    return DataLoss(file.path(), ": no num_updates in the metadata");
  }
  return std::stoll(found->second);
}

bool IsStateDtype(const std::string& name, const std::string& dtype) {
  return dtype == "F32" || (dtype == "BF16" && !name.starts_with(kMasterPrefix));
}

}  // namespace taopd
