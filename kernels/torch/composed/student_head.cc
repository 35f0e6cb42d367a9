#include "kernels/torch/composed/student_head.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/torch/composed/head_products.h"
#include "kernels/torch/composed/scoring_rows.h"
#include "taopd/base/round_up.h"
#include "taopd/head/logit_chunk.h"
#include "taopd/head/row_support.h"
#include "taopd/head/student_row.h"

namespace taopd {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
// The logits, their exponentials, and the temporary tensors of ATen's operations.
constexpr int64_t kBuffers = 4;

// The numbers of each row of a chunk that the host needs.
struct RowNumbers {
  at::Tensor reference_C, sum_C, sum_x_C;  // float64, of the complement
  at::Tensor support_logits_Ck;            // float32; 0 for padding
  at::Tensor sampled_C;                    // float32, logit of y
  at::Tensor in_top_k_Ck;                  // bool; undefined without the metrics
};

// The results of the host: the entries of the gradient that are not multiples of p(v).
struct RowEntries {
  std::vector<int64_t> rows, ids;
  std::vector<float> values, row_scale;
};

class HeadRun {
 public:
  HeadRun(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH, const StudentTargets& targets,
          const HeadOptions& options, const at::Tensor& d_lm_head_VH)
      : hidden_NH_(hidden_NH),
        lm_head_VH_(lm_head_VH),
        d_lm_head_VH_(d_lm_head_VH),
        targets_(targets),
        options_(options),
        device_(hidden_NH.device()),
        vocab_size_(lm_head_VH.size(0)),
        scale_(1 / options.temperature),
        dense_(HasDenseGradient(options.objective)) {
    const int64_t N = hidden_NH.size(0);
    output_.loss_N = at::empty({N}, at::kFloat);
    output_.metrics_NM = at::empty({N, kNumHeadMetrics}, at::kFloat);
    output_.d_hidden_NH = at::empty(hidden_NH.sizes(), hidden_NH.options());
  }

  HeadOutput Run() {
    const int64_t N = hidden_NH_.size(0);
    const int64_t chunk = LogitRowsThatFit(options_.workspace_bytes, vocab_size_, kBuffers);
    for (int64_t begin = 0; begin < N; begin += chunk) {
      RunChunk(begin, std::min(chunk, N - begin));
    }
    output_.loss_N = output_.loss_N.to(device_);
    return output_;
  }

 private:
  at::Tensor IdsOnDevice(const int32_t* ids, at::IntArrayRef shape) const {
    return at::from_blob(const_cast<int32_t*>(ids), shape, at::kInt).to(device_, at::kLong);
  }

  void RunChunk(int64_t begin, int64_t num) {
    const StudentTargets targets = RowsFrom(targets_, begin);
    const std::vector<int32_t> sizes = CheckSupports(targets, num);
    const at::Tensor hidden_CH = hidden_NH_.narrow(0, begin, num);
    const at::Tensor logits_CV =
        at::empty({num, vocab_size_}, hidden_CH.options().dtype(at::kFloat));
    HeadLogitsComposed(hidden_CH, lm_head_VH_, logits_CV);
    const RowNumbers numbers = ReduceRows(targets, num, logits_CV);
    // The logits are exponentials now.
    const RowEntries entries = FinishRows(targets, sizes, numbers, begin);
    if (!dense_) logits_CV.zero_();
    logits_CV.index_put_({at::tensor(entries.rows, at::kLong).to(device_),
                          at::tensor(entries.ids, at::kLong).to(device_)},
                         at::tensor(entries.values, at::kFloat).to(device_));
    const at::Tensor row_scale_C1 =
        at::tensor(entries.row_scale, at::kFloat).to(device_).unsqueeze(1);
    output_.d_hidden_NH.narrow(0, begin, num)
        .copy_(
            HeadBackwardComposed(logits_CV, row_scale_C1, hidden_CH, lm_head_VH_, d_lm_head_VH_));
  }

  // Returns the number of ids of each row before its padding.
  std::vector<int32_t> CheckSupports(const StudentTargets& targets, int64_t num) const {
    const uint32_t traits = TraitsOf(options_.objective);
    std::vector<int32_t> sizes;
    std::vector<uint64_t> seen_ids(CeilDiv(vocab_size_, 64));
    for (int64_t n = 0; n < num; ++n) {
      const int32_t* const ids = RowsFrom(targets.support_ids_Nk, n, targets.k);
      const int32_t size = ids == nullptr ? 0 : cpu::SupportSize(ids, targets.k);
      cpu::RowStatus status = cpu::CheckSupportSize(size, traits, vocab_size_);
      if (status == cpu::RowStatus::kOk && cpu::HasDuplicate(ids, size, &seen_ids)) {
        status = cpu::RowStatus::kDuplicateSupportId;
      }
      TORCH_CHECK(status == cpu::RowStatus::kOk, cpu::Describe(status));
      sizes.push_back(size);
    }
    return sizes;
  }

