#include "kernels/cpu/head/student_chunk.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/layers/layer_loops.h"
#include "taopd/base/round_up.h"

namespace taopd::cpu {
namespace {

constexpr double kLog2 = 0.693147180559945309417;
// The smallest factor of a block into which an entry is written. The entry's value is divided by
// the factor; values are below 2^24 V (RowScale), so none overflows.
constexpr float kSmallestFactorOfEntries = 0x1p-60f;

// The number of rows whose blocks are joined at once; their numbers of a block fill a cache line.
constexpr int64_t kJoinedRows = 16;
static_assert(kJoinedRows == kRankedRows);

// Ranks are counted, and all logits kept for that, in vocabularies of up to this size and with up
// to this many comparisons per row.
constexpr int64_t kCountedVocabulary = 4096, kMaxComparisons = 1 << 17;

bool CountsRanksOf(const StudentChunkOptions& options, int64_t k) {
  return options.top_k_metrics && options.vocab_size <= kCountedVocabulary &&
         options.vocab_size * k <= kMaxComparisons;
}

// Returns 2^exponent for an integer <= 0, -inf or NaN.
double PowerOfTwo(double exponent) {
  constexpr double kSmallestNormal = -1022;
  if (!(exponent >= kSmallestNormal)) return std::exp2(exponent);
  return std::bit_cast<double>((static_cast<int64_t>(exponent) + 1023) << 52);
}

int64_t NumBlocks(const StudentChunkOptions& options) {
  return CeilDiv(options.vocab_size, options.block_size);
}

}  // namespace

int64_t StudentChunk::BytesPerRow(const StudentChunkOptions& options, int32_t k, bool with_exps) {
  const int64_t exps =
      options.products && with_exps ? options.vocab_size * SizeOf(options.dtype) : 0;
  const auto support = static_cast<int64_t>(k * (4 * sizeof(int32_t) + 2 * sizeof(float)));
  const auto sums = static_cast<int64_t>(NumBlocks(options) * 3 * sizeof(float));
  const int64_t ranks = CountsRanksOf(options, k)
                            ? options.vocab_size * static_cast<int64_t>(sizeof(float))
                        : options.top_k_metrics ? LargestLogits::Bytes(k)
                                                : 0;
  return exps + sums + support + ranks;
}

StudentChunk::StudentChunk(const StudentChunkOptions& options, void* exps)
    : options_(options),
      scale_(static_cast<float>(1 / options.temperature)),
      num_blocks_(NumBlocks(options)),
      block_reciprocal_(std::numeric_limits<uint64_t>::max() / options.block_size + 1),
      dense_(options.products && HasDenseGradient(options.objective)),
      exps_(exps) {}

RowStatus StudentChunk::Start(const StudentTargets& targets, int64_t num_rows) {
  targets_ = targets;
  num_rows_ = num_rows;
  const int64_t k = targets.k;
  size_C_.resize(num_rows);
  seen_ids_.resize(CeilDiv(options_.vocab_size, 64));
  support_logits_Ck_.resize(num_rows * k);
  entry_ids_CE_.resize(num_rows * (k + 1));
  entry_values_CE_.resize(num_rows * (k + 1));
  sampled_logit_C_.resize(num_rows);
  row_scale_C_.resize(num_rows);
  factor_BC_.resize(num_blocks_ * num_rows);
  sum_BC_.resize(num_blocks_ * num_rows);
  sum_x_BC_.resize(num_blocks_ * num_rows);
  const uint32_t traits = TraitsOf(options_.objective);
  for (int64_t n = 0; n < num_rows; ++n) {
    const int32_t* ids = targets.support_ids_Nk + n * k;
    size_C_[n] = SupportSize(ids, targets.k);
    const RowStatus status = CheckSupportSize(size_C_[n], traits, options_.vocab_size);
    if (status != RowStatus::kOk) return status;
    if (HasDuplicate(ids, size_C_[n], &seen_ids_)) return RowStatus::kDuplicateSupportId;
  }
  if (CountsRanks()) {
    // An odd number of cache lines, so that a column's logits lie in different sets of the cache.
    logits_stride_ = RoundUp(num_rows, kRankedRows) | kRankedRows;
    // FindTopK reads kRankedRows rows of each column, from any row on.
    logits_VC_.resize(options_.vocab_size * logits_stride_ + kRankedRows);
  } else if (options_.top_k_metrics) {
    if (num_largest_ < num_rows) {
      largest_C_ = std::make_unique<LargestLogits[]>(num_rows);
      num_largest_ = num_rows;
    }
    for (int64_t n = 0; n < num_rows; ++n) largest_C_[n].Reset(size_C_[n]);
  }
  SortByBlock();
  if (exps_ != nullptr && options_.products && !dense_) {
    std::memset(exps_, 0, num_rows * options_.vocab_size * SizeOf(options_.dtype));
  }
  return RowStatus::kOk;
}

// A block's sampled tokens come before its support, because taking the support overwrites logits.
void StudentChunk::SortByBlock() {
  const int64_t k = targets_.k;
  const auto for_each = [&](const auto& use) {
    for (int32_t n = 0; n < num_rows_; ++n) use(NamedLogit{n, targets_.sampled_ids_N[n], -1});
    for (int32_t n = 0; n < num_rows_; ++n) {
      const int32_t* const ids = targets_.support_ids_Nk + n * k;
      for (int32_t j = 0; j < size_C_[n]; ++j) use(NamedLogit{n, ids[j], j});
    }
  };
  first_B_.assign(num_blocks_ + 1, 0);
  for_each([&](const NamedLogit& named) { ++first_B_[BlockOf(named.id) + 1]; });
  for (int64_t block = 0; block < num_blocks_; ++block) first_B_[block + 1] += first_B_[block];
  named_.resize(first_B_[num_blocks_]);
  std::vector<int64_t> next(first_B_.begin(), first_B_.end() - 1);
  for_each([&](const NamedLogit& named) { named_[next[BlockOf(named.id)]++] = named; });
}

int64_t StudentChunk::TokensOf(int64_t block) const {
  return std::min(options_.block_size, options_.vocab_size - block * options_.block_size);
}

void StudentChunk::AddBlock(int64_t block, float* logits, int64_t stride,
                            StudentChunkScratch* scratch) {
  TakeNamedLogits(block, logits, stride);
  if (CountsRanks()) KeepLogits(block, logits, stride);
  void* const exps = dense_ && exps_ != nullptr ? ExpsOf(block) : nullptr;
  const int64_t at = block * num_rows_;
  SumBlock(block, logits, stride, scratch, factor_BC_.data() + at, sum_BC_.data() + at,
           sum_x_BC_.data() + at, exps);
  if (options_.top_k_metrics && !CountsRanks()) {
    OfferLargest(block, logits, stride, scratch);
  }
}

// Moves the block's sampled logits and support out of it.
void StudentChunk::TakeNamedLogits(int64_t block, float* logits, int64_t stride) {
  for (int64_t i = first_B_[block]; i < first_B_[block + 1]; ++i) {
    const NamedLogit& named = named_[i];
    float& logit = logits[(named.id - block * options_.block_size) * stride + named.row];
    if (named.index < 0) {
      sampled_logit_C_[named.row] = logit;
    } else {
      support_logits_Ck_[named.row * targets_.k + named.index] = logit;
      logit = NegativeInfinity<float>();
    }
  }
}

void StudentChunk::KeepLogits(int64_t block, const float* logits, int64_t stride) {
  float* const kept = logits_VC_.data() + block * options_.block_size * logits_stride_;
  for (int64_t v = 0; v < TokensOf(block); ++v) {
    std::memcpy(kept + v * logits_stride_, logits + v * stride,
                static_cast<size_t>(num_rows_) * sizeof(float));
  }
}

// Computes x and the sums of each row, and the e of the block unless `exps` is null. Leaves the
// rows' largest logits in scratch->max.
void StudentChunk::SumBlock(int64_t block, const float* logits, int64_t stride,
                            StudentChunkScratch* scratch, float* exponents, float* sums,
                            float* sums_x, void* exps) const {
  const RowMath& math = BestRowMath();
  const int64_t num = TokensOf(block);
  for (std::vector<float>* values : {&scratch->max, &scratch->shift, &scratch->offset}) {
    values->resize(num_rows_);
  }
  math.column_max(logits, stride, num, num_rows_, scratch->max.data());
  math.column_references({scratch->max.data(), num_rows_, scale_, scratch->shift.data(),
                          scratch->offset.data(), exponents});
  math.column_exp({logits, stride, num, num_rows_, scratch->shift.data(), scratch->offset.data(),
                   scale_, sums, sums_x, exps, options_.dtype == DataType::kBFloat16});
}

// REQUIRES: scratch->max is that of SumBlock.
void StudentChunk::OfferLargest(int64_t block, const float* logits, int64_t stride,
                                StudentChunkScratch* scratch) {
  const auto first = static_cast<int32_t>(block * options_.block_size);
  for (int64_t n = 0; n < num_rows_; ++n) {
    const float max = scratch->max[n];
    LargestLogits& largest = largest_C_[n];
    if (max == NegativeInfinity<float>() || max < largest.threshold()) continue;
    largest.OfferColumn(logits + n, stride, TokensOf(block), first, &scratch->largest);
  }
}

// Writes the sums of rows [begin, begin + num) over all blocks, in order, and turns the blocks'
// exponents into factors. REQUIRES: num <= kJoinedRows.
void StudentChunk::JoinBlocks(int64_t begin, int64_t num, ComplementSums* rest) {
  double reference[kJoinedRows];
  std::fill_n(reference, num, NegativeInfinity<double>());
  for (int64_t block = 0; block < num_blocks_; ++block) {
    const float* const exponents = factor_BC_.data() + block * num_rows_ + begin;
    for (int64_t i = 0; i < num; ++i) reference[i] = std::max<double>(reference[i], exponents[i]);
  }
  for (int64_t i = 0; i < num; ++i) {
    if (reference[i] == NegativeInfinity<double>()) reference[i] = 0;
    rest[i] = ComplementSums{};
    rest[i].reference = reference[i] * kLog2 / scale_;
  }
  for (int64_t block = 0; block < num_blocks_; ++block) {
    const int64_t at = block * num_rows_ + begin;
    for (int64_t i = 0; i < num; ++i) {
      const double below = factor_BC_[at + i] - reference[i];  // an integer <= 0, or -inf
      const double factor = PowerOfTwo(below);
      const double sum = sum_BC_[at + i];
      rest[i].sum += factor * sum;
      // Avoids 0 * -inf.
      if (sum != 0) {
        rest[i].sum_x +=
            factor * sum_x_BC_[at + i] + (factor == 0 ? 0 : factor * below * kLog2 * sum);
      }
      const bool normal = !(factor < std::numeric_limits<float>::min());  // a NaN stays
      factor_BC_[at + i] = !dense_ ? 1 : normal ? static_cast<float>(factor) : 0;
    }
  }
}

void* StudentChunk::ExpsOf(int64_t block) const {
  return static_cast<char*>(exps_) +
         block * options_.block_size * num_rows_ * SizeOf(options_.dtype);
}

// Sets e of one token to value divided by its block's factor.
void StudentChunk::WriteEntry(int64_t row, int32_t id, float value, void* block_exps) const {
  const int64_t block = BlockOf(id);
  const float e = value / factor_BC_[block * num_rows_ + row];
  const int64_t at = (id - block * options_.block_size) * num_rows_ + row;
  if (options_.dtype == DataType::kBFloat16) {
    BestLayerLoops(options_.dtype).narrow(&e, 1, static_cast<uint16_t*>(block_exps) + at);
  } else {
    static_cast<float*>(block_exps)[at] = e;
  }
}

void StudentChunk::MakeExps(int64_t block, float* logits, int64_t stride,
                            StudentChunkScratch* scratch, void* exps) const {
  if (dense_) {
    const int64_t first = block * options_.block_size;
    for (int64_t i = first_B_[block]; i < first_B_[block + 1]; ++i) {
      const NamedLogit& named = named_[i];
      if (named.index < 0) continue;
      logits[(named.id - first) * stride + named.row] = NegativeInfinity<float>();
    }
    for (std::vector<float>* values : {&scratch->exponent, &scratch->sum, &scratch->sum_x}) {
      values->resize(num_rows_);
    }
    SumBlock(block, logits, stride, scratch, scratch->exponent.data(), scratch->sum.data(),
             scratch->sum_x.data(), exps);
  } else {
    std::memset(exps, 0, TokensOf(block) * num_rows_ * SizeOf(options_.dtype));
  }
  const int64_t per_row = targets_.k + 1;
  for (int64_t i = first_B_[block]; i < first_B_[block + 1]; ++i) {
    const NamedLogit& named = named_[i];
    const int64_t entry =
        named.row * per_row + (named.index < 0 ? int64_t{targets_.k} : int64_t{named.index});
    if (entry_ids_CE_[entry] >= 0) {
      WriteEntry(named.row, named.id, entry_values_CE_[entry], exps);
    }
  }
}

void StudentChunk::FinishRows(int64_t begin, int64_t end, StudentChunkScratch* scratch, float* loss,
                              float* metrics) {
  ComplementSums rest[kJoinedRows];
  for (int64_t first = begin; first < end; first += kJoinedRows) {
    const int64_t num = std::min(kJoinedRows, end - first);
    JoinBlocks(first, num, rest);
    if (CountsRanks()) FindTopK(first, num, scratch);
    for (int64_t i = 0; i < num; ++i) {
      const int64_t n = first - begin + i;
      FinishRow(first + i, i, rest[i], scratch, loss + n, metrics + n * kNumHeadMetrics);
    }
  }
}

bool StudentChunk::CountsRanks() const { return CountsRanksOf(options_, targets_.k); }

void StudentChunk::FindTopK(int64_t begin, int64_t num, StudentChunkScratch* scratch) {
  const int64_t k = targets_.k;
  scratch->support_logits.assign(k * kRankedRows, std::numeric_limits<float>::quiet_NaN());
  scratch->ids.assign(k * kRankedRows, std::numeric_limits<int32_t>::max());
  scratch->sizes.assign(kRankedRows, 0);
  scratch->ordered_logits.resize(k * kRankedRows);
  scratch->ordered_ids.resize(k * kRankedRows);
  scratch->in_top_k.resize(k * kRankedRows);
  for (int64_t i = 0; i < num; ++i) {
    const int64_t n = begin + i;
    scratch->sizes[i] = size_C_[n];
    for (int64_t j = 0; j < size_C_[n]; ++j) {
      scratch->support_logits[j * kRankedRows + i] = support_logits_Ck_[n * k + j];
      scratch->ids[j * kRankedRows + i] = targets_.support_ids_Nk[n * k + j];
    }
  }
  SupportTopK job;
  job.logits = logits_VC_.data() + begin;
  job.stride = logits_stride_;
  job.num = options_.vocab_size;
  job.support_logits = scratch->support_logits.data();
  job.ids = scratch->ids.data();
  job.sizes = scratch->sizes.data();
  job.k = k;
  job.ordered_logits = scratch->ordered_logits.data();
  job.ordered_ids = scratch->ordered_ids.data();
  job.in_top_k = scratch->in_top_k.data();
  BestRowMath().support_top_k(job);
}

void StudentChunk::FinishRow(int64_t row, int64_t place, const ComplementSums& rest,
                             StudentChunkScratch* scratch, float* loss, float* metrics) {
  const int64_t k = targets_.k;
  const int32_t size = size_C_[row];
  scratch->row_work.resize(kStudentRowWork * size);
  StudentRowInput input;
  SetTargets(targets_, row, size, options_.vocab_size, &input);
  input.rest = rest;
  input.scale = scale_;
  input.support_logits = support_logits_Ck_.data() + row * k;
  input.sampled_logit = sampled_logit_C_[row];
  if (options_.top_k_metrics) {
    scratch->row_in_top_k.resize(size);
    if (CountsRanks()) {
      for (int32_t j = 0; j < size; ++j) {
        scratch->row_in_top_k[j] = scratch->in_top_k[j * kRankedRows + place] != 0 ? 1 : 0;
      }
    } else {
      MarkStudentTopK(input.ids, input.support_logits, size, largest_C_[row].Sorted(),
                      &scratch->order, scratch->row_in_top_k.data());
    }
    input.in_top_k = scratch->row_in_top_k.data();
  }
  const StudentRowGradient gradient = FinishStudentRow(
      options_.objective, input, scratch->row_work.data(), metrics, BestRowMath().exp_of_doubles);
  *loss = static_cast<float>(gradient.loss);
  int32_t* ids = entry_ids_CE_.data() + row * (k + 1);
  float* values = entry_values_CE_.data() + row * (k + 1);
  row_scale_C_[row] = WriteRowEntries(input, gradient, targets_.row_weights_N[row], dense_,
                                      targets_.k, ids, values);
  for (int64_t i = 0; options_.products && i <= k; ++i) {
    if (ids[i] < 0) continue;
    const int64_t block = BlockOf(ids[i]);
    float& factor = factor_BC_[block * num_rows_ + row];
    // The block's other e stay as they are, so a raised factor makes their gradients too large, by
    // less than 2^-60 of the row's largest.
    if (factor < kSmallestFactorOfEntries) factor = kSmallestFactorOfEntries;
    if (exps_ == nullptr) continue;
    WriteEntry(row, ids[i], values[i], ExpsOf(block));
  }
}

LogitGradient StudentChunk::gradient() const {
  return {options_.dtype,      exps_,     factor_BC_.data(),
          row_scale_C_.data(), num_rows_, options_.vocab_size,
          options_.block_size};
}

LogitEntries StudentChunk::entries() const {
  return {entry_ids_CE_.data(), entry_values_CE_.data(), num_rows_, targets_.k + 1};
}

}  // namespace taopd::cpu
