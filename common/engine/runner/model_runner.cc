#include "common/engine/runner/model_runner.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <span>
#include <utility>

#include "common/engine/runner/sequence_scores.h"
#include "kernels/torch/head/head_gemm.h"

namespace taopd {
namespace {

// Rows of logits below this many numbers are not worth a second thread.
constexpr int64_t kLogitsPerThread = 1 << 15;

}  // namespace

ModelRunner::ModelRunner(std::shared_ptr<Decoder> decoder, const ModelRunnerOptions& options)
    : decoder_(std::move(decoder)), options_(options) {}

at::Tensor ModelRunner::TokenTensor(std::vector<int64_t>* token_ids) const {
  // On the CPU a view: the vector outlives the forward pass.
  const at::Tensor view =
      at::from_blob(token_ids->data(), {static_cast<int64_t>(token_ids->size())},
                    at::TensorOptions().dtype(at::kLong));
  return view.to(decoder_->device());
}

KvCache& ModelRunner::cache() {
  if (cache_ == nullptr) {
    cache_ =
        std::make_unique<KvCache>(decoder_->config(), options_.num_slots, options_.tokens_per_slot,
                                  decoder_->dtype(), decoder_->device());
  }
  return *cache_;
}

void ModelRunner::Score(const std::vector<Sequence*>& sequences) {
  PackedBatch batch;
  batch.cu_seqlens = {0};
  std::vector<int64_t> token_ids;
  for (const Sequence* sequence : sequences) {
    token_ids.insert(token_ids.end(), sequence->request.token_ids.begin(),
                     sequence->request.token_ids.end());
    batch.cu_seqlens.push_back(static_cast<int64_t>(token_ids.size()));
  }
  batch.token_ids_T = TokenTensor(&token_ids);
  const at::Tensor hidden_TH = decoder_->Forward(batch);
  for (size_t b = 0; b < sequences.size(); ++b) {
    ScoreOne(hidden_TH.narrow(0, batch.cu_seqlens[b], sequences[b]->num_prompt_tokens()),
             sequences[b]);
    sequences[b]->finished = true;
  }
}

void ModelRunner::ScoreOne(const at::Tensor& hidden_PH, Sequence* sequence) {
  auto rows = ScoreSequence(hidden_PH, decoder_->lm_head(), sequence->request,
                            options_.head_workspace_bytes);
  if (rows.ok()) {
    sequence->score = *std::move(rows);
  } else {
    sequence->status = rows.status();
    sequence->finished = true;
  }
}

void ModelRunner::Prefill(const std::vector<Sequence*>& sequences) {
  // Sequences that share the previous one's prompt are not computed; `sharers` are their slots.
  PackedBatch batch;
  batch.cu_seqlens = {0};
  std::vector<int64_t> token_ids;
  std::vector<int64_t> last_rows;             // of each computed prompt
  std::vector<std::vector<int64_t>> sharers;  // of each computed prompt
  std::vector<int64_t> row_of_sequence;
  for (const Sequence* sequence : sequences) {
    if (sequence->shares_prompt) {
      sharers.back().push_back(sequence->slot);
    } else {
      token_ids.insert(token_ids.end(), sequence->request.token_ids.begin(),
                       sequence->request.token_ids.end());
      batch.cu_seqlens.push_back(static_cast<int64_t>(token_ids.size()));
      batch.slots.push_back(sequence->slot);
      batch.past_lens.push_back(0);
      last_rows.push_back(batch.cu_seqlens.back() - 1);
      sharers.emplace_back();
    }
    row_of_sequence.push_back(static_cast<int64_t>(last_rows.size()) - 1);
  }
  batch.token_ids_T = TokenTensor(&token_ids);
  const at::Tensor hidden_TH = decoder_->Forward(batch, &cache());

  for (size_t u = 0; u < sharers.size(); ++u) {
    if (sharers[u].empty()) continue;
    const int64_t num_tokens = batch.cu_seqlens[u + 1] - batch.cu_seqlens[u];
    const at::Tensor slots = TokenTensor(&sharers[u]);
    for (int64_t layer = 0; layer < decoder_->config().num_hidden_layers; ++layer) {
      for (at::Tensor* rows : {&cache().keys(layer), &cache().values(layer)}) {
        at::Tensor prompt_rows = rows->narrow(/*dim=*/2, 0, num_tokens);
        const at::Tensor source = prompt_rows.select(0, batch.slots[u]).clone().unsqueeze(0);
        prompt_rows.index_copy_(
            0, slots, source.expand({static_cast<int64_t>(sharers[u].size()), -1, -1, -1}));
      }
    }
  }
  for (size_t b = 0; b < sequences.size(); ++b) {
    if (!sequences[b]->scores()) continue;
    const int64_t end = last_rows[row_of_sequence[b]] + 1;
    const int64_t num_tokens = sequences[b]->num_prompt_tokens();
    ScoreOne(hidden_TH.narrow(0, end - num_tokens, num_tokens), sequences[b]);
  }
  SampleNext(hidden_TH.index_select(0, TokenTensor(&last_rows)), sequences, row_of_sequence);
}

void ModelRunner::Decode(const std::vector<Sequence*>& sequences) {
  const int64_t num_sequences = static_cast<int64_t>(sequences.size());
  PackedBatch batch;
  batch.cu_seqlens.resize(num_sequences + 1);
  batch.slots.resize(num_sequences);
  batch.past_lens.resize(num_sequences);
  token_ids_.resize(num_sequences);
  std::vector<int64_t> row_of_sequence(num_sequences);
  for (int64_t b = 0; b < num_sequences; ++b) {
    const Sequence& sequence = *sequences[b];
    const int64_t num_generated = static_cast<int64_t>(sequence.generated.ids.size());
    token_ids_[b] = sequence.generated.ids.back();
    batch.cu_seqlens[b + 1] = b + 1;
    batch.slots[b] = sequence.slot;
    // The newest token is the one that this step feeds.
    batch.past_lens[b] = sequence.num_prompt_tokens() + num_generated - 1;
    row_of_sequence[b] = b;
  }
  batch.token_ids_T = TokenTensor(&token_ids_);
  SampleNext(decoder_->Forward(batch, &cache()), sequences, row_of_sequence);
}

void ModelRunner::ClearSlots(const std::vector<Sequence*>& sequences) {
  if (cache_ == nullptr) return;
  for (const Sequence* sequence : sequences) {
    if (sequence->slot < 0) continue;
    for (int64_t layer = 0; layer < decoder_->config().num_hidden_layers; ++layer) {
      cache_->keys(layer).select(0, sequence->slot).zero_();
      cache_->values(layer).select(0, sequence->slot).zero_();
    }
  }
}

// Sequence b samples from row row_of_sequence[b] of hidden_UH. REQUIRES: row_of_sequence is sorted.
void ModelRunner::SampleNext(const at::Tensor& hidden_UH, const std::vector<Sequence*>& sequences,
                             const std::vector<int64_t>& row_of_sequence) {
  const HeadGemm head(decoder_->lm_head());
  const int64_t num_rows = hidden_UH.size(0);
  const int64_t vocab_size = decoder_->config().vocab_size;
  const int64_t rows_per_chunk =
      RowsPerChunk(options_.head_workspace_bytes, vocab_size, /*num_buffers=*/1);

  size_t begin = 0;
  for (int64_t first_row = 0; first_row < num_rows; first_row += rows_per_chunk) {
    const int64_t last_row = std::min(num_rows, first_row + rows_per_chunk);
    const at::Tensor chunk_CH = hidden_UH.narrow(0, first_row, last_row - first_row);
    at::Tensor logits_CV =
        at::empty({chunk_CH.size(0), vocab_size}, chunk_CH.options().dtype(at::kFloat));
    head.Logits(chunk_CH, logits_CV);
    logits_CV = logits_CV.cpu();
    const float* logits = logits_CV.const_data_ptr<float>();
    size_t end = begin;
    while (end < sequences.size() && row_of_sequence[end] < last_row) ++end;

    std::vector<absl::StatusOr<SampledToken>> tokens(end - begin, SampledToken());
    const int64_t grain = std::max<int64_t>(1, kLogitsPerThread / vocab_size);
    at::parallel_for(0, static_cast<int64_t>(tokens.size()), grain, [&](int64_t from, int64_t to) {
      Sampler sampler;
      for (int64_t i = from; i < to; ++i) {
        Sequence& sequence = *sequences[begin + i];
        if (sequence.finished) continue;  // its scores failed
        const SamplingParams& params = *sequence.request.sampling;
        const float* row = logits + (row_of_sequence[begin + i] - first_row) * vocab_size;
        tokens[i] = sampler.Sample(std::span<const float>(row, vocab_size), params,
                                   sequence.sampling_state.get(),
                                   static_cast<int64_t>(sequence.generated.ids.size()));
        if (tokens[i].ok() && params.num_log_probs > 0) {
          sampler.AppendTop(params.num_log_probs, &sequence.generated.top_ids,
                            &sequence.generated.top_log_probs);
        }
      }
    });
    // Callbacks run here, on the engine's thread and in the order of the sequences.
    for (size_t i = 0; i < tokens.size(); ++i) {
      Sequence& sequence = *sequences[begin + i];
      if (sequence.finished) continue;
      if (tokens[i].ok()) {
        sequence.Append(*tokens[i]);
      } else {
        sequence.status = tokens[i].status();
        sequence.finished = true;
      }
    }
    begin = end;
  }
}

}  // namespace taopd
