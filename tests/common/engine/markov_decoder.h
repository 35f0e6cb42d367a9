// A decoder for tests of the engine's own logic. The logits of the next token depend only on the
// last token, so the right answer is known however sequences are packed. It can be made to wait, to
// throw and to return NaN.
#pragma once

#include <ATen/ATen.h>
#include <absl/synchronization/mutex.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/model/decoder.h"

namespace taopd::testing {

class MarkovDecoder final : public Decoder {
 public:
  struct Call {
    std::vector<int64_t> token_ids;
    // One number per sequence, in the order of the rows.
    std::vector<int64_t> num_rows;
    std::vector<int64_t> past_lens;
  };

  explicit MarkovDecoder(int64_t vocab_size, int64_t max_position_embeddings = 64,
                         double scale = 2.0)
      : Decoder(Config(vocab_size, max_position_embeddings), at::kCPU, at::kFloat) {
    RandomStream random(3);
    logits_VV_ = at::empty({vocab_size, vocab_size});
    for (int64_t i = 0; i < vocab_size * vocab_size; ++i) {
      logits_VV_.data_ptr<float>()[i] = static_cast<float>(scale * random.NextNormal());
    }
    lm_head_VV_ = at::eye(vocab_size);
  }

  at::Tensor Forward(const PackedBatch& batch, const ForwardOptions&) override {
    return Rows(batch.token_ids_T);
  }

  at::Tensor Infer(const PagedBatch& batch, KvPages* pages) override {
    EXPECT_NE(pages, nullptr);
    const int64_t* ids = batch.token_ids_T.const_data_ptr<int64_t>();
    Call call;
    call.token_ids.assign(ids, ids + batch.token_ids_T.numel());
    for (const PagedSequence& sequence : batch.sequences) {
      call.num_rows.push_back(sequence.num_rows);
      call.past_lens.push_back(sequence.past_len);
    }
    {
      absl::MutexLock lock(&mutex_);
      calls_.push_back(std::move(call));
      const auto open = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return open_; };
      mutex_.Await(absl::Condition(&open));
    }
    if (batch.on_layer) batch.on_layer();
    return Rows(batch.token_ids_T);
  }
  at::Tensor Logits(const at::Tensor& hidden_NV) override { return hidden_NV.contiguous(); }
  void CopyBlock(KvPages* pages, int32_t from, int32_t to) override {
    TORCH_CHECK(!std::exchange(next_copy_fails, false), "this copy fails");
    Decoder::CopyBlock(pages, from, to);
    ++num_copies;
  }
  int64_t PrepareInference() override { return 0; }
  void KeepForInferenceOnly() override {}
  uint64_t weight_version() const override { return 0; }
  absl::Status Health() const override { return health; }

  at::Tensor lm_head() const override { return lm_head_VV_; }
  std::vector<NamedParameter> Parameters() const override { return {{"logits", logits_VV_}}; }

  // Returns the row of logits after `token_id`.
  std::vector<float> LogitsAfter(int32_t token_id) const {
    const float* row = logits_VV_.const_data_ptr<float>() + token_id * config().vocab_size;
    return std::vector<float>(row, row + config().vocab_size);
  }
  void set_logits_after(int32_t token_id, const std::vector<float>& row) {
    std::copy(row.begin(), row.end(),
              logits_VV_.data_ptr<float>() + token_id * config().vocab_size);
  }

  // A closed gate stops Infer on entry (after the call has been recorded).
  void CloseGate() {
    absl::MutexLock lock(&mutex_);
    open_ = false;
  }
  void OpenGate() {
    absl::MutexLock lock(&mutex_);
    open_ = true;
  }
  void WaitForCalls(size_t num_calls) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [this, num_calls]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return calls_.size() >= num_calls;
    };
    mutex_.Await(absl::Condition(&reached));
  }
  std::vector<Call> calls() {
    absl::MutexLock lock(&mutex_);
    return calls_;
  }

  // Set while the engine is idle.
  int64_t poison_id = -1;          // the model throws when a token has this id
  int num_poisons_until_lost = 0;  // if positive, this throw of a poison loses the model
  int64_t nan_id = -1;             // logits after this id are NaN
  bool next_copy_fails = false;
  absl::Status health;
  int num_copies = 0;  // that were made; read while the engine is idle

 private:
  at::Tensor Rows(const at::Tensor& token_ids_T) {
    const int64_t* ids = token_ids_T.const_data_ptr<int64_t>();
    for (int64_t t = 0; t < token_ids_T.numel(); ++t) {
      if (ids[t] != poison_id) continue;
      if (--num_poisons_until_lost == 0) health = Unavailable("rank 1 is gone");
      TORCH_CHECK(false, "token ", poison_id, " is poison");
    }
    at::Tensor hidden = logits_VV_.index_select(0, token_ids_T);
    if (nan_id >= 0) hidden.masked_fill_(token_ids_T.eq(nan_id).unsqueeze(1), std::nan(""));
    return hidden;
  }

  static ModelConfig Config(int64_t vocab_size, int64_t max_position_embeddings) {
    return {.architecture = "MarkovForTests",
            .vocab_size = vocab_size,
            .hidden_size = vocab_size,
            .intermediate_size = 4,
            .num_hidden_layers = 1,
            .num_attention_heads = 1,
            .num_key_value_heads = 1,
            .head_dim = 4,
            .max_position_embeddings = max_position_embeddings,
            .eos_token_ids = {0}};
  }

  at::Tensor logits_VV_;
  at::Tensor lm_head_VV_;
  absl::Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  std::vector<Call> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd::testing
