#include "trainer/rollout/vllm/untied_head.h"

#include <filesystem>
#include <system_error>

#include "common/io/file.h"
#include "common/io/safetensors/safetensors.h"

namespace taopd {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kIndexSuffix[] = ".index.json";

absl::Status WriteUntied(const std::string& model_dir, const std::string& dir) {
  TAOPD_ASSIGN_OR_RETURN(const SafetensorsModel model, OpenSafetensorsModel(model_dir));
  const auto found = model.tensors.find(kEmbedding);
  if (found == model.tensors.end()) return DataLoss(model_dir, ": no tensor ", kEmbedding);
  TAOPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(model_dir));
  const std::string parent = std::filesystem::path(model_dir).filename().string();
  for (const std::string& name : names) {
    if (name.ends_with(kIndexSuffix)) continue;
    std::error_code error;
    // Relative, because servers may see the directory elsewhere.
    std::filesystem::create_symlink(Concat("../", parent, "/", name), Concat(dir, "/", name),
                                    error);
    if (error) return Unavailable("cannot link ", dir, "/", name, ": ", error.message());
  }
  const TensorView& view = found->second.first;
  return WriteSafetensors(dir + "/lm_head.safetensors",
                          {{"lm_head.weight", view.dtype, view.shape, view.bytes}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<UntiedHead>> UntiedHead::Make(const std::string& model_dir,
                                                             const std::string& path) {
  TAOPD_RETURN_IF_ERROR(ReplaceDirectory(
      path, [&model_dir](const std::string& dir) { return WriteUntied(model_dir, dir); }));
  return std::unique_ptr<UntiedHead>(new UntiedHead(path));
}

UntiedHead::~UntiedHead() { RemoveAll(path_).IgnoreError(); }

}  // namespace taopd
