#include "trainer/pipeline/published_weights.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "common/io/file.h"
#include "common/io/sha256.h"
#include "common/model/weights/model_snapshot.h"
#include "kernels/torch/head/head_gemm.h"

namespace taopd {
namespace {

constexpr int kHashThreads = 8;
constexpr int64_t kProbeTokens = 16;
constexpr size_t kHashDigits = 16;

std::vector<TensorSum> SumsOf(const ModelSnapshot& snapshot) {
  std::vector<at::Tensor> on_cpu;
  std::vector<std::span<const std::byte>> pieces;
  for (const auto& [name, parameter] : snapshot.parameters) {
    on_cpu.push_back(parameter.detach().to(at::kCPU).contiguous());
    pieces.emplace_back(static_cast<const std::byte*>(on_cpu.back().const_data_ptr()),
                        on_cpu.back().nbytes());
  }
  std::vector<std::string> digests = Sha256OfAll(pieces, kHashThreads);
  std::vector<TensorSum> sums;
  for (size_t i = 0; i < digests.size(); ++i)
    sums.push_back({snapshot.parameters[i].first, std::move(digests[i])});
  return sums;
}

std::string VersionOf(int64_t step, const std::vector<TensorSum>& sums) {
  std::string all;
  for (const TensorSum& sum : sums) all += Concat(sum.name, " ", sum.sha256, "\n");
  return Concat("step-", step, "-", Sha256Hex(all).substr(0, kHashDigits));
}

}  // namespace

WeightProbe MakeWeightProbe(Decoder* student) {
  const at::NoGradGuard no_grad;
  const int64_t vocab_size = student->config().vocab_size;
  WeightProbe probe;
  const int64_t num_tokens = std::min(kProbeTokens, student->config().max_position_embeddings);
  // The ids come from all parts of the vocabulary.
  for (int64_t i = 0; i < num_tokens; ++i)
    probe.token_ids.push_back(static_cast<int32_t>((i * 7919 + 13) % vocab_size));
  const PackedBatch batch = PackedBatch::FromSequences({probe.token_ids}, student->device());
  const at::Tensor hidden_TH = student->Forward(batch);
  const at::Tensor logits_TV =
      at::empty({num_tokens, vocab_size}, hidden_TH.options().dtype(at::kFloat));
  HeadGemm(student->lm_head().detach()).Logits(hidden_TH, logits_TV);
  const at::Tensor log_probs_TV = logits_TV.log_softmax(1).to(at::kCPU);
  for (int64_t i = 1; i < num_tokens; ++i)
    probe.log_probs.push_back(log_probs_TV[i - 1][probe.token_ids[i]].item<float>());
  return probe;
}

PublishedWeights::PublishedWeights(Decoder* student, RemoteRolloutEngine* engine,
                                   std::string directory)
    : student_(student),
      engine_(engine),
      directory_(std::move(directory)),
      had_parent_(FileExists(std::filesystem::path(directory_).parent_path().string())) {
  RemoveAll(directory_).IgnoreError();
}

PublishedWeights::~PublishedWeights() {
  engine_->SetWeights(absl::CancelledError("the run has ended"));
  RemoveAll(directory_).IgnoreError();
  std::error_code error;
  if (!had_parent_) std::filesystem::remove(std::filesystem::path(directory_).parent_path(), error);
}

void PublishedWeights::Take(int64_t version) {
  version_.store(version);
  if (version < 0) {
    engine_->SetWeights(FailedPrecondition("weights between two updates generate no rollouts"));
    return;
  }
  engine_->SetWeights(Publish(version));
}

absl::StatusOr<std::shared_ptr<const PolicyWeights>> PublishedWeights::Publish(int64_t step) {
  ModelSnapshot snapshot = SnapshotOf(*student_, /*copies=*/!student_->device().is_cpu());
  auto weights = std::make_unique<PolicyWeights>();
  weights->step = step;
  weights->sums = SumsOf(snapshot);
  weights->version = VersionOf(step, weights->sums);
  // After a roll-back, a slow worker may still use the first directory of this version, which is
  // removed when the worker releases it. The number distinguishes the two.
  weights->directory = Concat(directory_, "/", weights->version, "-", ++num_published_);
  const absl::Status saved =
      Annotate(SaveSnapshot(snapshot, weights->directory), "rollout.weights_dir");
  if (absl::IsResourceExhausted(saved)) return absl::AbortedError(saved.message());
  TAOPD_RETURN_IF_ERROR(saved);
  if (engine_->needs_probe()) weights->probe = MakeWeightProbe(student_);
  // The directory is removed when the last worker that reads it has released the weights.
  return std::shared_ptr<const PolicyWeights>(weights.release(), [](const PolicyWeights* old) {
    RemoveAll(old->directory).IgnoreError();
    delete old;
  });
}

}  // namespace taopd
