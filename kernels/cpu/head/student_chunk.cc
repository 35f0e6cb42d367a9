#include "kernels/cpu/head/student_chunk.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/layers/layer_loops.h"

namespace taopd::cpu {
namespace {

constexpr double kLog2 = 0.693147180559945309417;
// The smallest factor of a block into which an entry is written. The entry's value is divided by
// the factor; values are below 2^24 V (RowScale), so none overflows.
constexpr float kSmallestFactorOfEntries = 0x1p-60f;

int64_t NumBlocks(const StudentChunkOptions& options) {
  return (options.vocabulary_size + options.block_size - 1) / options.block_size;
}

// exp((z - shift) scale + offset) = exp(z scale) 2^-exponent. It is at most 1, and at the largest
// logit usually above 1/2.
struct BlockReference {
  float shift, offset, exponent;
};

BlockReference ReferenceOf(float max, float scale) {
  const double scaled = static_cast<double>(max) * scale;
  const double least = std::ceil(scaled / kLog2);
  // Above 2^24, not every integer is a float32.
  auto exponent = static_cast<float>(least);
  if (exponent < least) exponent = std::nextafter(exponent, std::numeric_limits<float>::infinity());
  const double offset = std::fmin(scaled - exponent * kLog2, 0.0);
  // Logits above 1e8, where neighbouring float32 numbers are many nats apart, are not
  // probabilities.
  const bool lost = offset < -80;
  return {max, lost ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(offset),
          exponent};
}

}  // namespace

int64_t StudentChunk::BytesPerRow(const StudentChunkOptions& options, int32_t k) {
  const int64_t exps = options.products ? options.vocabulary_size * SizeOf(options.dtype) : 0;
  const auto support = static_cast<int64_t>(k * (2 * sizeof(int32_t) + 2 * sizeof(float)));
  const auto sums = static_cast<int64_t>(NumBlocks(options) * 3 * sizeof(float));
  return exps + sums + support + (options.top_k_metrics ? LargestLogits::Bytes(k) : 0);
}

StudentChunk::StudentChunk(const StudentChunkOptions& options, void* exps)
    : options_(options),
      scale_(static_cast<float>(1 / options.temperature)),
      num_blocks_(NumBlocks(options)),
      dense_(options.products && HasDenseGradient(options.objective)),
      exps_(exps) {}

RowStatus StudentChunk::Start(const StudentTargets& targets, int64_t num_rows) {
  targets_ = targets;
  num_rows_ = num_rows;
  const int64_t k = targets.k;
  size_C_.resize(num_rows);
  order_Ck_.resize(num_rows * k);
  taken_Ck_.resize(num_rows * k);
  entry_ids_Ce_.resize(num_rows * (k + 1));
  entry_values_Ce_.resize(num_rows * (k + 1));
  sampled_logit_C_.resize(num_rows);
  row_scale_C_.resize(num_rows);
  factor_BC_.resize(num_blocks_ * num_rows);
  sum_BC_.resize(num_blocks_ * num_rows);
  sum_x_BC_.resize(num_blocks_ * num_rows);
  const uint32_t needs = NeedsOf(options_.objective);
  for (int64_t n = 0; n < num_rows; ++n) {
    const int32_t* ids = targets.support_ids_Nk + n * k;
    size_C_[n] = SupportSize(ids, targets.k);
    RowStatus status = CheckSupportSize(size_C_[n], needs, options_.vocabulary_size);
    if (status == RowStatus::kOk) {
      status = OrderSupport(ids, size_C_[n], order_Ck_.data() + n * k);
    }
    if (status != RowStatus::kOk) return status;
  }
  if (options_.top_k_metrics) {
    if (num_largest_ < num_rows) {
      largest_C_ = std::make_unique<LargestLogits[]>(num_rows);
      num_largest_ = num_rows;
    }
    for (int64_t n = 0; n < num_rows; ++n) largest_C_[n].Reset(size_C_[n]);
  }
  if (options_.products && !dense_) {
    std::memset(exps_, 0, num_rows * options_.vocabulary_size * SizeOf(options_.dtype));
  }
  return RowStatus::kOk;
}

void StudentChunk::TakeBlock(int64_t block, float* logits, int64_t stride,
                             StudentChunkScratch* scratch) {
  const int64_t first = block * options_.block_size;
  const int64_t num = std::min(options_.block_size, options_.vocabulary_size - first);
  const int64_t k = targets_.k;
  for (int64_t n = 0; n < num_rows_; ++n) {
    const int64_t sampled = targets_.sampled_ids_N[n] - first;
    if (sampled >= 0 && sampled < num) sampled_logit_C_[n] = logits[sampled * stride + n];
    const int32_t* ids = targets_.support_ids_Nk + n * k;
    const int32_t* order = order_Ck_.data() + n * k;
    const int32_t* end = order + size_C_[n];
    const int32_t* next =
        std::lower_bound(order, end, first, [&](int32_t j, int64_t id) { return ids[j] < id; });
    for (; next != end && ids[*next] < first + num; ++next) {
      float& logit = logits[(ids[*next] - first) * stride + n];
      taken_Ck_[n * k + *next] = logit;
      logit = NegativeInfinity<float>();
    }
  }

  const RowMath& math = BestRowMath();
  for (std::vector<float>* values : {&scratch->max, &scratch->shift, &scratch->offset}) {
    values->resize(num_rows_);
  }
  math.column_max(logits, stride, num, num_rows_, scratch->max.data());
  float* exponents = factor_BC_.data() + block * num_rows_;
  for (int64_t n = 0; n < num_rows_; ++n) {
    const float max = scratch->max[n];
    // If all are -inf, the sums are zero whatever the reference is. (NaNs also have this maximum.)
    const bool none = max == NegativeInfinity<float>();
    const BlockReference reference =
        none ? BlockReference{0, 0, NegativeInfinity<float>()} : ReferenceOf(max, scale_);
    scratch->shift[n] = reference.shift;
    scratch->offset[n] = reference.offset;
    exponents[n] = reference.exponent;
    if (!options_.top_k_metrics || none) continue;
    LargestLogits& largest = largest_C_[n];
    if (max < largest.threshold()) continue;
    largest.OfferColumn(logits + n, stride, num, static_cast<int32_t>(first), &scratch->largest);
  }

  ColumnExp job;
  job.block = logits;
  job.stride = stride;
  job.num = num;
  job.columns = num_rows_;
  job.shift = scratch->shift.data();
  job.offset = scratch->offset.data();
  job.scale = scale_;
  job.sum_exp = sum_BC_.data() + block * num_rows_;
  job.sum_exp_x = sum_x_BC_.data() + block * num_rows_;
  job.bfloat16 = options_.dtype == DataType::kBFloat16;
  if (dense_) {
    job.exps = static_cast<char*>(exps_) + first * num_rows_ * SizeOf(options_.dtype);
  }
  math.column_exp(job);
}

// Returns the sums over all blocks, in order, and turns the blocks' exponents into factors.
ComplementSums StudentChunk::JoinBlocks(int64_t row) {
  double reference = NegativeInfinity<double>();
  for (int64_t block = 0; block < num_blocks_; ++block) {
    reference = std::max<double>(reference, factor_BC_[block * num_rows_ + row]);
  }
  if (reference == NegativeInfinity<double>()) reference = 0;
  ComplementSums rest;
  rest.reference = reference * kLog2 / scale_;
  for (int64_t block = 0; block < num_blocks_; ++block) {
    const int64_t at = block * num_rows_ + row;
    const double below = factor_BC_[at] - reference;  // an integer <= 0, or -inf
    const double factor = std::exp2(below);
    const double sum = sum_BC_[at];
    rest.sum += factor * sum;
    // Avoids 0 * -inf.
    if (sum != 0)
      rest.sum_x += factor * sum_x_BC_[at] + (factor == 0 ? 0 : factor * below * kLog2 * sum);
    const bool normal = !(factor < std::numeric_limits<float>::min());  // a NaN stays
    factor_BC_[at] = !dense_ ? 1 : normal ? static_cast<float>(factor) : 0;
  }
  return rest;
}

// Sets e of one token to value divided by its block's factor.
void StudentChunk::WriteEntry(int64_t row, int32_t id, float value) {
  const int64_t block = id / options_.block_size;
  float& factor = factor_BC_[block * num_rows_ + row];
  const bool bfloat16 = options_.dtype == DataType::kBFloat16;
  // The other e of the block keep their numbers and are then too large, by less than 2^-60 of the
  // row's largest.
  if (factor < kSmallestFactorOfEntries) factor = kSmallestFactorOfEntries;
  const float e = value / factor;
  const int64_t at = id * num_rows_ + row;
  if (bfloat16) {
    BestLayerLoops(options_.dtype).narrow(&e, 1, static_cast<uint16_t*>(exps_) + at);
  } else {
    static_cast<float*>(exps_)[at] = e;
  }
}

void StudentChunk::FinishRow(int64_t row, StudentChunkScratch* scratch, float* loss,
                             float* metrics) {
  const int64_t k = targets_.k;
  const int32_t size = size_C_[row];
  for (std::vector<double>* values :
       {&scratch->log_p, &scratch->log_q, &scratch->gradient, &scratch->term_gradient}) {
    values->resize(size);
  }
  StudentRowInput input;
  SetTargets(targets_, row, size, options_.vocabulary_size, &input);
  input.rest = JoinBlocks(row);
  input.scale = scale_;
  input.taken = taken_Ck_.data() + row * k;
  input.sampled_logit = sampled_logit_C_[row];
  if (options_.top_k_metrics) {
    scratch->in_top_k.resize(size);
    MarkStudentTopK(input.ids, input.taken, size, largest_C_[row].Sorted(), &scratch->order,
                    scratch->in_top_k.data());
    input.in_top_k = scratch->in_top_k.data();
  }
  const StudentRowGradient gradient =
      FinishStudentRow(options_.objective, input, scratch->log_p.data(), scratch->log_q.data(),
                       scratch->gradient.data(), scratch->term_gradient.data(), metrics);
  *loss = static_cast<float>(gradient.loss);
  int32_t* ids = entry_ids_Ce_.data() + row * (k + 1);
  float* values = entry_values_Ce_.data() + row * (k + 1);
  row_scale_C_[row] = WriteRowEntries(input, gradient, targets_.row_weights_N[row], dense_,
                                      targets_.k, scratch->gradient.data(), ids, values);
  for (int64_t i = 0; options_.products && i <= k; ++i) {
    if (ids[i] >= 0) WriteEntry(row, ids[i], values[i]);
  }
}

LogitGradient StudentChunk::gradient() const {
  return {options_.dtype,      exps_,     factor_BC_.data(),
          row_scale_C_.data(), num_rows_, options_.vocabulary_size,
          options_.block_size};
}

LogitEntries StudentChunk::entries() const {
  return {entry_ids_Ce_.data(), entry_values_Ce_.data(), num_rows_, targets_.k + 1};
}

}  // namespace taopd::cpu