  // Takes the support out of the logits, replaces them by exp((z - reference) / temperature), and
  // returns the numbers of the rows on the host.
  RowNumbers ReduceRows(const StudentTargets& targets, int64_t num,
                        const at::Tensor& logits_CV) const {
    RowNumbers numbers;
    const at::Tensor sampled_C1 = IdsOnDevice(targets.sampled_ids_N, {num, 1});
    numbers.sampled_C = logits_CV.gather(1, sampled_C1).squeeze(1).cpu();
    if (targets.k > 0) {
      const at::Tensor ids_Ck = IdsOnDevice(targets.support_ids_Nk, {num, targets.k});
      const at::Tensor is_padding_Ck = ids_Ck.lt(0);
      const at::Tensor safe_Ck = ids_Ck.clamp_min(0);
      const at::Tensor support_logits_Ck =
          logits_CV.gather(1, safe_Ck).masked_fill_(is_padding_Ck, 0);
      numbers.support_logits_Ck = support_logits_Ck.cpu();
      if (options_.top_k_metrics) {
        numbers.in_top_k_Ck = InTopK(logits_CV, safe_Ck, is_padding_Ck).cpu();
      }
      // Padding must not take out id 0, so it repeats the first id of its row. That one is padding
      // only if the support is empty.
      const at::Tensor repeated_Ck =
          at::where(is_padding_Ck, safe_Ck.narrow(1, 0, 1).expand_as(safe_Ck), safe_Ck);
      const at::Tensor is_empty_C1 = is_padding_Ck.narrow(1, 0, 1);
      const at::Tensor fill_Ck =
          at::where(is_empty_C1, logits_CV.gather(1, repeated_Ck),
                    at::full({}, kMinusInfinity, logits_CV.options()).expand_as(repeated_Ck));
      logits_CV.scatter_(1, repeated_Ck, fill_Ck);
    }
    const at::Tensor max_C1 = logits_CV.amax(1, /*keepdim=*/true);
    const at::Tensor reference_C1 = max_C1.masked_fill(max_C1.eq(kMinusInfinity), 0);
    logits_CV.sub_(reference_C1).mul_(scale_);
    // exp(x) x is 0 for x = -inf, not NaN.
    const at::Tensor sum_x_C =
        at::mul(logits_CV.exp(), logits_CV.clamp_min(-128)).sum(1, false, at::kDouble);
    logits_CV.exp_();
    numbers.reference_C = reference_C1.squeeze(1).to(at::kDouble).cpu();
    numbers.sum_C = logits_CV.sum(1, false, at::kDouble).cpu();
    numbers.sum_x_C = sum_x_C.cpu();
    return numbers;
  }

  // Returns whether each id of the support is among as many largest logits as its row has ids.
  static at::Tensor InTopK(const at::Tensor& logits_CV, const at::Tensor& ids_Ck,
                           const at::Tensor& is_padding_Ck) {
    const int64_t k = ids_Ck.size(1);
    const at::Tensor ranked_Ck = TopKComposed(logits_CV, k);
    const at::Tensor size_C1 = is_padding_Ck.logical_not().sum(1, /*keepdim=*/true);
    const at::Tensor counts_Ck =
        at::arange(k, size_C1.options()).unsqueeze(0).lt(size_C1).to(at::kBool);
    const at::Tensor marked_CV = at::zeros(logits_CV.sizes(), counts_Ck.options());
    marked_CV.scatter_(1, ranked_Ck, counts_Ck);
    return marked_CV.gather(1, ids_Ck);
  }

  // Evaluates the objective, and writes the losses and the metrics of the chunk.
  RowEntries FinishRows(const StudentTargets& targets, const std::vector<int32_t>& sizes,
                        const RowNumbers& numbers, int64_t begin) {
    const int64_t k = targets.k;
    std::vector<double> work(kStudentRowWork * k);
    std::vector<uint8_t> in_top_k(k);
    std::vector<int32_t> ids(k + 1);
    std::vector<float> values(k + 1);
    RowEntries entries;
    for (size_t row = 0; row < sizes.size(); ++row) {
      const auto n = static_cast<int64_t>(row);
      StudentRowInput input;
      SetTargets(targets, n, sizes[row], vocab_size_, &input);
      input.rest = {numbers.reference_C.const_data_ptr<double>()[n],
                    numbers.sum_C.const_data_ptr<double>()[n],
                    numbers.sum_x_C.const_data_ptr<double>()[n]};
      input.scale = scale_;
      if (k > 0) input.support_logits = numbers.support_logits_Ck.const_data_ptr<float>() + n * k;
      input.sampled_logit = numbers.sampled_C.const_data_ptr<float>()[n];
      if (numbers.in_top_k_Ck.defined()) {
        const bool* const marks = numbers.in_top_k_Ck.const_data_ptr<bool>() + n * k;
        std::copy(marks, marks + k, in_top_k.begin());
        input.in_top_k = in_top_k.data();
      }
      const StudentRowGradient result = FinishStudentRow(
          options_.objective, input, work.data(),
          output_.metrics_NM.mutable_data_ptr<float>() + (begin + n) * kNumHeadMetrics);
      output_.loss_N.mutable_data_ptr<float>()[begin + n] = static_cast<float>(result.loss);
      entries.row_scale.push_back(WriteRowEntries(input, result, targets.row_weights_N[n], dense_,
                                                  static_cast<int32_t>(k), ids.data(),
                                                  values.data()));
      for (int64_t i = 0; i <= k; ++i) {
        if (ids[i] < 0) continue;
        entries.rows.push_back(n);
        entries.ids.push_back(ids[i]);
        entries.values.push_back(values[i]);
      }
    }
    return entries;
  }

  const at::Tensor& hidden_NH_;
  const at::Tensor& lm_head_VH_;
  const at::Tensor& d_lm_head_VH_;
  const StudentTargets targets_;
  const HeadOptions& options_;
  const at::Device device_;
  const int64_t vocab_size_;
  const double scale_;
  const bool dense_;
  HeadOutput output_;
};

}  // namespace

HeadOutput StudentHeadComposed(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                               const HeadTargets& targets, const HeadOptions& options,
                               const at::Tensor& d_lm_head_VH) {
  HeadTargets on_cpu = targets;
  for (at::Tensor* tensor : on_cpu.Tensors()) {
    if (tensor->defined()) *tensor = tensor->cpu();
  }
  return HeadRun(hidden_NH, lm_head_VH, PointersTo(on_cpu), options, d_lm_head_VH).Run();
}

}  // namespace taopd
