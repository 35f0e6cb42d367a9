#include "common/engine/runner/model_runner.h"

#include <absl/time/clock.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/engine/runner/sequence_scores.h"
#include "common/engine/runner/token_draws.h"
#include "common/model/torch_errors.h"
#include "kernels/torch/device_call.h"
#include "kernels/torch/upload.h"
#include "taopd/head/logit_chunk.h"

namespace taopd {
namespace {

// A step waits at most this long for all masks together. Most masks take less, and a step of a
// large model takes much longer.
constexpr absl::Duration kMaxMaskWait = absl::Milliseconds(1);
// After a late mask, the step does not wait for the masks of the sequence's next kMaskWaits
// tokens, so slow masks cost the other sequences at most one wait per kMaskWaits tokens.
constexpr int kMaskWaits = 16;

// Returns whether the sequence's mask is late, and records that in the sequence.
bool MaskIsLate(Sequence& sequence, absl::Time until) {
  LogitMask* const mask = sequence.request.sampling->mask.get();
  if (mask == nullptr) return false;
  const bool is_late =
      !mask->IsReady(sequence.generated.ids, std::max(until - absl::Now(), absl::ZeroDuration()));
  if (is_late) {
    sequence.num_mask_waits = kMaskWaits;
  } else if (sequence.num_mask_waits > 0) {
    --sequence.num_mask_waits;
  }
  return is_late;
}

// Makes block tables for sequences that are computed without the pool: sequence i has the blocks
// after those of sequence i - 1. Returns the number of blocks.
int64_t ConsecutiveBlocks(const std::vector<ScheduledRows>& rows,
                          std::vector<std::vector<int32_t>>* tables) {
  int32_t next = 0;
  for (const ScheduledRows& scheduled : rows) {
    TAOPD_CHECK_EQ(scheduled.first, 0);
    auto& table = tables->emplace_back();
    for (int64_t i = 0; i < scheduled.count; i += kBlockTokens) table.push_back(next++);
  }
  return next;
}

void Fail(const std::vector<ScheduledRows>& rows, const absl::Status& status) {
  const auto fail = [&status](Sequence* sequence) {
    if (sequence->status.ok()) sequence->status = status;
    sequence->finished = true;
  };
  for (const ScheduledRows& scheduled : rows) {
    fail(scheduled.sequence);
    for (Sequence* follower : scheduled.followers) fail(follower);
  }
}

}  // namespace

void ModelRunner::CaptureGraphs() {
  if (graphs_ == nullptr) return;
  const c10::InferenceMode inference_mode;
  graphs_->Capture(&pages(), nullptr);
}

void ModelRunner::ReleasePages() {
  if (graphs_ != nullptr) graphs_->Drop();
  pages_.reset();
}

KvPages& ModelRunner::pages() {
  if (pages_ == nullptr) {
    const int64_t num_blocks = num_blocks_ + (graphs_ != nullptr ? 1 : 0);
    pages_ = std::make_unique<KvPages>(decoder_->paged_config(), num_blocks, decoder_->dtype(),
                                       decoder_->device(), KvPages::LayoutOf(decoder_->device()));
  }
  return *pages_;
}

bool ModelRunner::ModelAnswers() {
  return decoder_->Health().ok() && DeviceAnswers(decoder_->device());
}

absl::Status ModelRunner::Run(const StepPlan& plan, const Progress& progress) {
  absl::Status failure = Copy(plan.copies);
  if (failure.ok()) failure = Compute(plan.rows, plan.uncached, progress);
  if (failure.ok()) return failure;
  const bool answers = ModelAnswers();
  if (!answers) Fail(plan.rows, failure);
  const absl::Status device_failure = answers ? ComputeAlone(plan, failure, progress) : failure;
  LogError("engine step failed", {{"num_sequences", plan.rows.size()},
                                  {"error", device_failure.ok() ? failure : device_failure}});
  return device_failure;
}

// Computes each sequence of a failed step again, alone. Only those that cannot be computed fail;
// the others get the numbers that they would have got. If the device fails meanwhile, the rest
// fails too, and its error is returned.
absl::Status ModelRunner::ComputeAlone(const StepPlan& plan, const absl::Status& failure,
                                       const Progress& progress) {
  // Sequences are computed again from their copies, so the copies are made again. Repeating a
  // copy is harmless.
  const absl::Status copied = Copy(plan.copies);
  if (!copied.ok() || plan.rows.size() == 1) {
    Fail(plan.rows, copied.ok() ? failure : copied);
    return absl::OkStatus();
  }
  absl::Status device_failure;
  for (const ScheduledRows& rows : plan.rows) {
    const absl::Status alone =
        device_failure.ok() ? Compute({rows}, plan.uncached, progress) : device_failure;
    if (alone.ok()) continue;
    Fail({rows}, alone);
    if (device_failure.ok() && !ModelAnswers()) device_failure = alone;
  }
  return device_failure;
}

absl::Status ModelRunner::Copy(const std::vector<BlockCopy>& copies) {
  return CatchTorchErrors([&] {
    for (const BlockCopy& copy : copies) decoder_->CopyBlock(&pages(), copy.from, copy.to);
  });
}

absl::Status ModelRunner::Compute(const std::vector<ScheduledRows>& rows, bool uncached,
                                  const Progress& progress) {
  at::Tensor hidden_TH;
  const absl::Time begun_at = clock_->Now();
  TAOPD_RETURN_IF_ERROR(CatchTorchErrors([&] { hidden_TH = Forward(rows, uncached, progress); }));
  const absl::Time computed_at = clock_->Now();
  const absl::Status produced = CatchTorchErrors([&] { ScoreAndSample(rows, hidden_TH); });
  // The layers' errors on a device are asynchronous and surface here, where results are taken.
  if (!produced.ok() && !ModelAnswers()) return produced;
  times_.layers += computed_at - begun_at;
  times_.head += clock_->Now() - computed_at;
  if (!produced.ok()) Fail(rows, produced);
  return absl::OkStatus();
}

at::Tensor ModelRunner::Forward(const std::vector<ScheduledRows>& rows, bool uncached,
                                const Progress& progress) {
  if (graphs_ != nullptr && !uncached) {
    const at::Tensor hidden_TH = graphs_->Run(rows, &pages(), progress);
    if (hidden_TH.defined()) return hidden_TH;
  }
  std::vector<int64_t> token_ids;
  std::vector<std::vector<int32_t>> tables;
  const int64_t num_whole_blocks = uncached ? ConsecutiveBlocks(rows, &tables) : 0;
  PagedBatch batch;
  batch.on_layer = progress;
  for (size_t i = 0; i < rows.size(); ++i) {
    const ScheduledRows& scheduled = rows[i];
    const int32_t* table = uncached ? tables[i].data() : scheduled.sequence->blocks.data();
    batch.sequences.push_back(
        {static_cast<int64_t>(token_ids.size()), scheduled.count, scheduled.first, table});
    for (int64_t t = scheduled.first; t < scheduled.first + scheduled.count; ++t) {
      token_ids.push_back(scheduled.sequence->token(t));
    }
  }
  batch.token_ids_T = Upload(at::tensor(token_ids, at::kLong), decoder_->device());
  if (!uncached) return decoder_->Infer(batch, &pages());
  KvPages whole =
      KvPages::ForWholeSequences(decoder_->paged_config(), num_whole_blocks, decoder_->dtype(),
                                 decoder_->device(), KvPages::LayoutOf(decoder_->device()));
  return decoder_->Infer(batch, &whole);
}

void ModelRunner::ScoreAndSample(const std::vector<ScheduledRows>& rows,
                                 const at::Tensor& hidden_TH) {
  Score(rows, hidden_TH);
  std::vector<SampledRow> sampled;
  int64_t end = 0;
  for (const ScheduledRows& scheduled : rows) {
    end += scheduled.count;
    if (!scheduled.samples) continue;
    SampledRow& row = sampled.emplace_back(SampledRow{end - 1, {scheduled.sequence}});
    row.sequences.insert(row.sequences.end(), scheduled.followers.begin(),
                         scheduled.followers.end());
  }
  Sample(sampled, hidden_TH);
}

void ModelRunner::Score(const std::vector<ScheduledRows>& rows, const at::Tensor& hidden_TH) {
  std::vector<ScoredPart> parts;
  int64_t first_row = 0;
  for (const ScheduledRows& scheduled : rows) {
    Sequence& sequence = *scheduled.sequence;
    if (sequence.scores()) {
      const int64_t begin = std::max(scheduled.first, sequence.next_scored_row);
      const int64_t end =
          std::min(scheduled.first + scheduled.count, sequence.num_prompt_tokens() - 1);
      if (begin < end) {
        parts.push_back({&sequence, begin + 1 - sequence.request.score->start,
                         hidden_TH.narrow(0, first_row + begin - scheduled.first, end - begin)});
      }
    }
    first_row += scheduled.count;
  }
  ScoreParts(parts, decoder_.get(), head_workspace_bytes_);
}

void ModelRunner::Sample(const std::vector<SampledRow>& rows, const at::Tensor& hidden_TH) {
  const int64_t num_rows = static_cast<int64_t>(rows.size());
  absl::Time masks_until;
  const int64_t rows_per_chunk = LogitChunkRows(hidden_TH.is_cpu(), head_workspace_bytes_,
                                                decoder_->config().vocab_size, /*num_buffers=*/1);
  for (int64_t first = 0; first < num_rows; first += rows_per_chunk) {
    const int64_t num = std::min(rows_per_chunk, num_rows - first);
    std::vector<int64_t> indices;
    for (int64_t i = first; i < first + num; ++i) indices.push_back(rows[i].row);
    // The rows are in order, so a step that samples from all of them needs no copy.
    const bool all = num == hidden_TH.size(0);
    const at::Tensor hidden_SH =
        all ? hidden_TH
            : hidden_TH.index_select(0, Upload(at::tensor(indices, at::kLong), decoder_->device()));
    const at::Tensor logits_SV = decoder_->Logits(hidden_SH);
    if (first == 0) masks_until = absl::Now() + kMaxMaskWait;
    SampleFrom(logits_SV, rows.data() + first, masks_until);
  }
}

// Row i of the logits belongs to rows[i].
void ModelRunner::SampleFrom(const at::Tensor& logits_SV, const SampledRow* rows,
                             absl::Time masks_until) {
  std::vector<DrawTask> tasks;
  for (int64_t i = 0; i < logits_SV.size(0); ++i) {
    for (Sequence* sequence : rows[i].sequences) {
      if (sequence->finished) continue;  // because its scores failed
      sequence->mask_was_late = MaskIsLate(*sequence, masks_until);
      if (!sequence->mask_was_late) tasks.push_back({sequence, i});
    }
  }
  std::vector<Draw> draws = DrawTokens(logits_SV, decoder_->row_sampler(logits_SV.device()), tasks);
  // Callbacks run here, on the engine's thread and in the order of the sequences.
  for (size_t i = 0; i < tasks.size(); ++i) {
    Sequence& sequence = *tasks[i].sequence;
    Draw& draw = draws[i];
    if (!draw.token.ok()) {
      sequence.status = draw.token.status();
      sequence.finished = true;
      continue;
    }
    GeneratedTokens& generated = sequence.generated;
    generated.top_ids.insert(generated.top_ids.end(), draw.top_ids.begin(), draw.top_ids.end());
    generated.top_log_probs.insert(generated.top_log_probs.end(), draw.top_log_probs.begin(),
                                   draw.top_log_probs.end());
    sequence.Append(*draw.token);
  }
}

}  // namespace taopd
